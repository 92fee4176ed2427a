"""A launch that is run under several orders of events, and what comes of each."""

import contextlib
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
import triton
from torch import Tensor
from triton.compiler.errors import CompilationError

from . import report
from .arguments import Tensors, covered_bytes, empty_bytes, expectations, pointers_in, tensors_of
from .compile import Call, innermost
from .core.faults import FaultError, UnknownError
from .core.machine import Machine
from .core.memory import EMPTY
from .gpus import RESERVED, SMS, capability
from .launcher import Compiled, address, compiled, enqueue, whole
from .processes import forked, received
from .stand_ins import StandIns, stand_ins
from .trace import Observed, SeenError


class Outcome(NamedTuple):
    """The outcome of one order of events."""

    kind: str
    text: str
    seed: int | None
    instructions: int
    told: Mapping[tuple[str, str], int] = {}
    """How many races are no fault, by why and where."""


OTHERWISE = 0, 0x7B, 0xFB
"""Bytes that mean something else than EMPTY: as a condition; as a number that is the most, or the least."""


@dataclass(frozen=True)
class Terms:
    """What a launch is judged by: the options of `check` of these names."""

    slots: int | None
    budget: int
    tolerance: Any
    empty: Sequence[str]
    strict: bool
    accept: Sequence[str]
    all_programs: bool


