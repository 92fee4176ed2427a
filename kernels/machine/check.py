"""A verdict on any Triton or Gluon kernel: it is compiled, run under several orders of events, and judged.

`check` is what a test calls. It raises ValueError, in one line, where the call is not right; what the kernel does wrong
is in the verdict.
"""

import difflib
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction

from kernels.machine.compile import Call
from kernels.machine.device import Machine
from kernels.machine.order import FaultError
from kernels.machine.ptx import UnknownError
from kernels.machine.run import compiled, enqueue, whole

TARGETS = {"sm_80": 80, "sm_86": 86, "sm_89": 89, "sm_90": 90, "sm_90a": 90}
BUDGET = 20_000_000


@dataclass(frozen=True)
class Verdict:
    """True where the kernel is exact under every order of events that was tried."""

    kind: str
    """exact, wrong, race, hang, uninitialised, bounds, barrier, tma, misuse, assert, or unknown: the machine lacks
    something that the kernel needs."""
    text: str
    """What to act on."""
    seed: int | None
    """The order of events that shows it; None where all were exact."""
    seeds: int
    """How many were tried."""
    instructions: int
    """That all warps executed under the last."""
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
    expected: Mapping[str, Tensor] | None = None,
    seeds: int = 8,
    seed: int = 0,
    arch: str = "sm_90a",
    tolerance: float | None = None,
    slots: int | None = None,
    budget: int = BUDGET,
) -> Verdict:
    """Run `kernel[grid](**args)` under `seeds` orders of events, from `seed` on, and return a verdict.

    `args`: by name or in their order; tensors lie on the CPU. Each run begins with them as they are; afterwards they
    hold the results of the last run. `expected`: what tensors must hold then, by the names of arguments, to the bit or
    up to `tolerance`, relative and absolute; without it all results must be the same under every order. `slots`: CTAs
    that the GPU holds at a time, None as many as there are. `budget`: instructions of a run until it is given up.
    """
    begun = time.perf_counter()
    if arch not in TARGETS:
        raise ValueError(f"arch {arch!r}: it is one of {', '.join(TARGETS)}")
    if operator.index(seeds) < 1:
        raise ValueError(f"seeds={seeds}: at least one order of events is needed")
    launch = resolve(kernel, grid, args)
    tensors = dict(tensors_of(launch.args))
    wanted = _expected(tensors, expected)
    machine = None

    def verdict(kind: str, text: str, seed: int | None) -> Verdict:
        executed = machine.executed if machine else 0
        return Verdict(kind, text, seed, seeds, executed, time.perf_counter() - begun)

    try:
        problems = compiled(launch, TARGETS[arch]).problems
    except UnknownError as error:
        return verdict("unknown", str(error), None)
    except Exception as error:
        raise ValueError(f"{launch.kernel.__name__} does not compile for {arch}: {error}") from error
    memory = {tensor.untyped_storage().data_ptr(): whole(tensor) for tensor in tensors.values()}
    before = {start: data.copy() for start, data in memory.items()}
    for number in range(seed, seed + seeds):
        for start, data in memory.items():
            data[:] = before[start]
        machine = Machine(number, slots, budget)
        try:
            enqueue(machine, launch, target=TARGETS[arch])
            machine.run()
        except FaultError as error:
            return verdict(error.kind, str(error), number)
        except UnknownError as error:
            return verdict("unknown", str(error), number)
        for name, values in wanted.items():
            if text := difference(name, tensors[name], values, tolerance):
                order = "" if expected else f", by other orders of events than seed {seed}"
                return verdict("wrong", text + order, number)
        wanted = wanted or {name: tensor.clone() for name, tensor in tensors.items()}
    notes = "".join(f"\nnote: {problem}" for problem in problems)
    return verdict("exact", f"{seeds} orders of events{notes}", None)


