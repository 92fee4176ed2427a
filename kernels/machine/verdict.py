"""A verdict on any Triton or Gluon kernel: it is compiled, run under several orders of events, and judged.

`check` is what a test calls. It raises ValueError, in one line, where the call is not right. The verdict says what the
kernel does wrong.
"""

import contextlib
import io
import multiprocessing
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton
from torch import Tensor
from triton.compiler.errors import CompilationError

from . import report
from .arguments import covered_bytes, empty_bytes, expectations, pointers_in, resolve, tensors_of, whole_numbers
from .compile import Call
from .core.faults import FaultError, UnknownError
from .core.machine import Machine
from .core.memory import EMPTY
from .core.registers import LANES
from .gpus import ARCHITECTURES, REGISTERS, REGISTERS_AT_ONCE, RESERVED, SMS
from .launcher import Compiled, address, compiled, enqueue, old_objects_frozen, registers_of, whole
from .ptx_kernel import PtxKernel
from .trace import Observed, SeenError

BUDGET = 20_000_000
LONGEST_ROW = 4  # the most launches that programmatic dependent launch lets overlap
CONSEQUENCES = ("wrong", "order", "hang")
"""Kinds of verdicts that may be consequences of a race, which another order of events may show."""
HANGS = 2
"""The number of hangs after which no other order is tried: where many programs spin, each takes long."""


@dataclass(frozen=True)
class Verdict:
    """True where the kernel is exact under every order of events that was tried."""

    kind: str
    """exact, wrong, order, race, hang, uninitialised, bounds, barrier, tma, misuse, assert, or unknown: the machine
    lacks something that the kernel needs."""
    text: str
    """The finding, in words to act on."""
    seed: int | None
    """The order of events that shows the fault, if it takes one."""
    instructions: int
    """Instructions that all warps executed under the order of events that shows the fault, or under the last."""
    seconds: float

    def __bool__(self) -> bool:
        return self.kind == "exact"

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def check(
    kernel: Any,
    grid: Sequence[int] | Callable[[dict], Sequence[int]],
    args: Mapping[str, Any] | Sequence[Any],
    *,
    expected: Mapping[str, Tensor] | Tensor | Sequence[Tensor] | None = None,
    empty: Sequence[str] = (),
    seeds: int = 8,
    seed: int = 0,
    arch: str = "sm_90a",
    tolerance: float | Mapping[str, float] | None = None,
    slots: int | None = None,
    budget: int = BUDGET,
    processes: int = 1,
    trace: str | Path | None = None,
    row: "list[Trial | Tensor] | None" = None,
) -> Verdict:
    """Run `kernel[grid](**args)` under `seeds` orders of events, from `seed` on, and return a verdict.

    `args`: arguments by name or in their order. Tensors lie on the CPU. Each run begins with them as they are;
    afterwards they hold the results of the last run.

    `expected`: what tensors must hold then, by the names of arguments, or in the order of those that the kernel writes.
    Without it all results must be the same under every order.

    `empty`: names of tensors that the host leaves as torch.empty makes them. A read of what nobody wrote there is a
    fault.

    `tolerance`: relative and absolute, for all tensors or by name; 0 is to the bit. By default whole numbers are
    compared to the bit, and others up to what rounding may do: 0.01 where floats of 16 bits or fewer, or tf32, take
    part, else 0.0001.

    `slots`: CTAs that the GPU holds at a time; None: as many as fit by their threads, registers and shared memory.

    `budget`: instructions after which a run is given up.

    `processes`: forked processes that share the orders of events. Tensors then hold the results of the first order.

    `trace`: a file for the events of the last run, which ui.perfetto.dev opens.

    `row`: launches right before this one that programmatic dependent launch lets it overlap. A kernel of torch's stands
    there as the tensor that it wrote. If this launch is exact it is added to them, else they are dropped.

    Raises ValueError, in one line, where the call is not right or the kernel does not compile.
    """
    begun = time.perf_counter()
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch {arch!r}: it is one of {', '.join(ARCHITECTURES)}")
    for name, number in dict(seeds=seeds, slots=slots, budget=budget, processes=processes).items():
        if number is not None and number < 1:
            raise ValueError(f"{name}={number}: it is a whole number from 1 on")
    if isinstance(expected, Tensor):
        expected = [expected]
    trial = Trial(resolve(kernel, grid, args), arch, (slots, budget), expected, tolerance, empty, row or [])
    fault = None
    rounded = []
    hangs = 0
    with old_objects_frozen():
        for outcome in trial.outcomes(range(seed, seed + seeds), processes, trace):
            if outcome.kind == "exact":
                rounded = [outcome.text] if outcome.text else rounded
            elif outcome.kind not in CONSEQUENCES:
                fault = outcome
                break
            else:
                fault = fault or outcome
                hangs += outcome.kind == "hang"
            if hangs == HANGS or outcome.instructions > budget:
                break
    trial.remember()
    if row is not None:
        row[:] = [] if fault else [*trial.row[1 - LONGEST_ROW :], trial]
    if fault:
        rows = report.remarks(trial.begun_late)
        if fault.seed is not None:
            compiler = "" if isinstance(kernel, PtxKernel) else f"triton {triton.__version__}, "
            rows.append(("again", f"seed={fault.seed}, seeds=1: {compiler}{arch}"))
        text = report.page(fault.text, *rows)
        return Verdict(fault.kind, text, fault.seed, fault.instructions, time.perf_counter() - begun)
    text = "as expected" if expected else "no fault, and the same results (nothing was expected of them)"
    lost = trial.lost if expected is None else []  # where results are as expected, it does not matter
    rows = trial.doubts + lost + report.remarks(trial.early + rounded)
    text = report.page(f"{text} under {seeds} order{'s' * (seeds > 1)} of events", *rows)
    return Verdict("exact", text, None, outcome.instructions, time.perf_counter() - begun)


