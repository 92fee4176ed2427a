"""The launches that a host function makes, noted in place of being run: no GPU needed.

So a function that is not ours can be looked at (`kernels.inspect FILE::NAME`) and run on the machine (`tests.hopper
FILE::NAME`): it is called with tensors of a CPU, and each `kernel[grid](...)` in it becomes a `KernelLaunch`. Whatever
else it does, such as allocating and zeroing, is done.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

from torch import Tensor
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from kernels.contract import KernelLaunch


def launches_of(function: Callable, x: Tensor, w: Tensor, out: Tensor, **scales: Any) -> list[KernelLaunch]:
    """The launches of Triton and Gluon kernels that function(x, w, out=out, **scales) makes, in their order; for an
    autotuned kernel, those of its first configuration.

    Raises ValueError where it makes none, and where it raises.
    """
    launches: list[KernelLaunch] = []

    def note(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        named = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        shape = grid(named) if callable(grid) else grid
        launches.append(KernelLaunch(kernel, (*shape, 1, 1)[:3], named))

    def take_first(tuned: Autotuner, *args: Any, **kwargs: Any) -> None:
        tuned.fn.run(*args, **kwargs, **tuned.configs[0].all_kwargs())

    with mock.patch.object(JITFunction, "run", note), mock.patch.object(Autotuner, "run", take_first):
        try:
            function(x, w, out=out, **scales)
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            raise ValueError(f"on tensors of a CPU it raises {type(error).__name__}: {first}") from error
    if not launches:
        raise ValueError("it launches no Triton kernel: there is nothing to compile")
    return launches
