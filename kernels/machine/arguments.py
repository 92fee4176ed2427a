"""The arguments of a check: the launch that they make, and the tensors among them.

An argument that is not right raises ValueError, in one line.
"""

import difflib
import gc
import operator
import re
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime.autotuner import Autotuner, Config, Heuristics
from triton.runtime.jit import JITFunction, TensorWrapper

from .compile import Arguments, Call
from .core.memory import OfBytes
from .ptx_kernel import PtxKernel

Tensors = Mapping[str, Tensor]
"""Tensors by the names of arguments."""


def resolve(kernel: Any, grid: Any, args: Arguments | Sequence[Any], number: int = 1) -> Call:
    """The launch that `kernel[grid](**args)` stands for. An autotuned kernel takes the configuration of this number of
    those that are not pruned; heuristics set the arguments that they are for."""
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
    name = kernel.__name__
    names = kernel.arg_names
    if not isinstance(args, Mapping):
        if len(args) > len(names):
            raise ValueError(f"{name} has {len(names)} arguments, {len(args)} are given; options go by name")
        args = zip(names, args, strict=False)
    given = as_tensors(args)
    configs = [None]
    for wrapper in wrappers:
        if isinstance(wrapper, Heuristics):
            for argument, rule in wrapper.values.items():
                given[argument] = rule(dict(given))
        else:
            configs = configurations(name, wrapper, given)
            configure(configs[min(number, len(configs)) - 1], given)
    check_words(name, names, given)
    everything = {p.name: p.default for p in kernel.params if p.has_default} | given
    lacking = [argument for argument in names if argument not in everything]
    if lacking:
        raise ValueError(f"{name} needs {', '.join(lacking)} too; give it in args")
    if callable(grid):
        grid = grid(everything)
    if number > len(configs):
        raise ValueError(f"configs={number}: {name} has {len(configs)}")
    config = f"{number} of {len(configs)}: {configs[number - 1]}" if len(configs) > 1 else ""
    return Call(kernel, whole_numbers("grid", grid), given, config, len(configs))