def check_ptx(
    text: str,
    entry: str | None,
    grid: Sequence[int],
    block: Sequence[int],
    args: Mapping[str, Any] | Sequence[Any],
    shared: int = 0,
    *,
    cluster: int = 1,
    arch: str | None = None,
    **options: Any,
) -> Verdict:
    """Run an entry of plain PTX (None: the only one) as `check` runs a kernel of Triton's, with its `options`.

    `grid` and `block`: CTAs, and threads of each, in one to three dimensions. `shared`: bytes of dynamic shared memory.

    `args`: arguments in the order of the parameters. A mapping gives them names for `expected` and the verdict; else
    they have those of the PTX. A pointer is a tensor on the CPU, and a number is Python's. A structure is bytes, or a
    tuple of a format of the module struct and its values, as ("Pif", x, 3, 0.5). A tensor map is a TensorDescriptor.

    `cluster`: CTAs of a cluster along x, where the launch says it and not the PTX. `arch`: None for the PTX's own
    .target.

    Raises ValueError, in one line, where the call is not right.
    """
    begun = time.perf_counter()
    try:
        kernel = PtxKernel(text, entry, whole_numbers("block", block), shared, cluster)
    except UnknownError as error:
        return Verdict("unknown", report.lacking(error), None, 0, time.perf_counter() - begun)
    return check(kernel, grid, kernel.named(args), arch=arch or kernel.target, **options)


class Outcome(NamedTuple):
    """The outcome of one order of events."""

    kind: str
    text: str
    seed: int | None
    instructions: int