class Trial:
    """A launch that is run again and again, on tensors as they were at first."""

    def __init__(
        self,
        launch: Call,
        arch: str,
        expected: Mapping | Sequence | None,
        row: list,
        terms: Terms,
    ):
        self.launch = launch
        self.arch = arch
        self.target = capability(arch)
        self.limits = terms.slots, terms.budget
        self.terms = terms
        self.row: list[Trial | Tensor] = row[:] if launch.args.get("launch_pdl") else []
        self.together: list[Trial | Tensor] = [self]  # the launches that a run begins, in their order
        self.is_first = False  # whether this is the first of several orders, which says who stands for others
        self.stand_ins: StandIns | None = None
        self.chosen: list[int] = []
        self.tensors = dict(tensors_of(launch.args))
        self.covered = covered_bytes(launch.args)
        self.pointers = {}
        for table, index, target in list(pointers_in(self.tensors)):
            element = self.tensors[table].view(torch.int64)[index]
            self.pointers[element.data_ptr()] = element, target
            self.tensors[f"{table}{list(index)}"] = target
            self.covered.pop(target.untyped_storage().data_ptr(), None)  # it may be any part of its storage
        self.is_given = bool(expected)
        self.wanted: dict[str, Tensor] = {}
        self.unnamed: Sequence[Tensor] = ()
        if isinstance(expected, Mapping):
            self.wanted = expectations(self.tensors, expected)
        elif self.is_given:
            self.unnamed = expected
        self.begun_late = list(left_by_a_check(self.tensors)) if self.is_given else []
        storages = {tensor.untyped_storage(): whole(tensor) for tensor in self.tensors.values()}
        self.before = {storage.data_ptr(): (array, array.copy()) for storage, array in storages.items()}
        self.empty = empty_bytes(self.tensors, terms.empty)
        for start, flags in self.empty.items():
            _, contents = self.before[start]
            contents[flags] = EMPTY

    def outcomes(self, seeds: Sequence[int], processes: int) -> Iterator[Outcome]:
        """Yield the outcome of each order of events. The others must agree with the first."""
        try:
            made = self._compiled()
        except UnknownError as error:
            yield Outcome("unknown", report.lacking(error), None, 0)
            return
        self._note(made)
        self.is_first = len(seeds) > 1 and not self.terms.all_programs
        yield self.run(seeds[0])
        if processes == 1:
            yield from map(self.run, seeds[1:])
        else:
            yield from self._forked(seeds[1:], processes)
        if self.row:
            self._join_row()
            yield from map(self.run, seeds)

    def _compiled(self) -> Compiled:
        name = self.launch.kernel.__name__
        if self.launch.config:
            name += f", config {self.launch.config},"
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
            raise ValueError(f"{name} {verb} for {self.arch}: {innermost(error)}") from error
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
        self.limits = slots or SMS[self.target].resident(made.program, made.registers), budget
        opcodes = "\n".join(inst.op for inst in made.program.kernel.code)
        self.adds = bool(re.search(r"^(atom|red\.|cp\.reduce)", opcodes, re.MULTILINE))
        coarse = any(tensor.is_floating_point() and tensor.itemsize < 4 for tensor in self.tensors.values())
        self.rounding = 1e-2 if coarse or "tf32" in opcodes else 1e-4
        self.lost = [("perhaps", problem) for problem in made.lost]
        self.races = made.races
        self.doubts: list[report.Row] = []
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
                seed, process, receiver = under_way[0]
                outcome = received(process, receiver)
                if isinstance(outcome, str):
                    text = f"the process that ran this order of events {outcome}; others went on"
                    outcome = Outcome("unknown", text, seed, 0)
                yield outcome
                del under_way[0]
                process.kill()
        finally:
            for _, process, _ in under_way:
                process.kill()

    def _send(self, seed: int, sender: Connection) -> None:
        torch.set_num_threads(1)  # a forked process has none of the threads that torch believes in
        sender.send(self.run(seed))

    def _join_row(self) -> None:
        """Have runs begin with the launches that this one may overlap. Their bounds were judged before."""
        self.stand_ins = None
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

    def run(self, seed: int) -> Outcome:
        self.chosen = self.stand_ins.chosen(seed) if self.stand_ins else []
        machine = Machine(seed, *self.limits)
        fault = self._execute(machine)
        if fault and fault is machine.ledger.early and not self._matters(machine, seed):
            fault = machine.ledger.borne
        kind, text = self._explain(fault, machine, seed) if fault else self._compare(machine, seed)
        if self.is_first and kind == "exact":
            self.stand_ins = stand_ins(machine)
        self.is_first = False
        self.doubts = []
        for problem, inst in self.races.items():
            if not machine.arrivals.get(inst):  # else each lane has arrived for itself
                self.doubts.append(("perhaps", f"{problem};\nno run shows this, so it does not count"))
        return Outcome(kind, text, seed, machine.executed, machine.ledger.told)

    def _explain(self, fault: FaultError | UnknownError, machine: Machine, seed: int) -> tuple[str, str]:
        """The kind of a fault, and its text, for which most often another run is watched."""
        if isinstance(fault, UnknownError):
            return "unknown", report.lacking(fault)
        if fault.kind == "hang":
            return "hang", report.hang(fault, machine, self.tensors)
        place = None if fault.byte is None or fault.memory is None else (fault.memory.number, fault.byte)
        watched = Observed(seed, *self.limits, place=place)
        watched.ledger.bears = fault.kind == "uninitialised"
        again = self._execute(watched)
        fault = again if isinstance(again, FaultError) and not watched.early else fault
        return fault.kind, report.fault(fault, watched, self.tensors, self.launch.kernel.is_gluon())

    def _matters(self, machine: Machine, seed: int) -> bool:
        """Whether anything comes of a read of shared memory that nobody wrote: whether a run ends in another way, or
        leaves other results, where such memory holds other bytes."""
        if machine.warps:
            return True
        results = [array.copy() for array, _ in self.before.values()]
        arrays = [array for array, _ in self.before.values()]
        for fill in OTHERWISE:
            other = Machine(seed, *self.limits)
            other.fill = fill
            self._execute(other)
            if other.warps or machine.executed != other.executed or not all(map(np.array_equal, results, arrays)):
                return True
        return False

    def _compare(self, machine: Machine, seed: int) -> tuple[str, str]:
        """The kind of outcome that the results make, and its text. Where nothing is expected, the first results are
        expected from then on."""
        if self.unnamed:
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
        self.unnamed = ()

    def _tolerance(self, name: str, values: Tensor) -> float:
        tolerance = self.terms.tolerance
        if isinstance(tolerance, Mapping):
            tolerance = tolerance.get(name)
        if tolerance is not None:
            return tolerance
        if not values.is_floating_point() or not (self.is_given or self.adds):
            return 0
        numbers = values.double()  # floats of 8 bits cannot be rounded
        return self.rounding if (numbers != numbers.round()).any() else 0

    def _execute(self, machine: Machine) -> FaultError | UnknownError | None:
        for start, (array, contents) in self.before.items():
            array[:] = contents
            if self.chosen:
                self.stand_ins.keep(self.chosen, start, array)
        moved = []
        numbers = []
        for element, target in self.pointers.values():  # the machine's memory has addresses of its own
            at = address(machine, target)
            moved.append((element, element.item()))
            element += at - target.data_ptr()
        try:
            machine.memory.covered = self.covered
            machine.memory.notes_readers = self.is_first
            machine.memory.empty = self.empty
            machine.ledger.strict = self.terms.strict
            machine.ledger.accept = self.terms.accept
            for trial in self.together:
                if isinstance(trial, Trial):
                    numbers.append(enqueue(machine, trial.launch, numbers, target=self.target))
                    if self.chosen:
                        machine.launches[-1].run(self.stand_ins.ctas(self.chosen))
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


LEFT: WeakKeyDictionary = WeakKeyDictionary()
"""A checksum of what the last check left in each storage."""


def left_by_a_check(tensors: Tensors) -> Iterator[str]:
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