def check_words(name: str, names: list[str], given: Arguments) -> None:
    words = [*names, *CUDAOptions.__dataclass_fields__, "debug", "instrumentation_mode"]
    for argument in given:
        if argument not in words:
            near = difflib.get_close_matches(argument, words, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its arguments are {', '.join(names)}"
            raise ValueError(f"{name} has no argument {argument}; {hint}")


def configurations(name: str, tuner: Autotuner, given: dict[str, Any]) -> list[Config]:
    """Those that are not pruned."""
    configs = tuner.configs
    if tuner.early_config_prune:
        configs = list(tuner.early_config_prune(configs, given, **given))
    if not configs:
        raise ValueError(f"{name}: early_config_prune leaves none of its {len(tuner.configs)} configurations")
    return configs


def configure(config: Config, given: dict[str, Any]) -> None:
    """Add the arguments of a configuration, and call its pre_hook."""
    given.update(config.all_kwargs())
    if config.pre_hook:
        config.pre_hook(given)


def whole_numbers(name: str, shape: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        sizes = ()
    if not 1 <= len(sizes) <= 3 or min(sizes) < 0:
        raise ValueError(f"{name} {shape!r} is not one to three whole numbers from 0 on, as (4,) or (4, 2)")
    return sizes


def several(names: str | Sequence[str]) -> Sequence[str]:
    """Names, of which there may be one alone."""
    return [names] if isinstance(names, str) else names


def lines(accept: str | Sequence[str]) -> list[str]:
    """Lines as instructions name them: of a file without its folders, or of PTX."""
    for text in several(accept):
        if not re.fullmatch(r"(\S+:|PTX line )\d+", text):
            raise ValueError(f"accept={text!r}: it is a line as a verdict names it, 'sort.py:214' or 'PTX line 23'")
    return [text.rpartition("/")[2] for text in several(accept)]


def leaves(args: Arguments) -> Iterator[tuple[str, Any]]:
    """Yield arguments by name; instead of a tuple, those inside of it."""
    for name, value in args.items():
        if isinstance(value, tuple):
            yield from leaves({f"{name}[{number}]": inner for number, inner in enumerate(value)})
        else:
            yield name, value


def tensors_of(args: Arguments) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors among arguments by name, also those of descriptors and in tuples."""
    for name, value in leaves(args):
        if type(value).__module__ == "numpy":
            raise ValueError(f"{name} is of NumPy; torch.from_numpy({name}) or {name}.item() is what a kernel takes")
        tensor = value.base if isinstance(value, TensorWrapper) or hasattr(value, "block_shape") else value
        if not isinstance(tensor, Tensor):
            continue
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            kind = f"a {tensor.layout} tensor on {tensor.device}"
            raise ValueError(f"{name} is {kind}; the machine takes dense ones on the CPU: {name}.cpu()")
        yield name, tensor


def covered_bytes(args: Arguments) -> OfBytes:
    """Flags of the bytes that belong to arguments, by the address where their storage starts. A storage whose bytes all
    do is left out."""
    covered: OfBytes = {}
    for _, tensor in tensors_of(args):
        flag(covered, tensor, tensor.shape, tensor.stride())
    for _, value in leaves(args):
        if hasattr(value, "block_shape"):  # a descriptor, whose tensor may be another than its base
            flag(covered, getattr(value.base, "base", value.base), value.shape, value.strides)
    return {start: flags for start, flags in covered.items() if not flags.all()}


def flag(of_storages: OfBytes, tensor: Tensor, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Set the flags of the bytes that a view of a storage has. `of_storages`: flags of each storage's bytes, by the
    address where the storage starts."""
    storage = tensor.untyped_storage()
    size = tensor.element_size()
    flags = of_storages.setdefault(storage.data_ptr(), np.zeros(storage.nbytes(), bool))
    if 0 not in shape:
        steps = [size * stride for stride in strides]
        elements = flags[tensor.storage_offset() * size :]
        np.lib.stride_tricks.as_strided(elements, (*shape, size), (*steps, 1))[...] = True


def empty_bytes(tensors: Tensors, names: Sequence[str]) -> OfBytes:
    """Flags of the bytes that nobody has written before the launch, by the address where their storage starts."""
    empty: OfBytes = {}
    for name in names:
        check_named("empty", name, tensors)
        tensor = tensors[name]
        flag(empty, tensor, tensor.shape, tensor.stride())
    return empty


def as_tensors(args: Any) -> dict[str, Any]:
    """Arguments by name, with a tensor in the place of what has data_ptr(), dtype and shape as one has."""
    given = dict(args)
    for name, value in given.items():
        if isinstance(value, (Tensor, TensorWrapper)) or not (hasattr(value, "data_ptr") and hasattr(value, "shape")):
            continue
        shape = tuple(value.shape)
        strides = value.stride() if hasattr(value, "stride") else torch.empty(shape, device="meta").stride()
        address = value.data_ptr()
        bases = tensors_at([address])
        if not bases:
            raise ValueError(f"{name} is at {address:#x}, where no tensor of torch's lies on the CPU")
        storage = bases[address].untyped_storage()
        offset = (address - storage.data_ptr()) // value.dtype.itemsize
        if min(strides, default=0) < 0:  # which no tensor has: all that lies behind
            shape = (storage.nbytes() // value.dtype.itemsize - offset,)
            strides = (1,)
        given[name] = torch.empty(0, dtype=value.dtype).set_(storage, offset, shape, strides)
    return given


def pointers_in(tensors: Tensors) -> Iterator[tuple[str, tuple[int, ...], Tensor]]:
    """Yield the elements of arguments that are addresses in tensors of this process: the argument's name, the index in
    it, and the tensor."""
    for name, table in tensors.items():
        if table.dtype not in (torch.int64, torch.uint64):
            continue
        numbers = table.view(torch.int64)
        far = (numbers > 1 << 32).nonzero().tolist()
        targets = tensors_at(numbers[numbers > 1 << 32].tolist()) if far else {}
        for index in map(tuple, far):
            target = targets.get(numbers[index].item())
            if target is not None:
                yield name, index, target


def tensors_at(addresses: Sequence[int]) -> dict[int, Tensor]:
    """The tensor of this process, on the CPU, that begins at each address; else one in whose storage it is."""
    exact = {}
    by_storage = {}
    for tensor in sorted(living_tensors(), key=Tensor.element_size):  # so that bytes are the last choice
        exact[tensor.data_ptr()] = tensor
        by_storage[tensor.untyped_storage().data_ptr()] = tensor
    starts = sorted(by_storage)
    found = {}
    for address in addresses:
        start = starts[bisect(starts, address) - 1]
        near = by_storage[start]
        if address in exact:
            found[address] = exact[address]
        elif 0 <= address - start < near.untyped_storage().nbytes():
            found[address] = near
    return found


def living_tensors() -> list[Tensor]:
    """All tensors of this process that lie on the CPU.

    The garbage collector does not list frozen objects, and a check in another thread may have frozen some: they are
    unfrozen for the while.
    """
    was_frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    objects = gc.get_objects()
    if was_frozen:
        gc.freeze()
    tensors = []
    for living in objects:
        if type(living) not in (Tensor, torch.nn.Parameter) or living.layout != torch.strided:
            continue
        if living.device.type == "cpu" and living.numel():
            tensors.append(living)
    return tensors


def check_named(option: str, name: str, tensors: Tensors) -> None:
    if name not in tensors:
        raise ValueError(f"{option} has {name}, which is no tensor of args; those are {', '.join(tensors)}")


def expectations(tensors: Tensors, expected: Tensors) -> dict[str, Tensor]:
    """The values that tensors must hold, in the tensors' own types."""
    wanted = {}
    for name, values in expected.items():
        check_named("expected", name, tensors)
        tensor = tensors[name]
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        if shape != tuple(tensor.shape):
            raise ValueError(f"expected[{name!r}] is {shape}, the argument is {tuple(tensor.shape)}")
        wanted[name] = values.to(tensor.dtype)
    return wanted