class Trial:
    """A launch that is run again and again, on tensors as they were at first."""

    def __init__(
        self,
        launch: Call,
        arch: str,
        limits: tuple,
        expected: Mapping | Sequence | None,
        tolerance: Any,
        empty: Any,
        row: list,
    ):
        self.launch = launch
        self.arch = arch
        self.target = ARCHITECTURES[arch]
        self.limits = limits
        self.tolerance = tolerance
        self.row: list[Trial | Tensor] = row[:] if launch.args.get("launch_pdl") else []
        self.together: list[Trial | Tensor] = [self]  # the launches that a run begins, in their order
        self.tensors = dict(tensors_of(launch.args))
        self.covered = covered_bytes(launch.args)
        self.pointers = {}
        for table, index, target in list(pointers_in(self.tensors)):
            element = self.tensors[table][index]
            self.pointers[element.data_ptr()] = element, target
            self.tensors[f"{table}{list(index)}"] = target
            self.covered.pop(target.untyped_storage().data_ptr(), None)  # it may be any part of its storage
        self.is_given = expected is not None
        self.unnamed: list[Tensor] | None = None
        self.wanted: dict[str, Tensor] = {}
        if isinstance(expected, Mapping):
            self.wanted = expectations(self.tensors, expected)
        elif self.is_given:
            self.unnamed = [*expected]
        self.begun_late = list(left_by_a_check(self.tensors)) if self.is_given else []
        storages = {tensor.untyped_storage(): whole(tensor) for tensor in self.tensors.values()}
        self.before = {storage.data_ptr(): (array, array.copy()) for storage, array in storages.items()}
        self.empty = empty_bytes(self.tensors, [empty] if isinstance(empty, str) else empty)
        for start, flags in self.empty.items():
            _, contents = self.before[start]
            contents[flags] = EMPTY

    def outcomes(self, seeds: Sequence[int], processes: int, trace: str | Path | None) -> Iterator[Outcome]:
        """Yield the outcome of each order of events. The others must agree with the first."""
        try:
            made = self._compiled()
        except UnknownError as error:
            yield Outcome("unknown", report.lacking(error), None, 0)
            return
        self._note(made)
        yield self.run(seeds[0], trace)
        if processes == 1 or trace:
            for seed in seeds[1:]:
                yield self.run(seed, trace)
        else:
            yield from self._forked(seeds[1:], processes)
        if self.row:
            self._join_row()
            yield from map(self.run, seeds)

    def _compiled(self) -> Compiled:
        name = self.launch.kernel.__name__
        printed = io.StringIO()  # by tl.static_print, or 100 lines where ptxas fails
        try:
            with contextlib.redirect_stdout(printed):
                made = compiled(self.launch, self.target)
        except UnknownError:
            raise
        except Exception as error:
            verb = "does not compile"
            if not isinstance(error, CompilationError):
                verb = f"is not judged: the compiler of triton {triton.__version__} fails"
            raise ValueError(f"{name} {verb} for {self.arch}: {_innermost(error)}") from error
        print(printed.getvalue(), end="")
        needed = made.program.shared_bytes
        limit = SMS[self.target].shared_bytes - RESERVED
        if needed > limit:
            limits = f"{self.arch} has {limit}; take smaller blocks or fewer stages"
            raise ValueError(f"{name} needs {needed} bytes of shared memory, {limits}")
        return made

    def _note(self, made: Compiled) -> None:
        """Note how to judge the results, and what no run shows."""
        slots, budget = self.limits
        self.limits = slots or resident(made, self.target), budget
        opcodes = "\n".join(inst.op for inst in made.program.kernel.code)
        self.adds = bool(re.search(r"^(atom|red\.|cp\.reduce)", opcodes, re.MULTILINE))
        coarse = any(tensor.is_floating_point() and tensor.itemsize < 4 for tensor in self.tensors.values())
        self.rounding = 1e-2 if coarse or "tf32" in opcodes else 1e-4
        self.lost = [("perhaps", problem) for problem in made.lost]
        self.doubts = [("perhaps", f"{problem};\nno run shows this, so it does not count") for problem in made.races]
        self.early = []
        if self.launch.args.get("launch_pdl") and not self.row and (early := before_wait(made)):
            self.early.append(f"{early} is in front of griddepcontrol.wait, {EARLY}")

    def _forked(self, seeds: Sequence[int], processes: int) -> Iterator[Outcome]:
        """Yield the outcomes of orders that each run in a process of its own, `processes` at a time."""
        todo = [*seeds]
        under_way = []
        try:
            while todo or under_way:
                while todo and len(under_way) < processes:
                    seed = todo.pop(0)
                    under_way.append((seed, *forked(self._send, seed)))
                yield received(*under_way[0])
                _, process, _ = under_way.pop(0)
                process.kill()
        finally:
            for _, process, _ in under_way:
                process.kill()

    def _send(self, seed: int, sender: Connection) -> None:
        torch.set_num_threads(1)  # a forked process has none of the threads that torch believes in
        sender.send(self.run(seed))

    def _join_row(self) -> None:
        """Have runs begin with the launches that this one may overlap. Their bounds were judged before."""
        self.together = [*self.row, self]
        self.covered = {}
        for trial in reversed(self.row):
            if isinstance(trial, Trial):
                self.before |= trial.before
                self.pointers |= trial.pointers
                self.limits = max(self.limits[0], trial.limits[0]), self.limits[1] + trial.limits[1]

    def remember(self) -> None:
        """Note what this check leaves in tensors that its kernel has changed."""
        for name in self._changed():
            tensor = self.tensors[name]
            LEFT[tensor.untyped_storage()] = zlib.crc32(whole(tensor))

    def _changed(self) -> list[str]:
        """The names of the tensors whose storages a run has changed."""
        names = []
        for name, tensor in self.tensors.items():
            array, contents = self.before[tensor.untyped_storage().data_ptr()]
            if not np.array_equal(array, contents):
                names.append(name)
        return names

    def run(self, seed: int, trace: str | Path | None = None) -> Outcome:
        machine = Observed(seed, *self.limits, is_traced=True) if trace else Machine(seed, *self.limits)
        fault = self._execute(machine)
        if trace:
            machine.write_trace(trace, fault)
        if fault is None:
            kind, text = self._compare(machine, seed)
        elif isinstance(fault, UnknownError):
            kind, text = "unknown", report.lacking(fault)
        elif fault.kind == "hang":
            kind, text = "hang", report.hang(fault, machine, self.tensors)
        else:
            place = None if fault.byte is None or fault.memory is None else (fault.memory.number, fault.byte)
            watched = Observed(seed, *self.limits, place=place)
            again = self._execute(watched)
            fault = again if isinstance(again, FaultError) and not watched.early else fault
            kind, text = fault.kind, report.fault(fault, watched, self.tensors, self.launch.kernel.is_gluon())
        return Outcome(kind, text, seed, machine.executed)

    def _compare(self, machine: Machine, seed: int) -> tuple[str, str]:
        """The kind of outcome that the results make, and its text. Where nothing is expected, the first results are
        expected from then on."""
        if self.unnamed is not None:
            self._name_expected()
        text = ""
        for name, values in self.wanted.items():
            tensor = self.tensors[name]
            if tensor.equal(values):
                continue
            if wrong := difference(tensor, values, self._tolerance(name, values)):
                return "wrong" if self.is_given else "order", self._wrong(name, *wrong, machine, seed)
            if self.adds and not self.is_given and difference(tensor, values, 0):
                text = f"sums in {name} are rounded as the order of its atomics has it, which counts as the same"
        if not self.wanted:
            self.wanted = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return "exact", text

    def _name_expected(self) -> None:
        """Take the expected values, which have no names, for the tensors that the first run has changed."""
        names = self._changed()
        if len(names) != len(self.unnamed):
            raise ValueError(
                f"{len(self.unnamed)} tensors are expected, but the kernel writes {', '.join(names) or 'none'}; "
                "give them by name, as expected=dict(out=...)"
            )
        self.wanted = expectations(self.tensors, dict(zip(names, self.unnamed, strict=True)))
        self.unnamed = None

    def _tolerance(self, name: str, values: Tensor) -> float:
        tolerance = self.tolerance
        if isinstance(tolerance, Mapping):
            tolerance = tolerance.get(name)
        if tolerance is not None:
            return tolerance
        if not values.is_floating_point() or not (self.is_given or self.adds):
            return 0
        numbers = values.double()  # floats of 8 bits cannot be rounded
        return self.rounding if (numbers != numbers.round()).any() else 0

    def _execute(self, machine: Machine) -> FaultError | UnknownError | None:
        for array, contents in self.before.values():
            array[:] = contents
        moved = []
        numbers = []
        for element, target in self.pointers.values():  # the machine's memory has addresses of its own
            at = address(machine, target)
            moved.append((element, element.item()))
            element += at - target.data_ptr()
        try:
            machine.memory.covered = self.covered
            machine.memory.empty = self.empty
            for trial in self.together:
                if isinstance(trial, Trial):
                    numbers.append(enqueue(machine, trial.launch, numbers, target=self.target))
                else:
                    numbers.append(machine.written(address(machine, trial), trial.nbytes))
            machine.run()
        except (FaultError, UnknownError) as fault:
            return fault
        except SeenError:
            return None
        except Exception as error:
            notes = getattr(error, "__notes__", None)
            if not notes:  # it came from no instruction
                raise
            return UnknownError(f"the machine itself fails, {type(error).__name__}: {error}: {notes[0]}")
        finally:
            for element, value in moved:
                element.fill_(value)
        return None

    def _wrong(self, name: str, index: tuple[int, ...], text: str, machine: Machine, seed: int) -> str:
        element = self.tensors[name][index]
        title = f"{name}{list(index)} {text}"
        region = machine.memory.region(address(machine, element), name)
        watched = Observed(seed, *self.limits, place=(region.number, element.storage_offset() * element.itemsize))
        self._execute(watched)
        if not self.is_given:
            title += "\nresults depend on the order of events: expected is what the first one gave"
        return report.page(title, report.last_write(watched), *self.lost)