def resolve(kernel: Any, grid: Any, args: Mapping[str, Any] | Sequence[Any]) -> Call:
    """Return the launch that `kernel[grid](**args)` stands for: of an autotuned kernel with its first configuration, of
    one with heuristics with what they say."""
    inner = kernel
    while isinstance(inner, (Autotuner, Heuristics)):
        inner = inner.fn
    if not isinstance(inner, JITFunction):
        if type(inner).__name__ == "InterpretedFunction" or triton.knobs.runtime.interpret:
            raise ValueError("TRITON_INTERPRET is set, so nothing is compiled; unset it before the kernel is imported")
        raise ValueError(f"{kernel!r:.80} is no kernel: it is a function under @triton.jit or @gluon.jit")
    names = inner.arg_names
    if not isinstance(args, Mapping):
        if len(args) > len(names):
            raise ValueError(f"{inner.__name__} has {len(names)} arguments, {len(args)} are given; options go by name")
        args = dict(zip(names, args, strict=False))
    given = dict(args)
    while isinstance(kernel, (Autotuner, Heuristics)):
        if isinstance(kernel, Autotuner):
            chosen = kernel.configs[0]
            given |= chosen.all_kwargs()
            if chosen.pre_hook:
                chosen.pre_hook(given)
        else:
            for name, rule in kernel.values.items():
                given[name] = rule(dict(given))
        kernel = kernel.fn
    options = {*CUDAOptions.__dataclass_fields__, "debug", "instrumentation_mode"}
    for name in given:
        if name not in names and name not in options:
            near = difflib.get_close_matches(name, [*names, *options], n=1)
            hint = f"did you mean {near[0]}?" if near else f"its arguments are {', '.join(names)}"
            raise ValueError(f"{inner.__name__} has no argument {name}; {hint}")
    everything = {p.name: p.default for p in inner.params if p.has_default} | given
    if missing := [name for name in names if name not in everything]:
        raise ValueError(f"{inner.__name__} needs {', '.join(missing)} too; give it in args")
    for name, value in given.items():
        _usable(name, value)
    return Call(inner, _shape(grid, everything), given)


def _usable(name: str, value: Any) -> None:
    if isinstance(value, tuple):
        for number, inner in enumerate(value):
            _usable(f"{name}[{number}]", inner)
    elif isinstance(tensor := getattr(value, "base", value), Tensor):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise ValueError(
                f"{name} is a {tensor.layout} tensor on {tensor.device}; the machine takes dense ones on the CPU: "
                f"{name}.cpu()"
            )
    elif type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        raise ValueError(f"{name} is of NumPy; torch.from_numpy({name}) or {name}.item() is what a kernel takes")


def _shape(grid: Any, args: dict) -> tuple[int, ...]:
    shape = grid(args) if callable(grid) else grid
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise ValueError(f"grid {shape!r} is no tuple of whole numbers, as (4,) or (4, 2)") from None
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise ValueError(f"grid {shape!r}: it has one to three sizes, none below 0")
    return sizes


def tensors_of(args: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among arguments, also of descriptors and in tuples, by name."""
    for name, value in args.items():
        if isinstance(value, tuple):
            yield from tensors_of({f"{name}[{number}]": inner for number, inner in enumerate(value)})
        elif isinstance(tensor := getattr(value, "base", value), Tensor):
            yield name, tensor


def _expected(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    for name, values in (expected or {}).items():
        if name not in tensors:
            raise ValueError(f"expected has {name}, which is no tensor of args; those are {', '.join(tensors)}")
        if not isinstance(values, Tensor) or values.shape != tensors[name].shape:
            shape = getattr(values, "shape", type(values).__name__)
            raise ValueError(f"expected[{name!r}] is {shape}, the argument is {tuple(tensors[name].shape)}")
    return {name: values.to(tensors[name].dtype) for name, values in (expected or {}).items()}


def difference(name: str, tensor: Tensor, expected: Tensor, tolerance: float | None) -> str:
    """Return where a tensor differs from what is expected; "" where it does not."""
    actual, wanted = (t.double() if t.dtype.is_floating_point else t for t in (tensor.detach(), expected.detach()))
    if tolerance is None or not tensor.dtype.is_floating_point:
        wrong = ~((actual == wanted) | (actual != actual) & (wanted != wanted))
    else:
        wrong = ~torch.isclose(actual, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    if not (count := int(wrong.sum())):
        return ""
    index = tuple(wrong.nonzero()[0].tolist())
    place = f"{name}[{', '.join(map(str, index))}]" if index else name
    return f"{place} is {actual[index].item()}, expected {wanted[index].item()}; {count} of {wrong.numel()} differ"
