"""The arguments of a check: the launch that they make, and the tensors among them.

What is not right raises ValueError, in one line.
"""

import difflib
import gc
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction, TensorWrapper

from .compile import Call
from .plain import PtxKernel


def resolve(kernel: Any, grid: Any, args: Mapping[str, Any] | Sequence[Any]) -> Call:
    """Return the launch that `kernel[grid](**args)` stands for: of an autotuned kernel with the first configuration
    that is not pruned, of one with heuristics with what they say."""
    if isinstance(kernel, PtxKernel):
        return Call(kernel, whole_numbers("grid", grid), dict(args))
    wrappers = []
    while isinstance(kernel, (Autotuner, Heuristics)):
        wrappers.append(kernel)
        kernel = kernel.fn
    if type(kernel).__name__ == "InterpretedFunction" or triton.knobs.runtime.interpret:
        raise ValueError("TRITON_INTERPRET is set, so nothing is compiled; unset it before the kernel is imported")
    if not isinstance(kernel, JITFunction):
        raise ValueError(f"{kernel!r:.80} is no kernel: it is a function under @triton.jit or @gluon.jit")
    name, names = kernel.__name__, kernel.arg_names
    if not isinstance(args, Mapping) and len(args) > len(names):
        raise ValueError(f"{name} has {len(names)} arguments, {len(args)} are given; options go by name")
    given = dict(args if isinstance(args, Mapping) else zip(names, args, strict=False))
    for wrapper in wrappers:
        if isinstance(wrapper, Heuristics):
            for argument, rule in wrapper.values.items():
                given[argument] = rule(dict(given))
        else:
            configure(name, wrapper, given)
    words = [*names, *CUDAOptions.__dataclass_fields__, "debug", "instrumentation_mode"]
    if unknown := [argument for argument in given if argument not in words]:
        near = difflib.get_close_matches(unknown[0], words, n=1)
        hint = f"did you mean {near[0]}?" if near else f"its arguments are {', '.join(names)}"
        raise ValueError(f"{name} has no argument {unknown[0]}; {hint}")
    everything = {p.name: p.default for p in kernel.params if p.has_default} | given
    if lacking := [argument for argument in names if argument not in everything]:
        raise ValueError(f"{name} needs {', '.join(lacking)} too; give it in args")
    return Call(kernel, whole_numbers("grid", grid(everything) if callable(grid) else grid), given)


def configure(name: str, tuner: Autotuner, given: dict[str, Any]) -> None:
    """Add what the first configuration says that is not pruned."""
    configs = tuner.configs
    if tuner.early_config_prune:
        configs = list(tuner.early_config_prune(configs, given, **given))
    if not configs:
        raise ValueError(f"{name}: early_config_prune leaves none of its {len(tuner.configs)} configurations")
    given.update(configs[0].all_kwargs())
    if configs[0].pre_hook:
        configs[0].pre_hook(given)


def whole_numbers(name: str, shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise ValueError(f"{name} {shape!r} is not one to three whole numbers from 0 on, as (4,) or (4, 2)")
    return sizes


def tensors_of(args: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among arguments, also of descriptors and in tuples, by name."""
    for name, value in args.items():
        if isinstance(value, tuple):
            yield from tensors_of({f"{name}[{number}]": inner for number, inner in enumerate(value)})
            continue
        if type(value).__module__ == "numpy":
            raise ValueError(f"{name} is of NumPy; torch.from_numpy({name}) or {name}.item() is what a kernel takes")
        tensor = value.base if isinstance(value, TensorWrapper) or hasattr(value, "block_shape") else value
        if not isinstance(tensor, Tensor):
            continue
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            kind = f"a {tensor.layout} tensor on {tensor.device}"
            raise ValueError(f"{name} is {kind}; the machine takes dense ones on the CPU: {name}.cpu()")
        yield name, tensor


def covered_bytes(args: Mapping[str, Any]) -> dict[int, np.ndarray]:
    """Return, of each storage that arguments have a part of, which bytes these are."""
    views = [(tensor, tensor.shape, tensor.stride()) for _, tensor in tensors_of(args)]
    for value in leaves(args.values()):
        if hasattr(value, "block_shape"):  # a descriptor, whose tensor may be another than its base
            views.append((getattr(value.base, "base", value.base), value.shape, value.strides))
    covered: dict[int, np.ndarray] = {}
    for view in views:
        flag(covered, *view)
    for start, flags in list(covered.items()):
        if flags.all():
            del covered[start]
    return covered


def flag(of_storages: dict[int, np.ndarray], tensor: Tensor, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Set the flags of the bytes that a view of a storage has, by where the storage starts."""
    storage, size = tensor.untyped_storage(), tensor.element_size()
    if storage.data_ptr() not in of_storages:
        of_storages[storage.data_ptr()] = np.zeros(storage.nbytes(), bool)
    flags = of_storages[storage.data_ptr()]
    if 0 not in shape:
        steps = [size * stride for stride in strides]
        elements = flags[tensor.storage_offset() * size :]
        np.lib.stride_tricks.as_strided(elements, (*shape, size), (*steps, 1))[...] = True


def empty_bytes(tensors: Mapping[str, Tensor], names: Sequence[str]) -> dict[int, np.ndarray]:
    """Return, by where a storage starts, which of its bytes nobody has written before the launch."""
    empty: dict[int, np.ndarray] = {}
    for name in names:
        check_named("empty", name, tensors)
        tensor = tensors[name]
        flag(empty, tensor, tensor.shape, tensor.stride())
    return empty


def leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Yield values, of tuples those inside."""
    for value in values:
        if isinstance(value, tuple):
            yield from leaves(value)
        else:
            yield value


def pointers_in(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[int, ...], Tensor]]:
    """Yield where an argument holds the address of a tensor of this process, and that tensor: its name and index."""
    for name, table in tensors.items():
        if table.dtype != torch.int64 or not (table > 1 << 32).any():
            continue
        living = tensors_by_address()
        for index in (table > 1 << 32).nonzero().tolist():
            target = living.get(table[tuple(index)].item())
            if target is not None:
                yield name, tuple(index), target


def tensors_by_address() -> dict[int, Tensor]:
    """All tensors of this process that lie on the CPU."""
    tensors = {}
    for living in gc.get_objects():
        if type(living) not in (Tensor, torch.nn.Parameter) or living.layout != torch.strided:
            continue
        if living.device.type == "cpu" and living.numel():
            tensors[living.data_ptr()] = living
    return tensors


def check_named(option: str, name: str, tensors: Mapping[str, Tensor]) -> None:
    if name not in tensors:
        raise ValueError(f"{option} has {name}, which is no tensor of args; those are {', '.join(tensors)}")


def expectations(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    for name, values in expected.items():
        check_named("expected", name, tensors)
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if shape != tuple(tensors[name].shape):
            raise ValueError(f"expected[{name!r}] is {shape}, the argument is {tuple(tensors[name].shape)}")
    return {name: values.to(tensors[name].dtype) for name, values in expected.items()}