EARLY = """as is right if the launch before (launch_pdl)
does not write there: `kernels.machine.launches` would know it"""


def before_wait(made: Compiled) -> str:
    """The source of the first access to global memory in front of griddepcontrol.wait; "" where there is none."""
    for inst in made.program.kernel.code:
        if inst.op == "griddepcontrol.wait":
            break
        if re.match(r"(ld|st|atom|red|cp)\S*\.global", inst.op):
            return inst.source
    return ""


def resident(made: Compiled, target: int) -> int:
    """The number of CTAs of a kernel that a GPU holds at a time."""
    sm = SMS[target]
    program = made.program
    needed = registers_of(made.triton.asm["cubin"]) if made.triton else 1  # only ptxas knows them
    registers = -(-LANES * needed // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    warps = min(sm.warps, REGISTERS // registers)
    fitting = min(sm.ctas, warps // program.warps, sm.shared_bytes // (program.shared_bytes + RESERVED))
    return max(sm.count * fitting // program.cluster, 1) * program.cluster


def forked(target: Callable, *args: Any) -> tuple[multiprocessing.Process, Connection]:
    """Start a forked process that calls `target` with these arguments and, last, a connection to send to. Returns the
    process, and the connection to receive from."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(*args, sender))
    process.start()
    sender.close()
    return process, receiver


IDLE_S = 60
"""A forked process that has used no CPU time for so long is given up."""


def seconds_of(process: int) -> list[str]:
    """The CPU time that a process has used: utime and stime (proc(5)). Empty once it has ended and was waited for."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()[11:13]


def received(seed: int, process: multiprocessing.Process, receiver: Connection) -> Outcome:
    """The outcome that a forked process sends, or one that says what became of the process."""
    spent = None
    while not receiver.poll(IDLE_S):
        before = spent
        spent = seconds_of(process.pid)
        if spent == before:
            end = f"did nothing for {IDLE_S} s"
            break
    else:
        with contextlib.suppress(EOFError):
            return receiver.recv()
        process.join()
        end = f"died with exit code {process.exitcode}"
    return Outcome("unknown", f"the process that ran this order of events {end}; others went on", seed, 0)


ERROR = r"\b(error|ERROR) *:(?! Internal)"
"""A pattern in the line of a compiler's output that says why it failed."""


def _innermost(error: BaseException) -> str:
    """A compiler's error in one line: the message of the innermost function, and the source line that it is about."""
    while error.__cause__:
        error = error.__cause__
    *before, last = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if before[-1:] == ["^"]:
        return f"{before[-2]}: {last}"
    return why([*before, last])


def why(lines: Sequence[str]) -> str:
    """The line of what a compiler printed that says why it failed; else the last."""
    return next((line for line in lines if re.search(ERROR, line)), lines[-1])


LEFT: WeakKeyDictionary = WeakKeyDictionary()
"""A checksum of what the last check left in each storage."""


def left_by_a_check(tensors: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in tensors.items():
        if LEFT.get(tensor.untyped_storage()) == zlib.crc32(whole(tensor)):
            yield f"{name} began as an earlier check left it: give each check tensors of its own"


def difference(tensor: Tensor, expected: Tensor, tolerance: float) -> tuple[tuple[int, ...], str] | None:
    """The index of the first element that is not as expected, and a text on all such elements; None where all are."""
    form = ""
    if tensor.is_floating_point():
        form = ".9g"
        tensor = tensor.detach().double()
        expected = expected.detach().double()
    else:
        tolerance = 0
    wrong = ~torch.isclose(tensor, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    count = int(wrong.sum())
    if not count:
        return None
    index = tuple(wrong.nonzero()[0].tolist())
    largest = (tensor[wrong].double() - expected[wrong].double()).abs().max().item()
    pair = f"is {tensor[index].item():{form}}, expected {expected[index].item():{form}}"
    return index, f"{pair}; {count} of {wrong.numel()} elements differ, by up to {largest:.3g}"
