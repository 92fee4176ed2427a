"""The contenders of a benchmark, and all that is to be known of each of our kernels.

A kernel's file declares it in one `Kernel` and registers that when it is imported: how it runs and why it may not, what
to compile of it, what the compiler has to make of that, and what a tuning tries. Nothing of that stands in a table of
names elsewhere; what relates kernels to one another is `ORDER`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One implementation of the matmul. All three callables take `x[M, K]` and `w[N, K]`.

    `run(x, w, out)` writes `out[M, N]` and returns it. `config(x, w)` says in one short string which tile (or which
    library) these inputs would get. `why_not(x, w, out=None)` returns None, or the reason this contender cannot take
    these inputs on this machine; it launches nothing.
    """

    name: str
    kind: str = "triton"  # "vendor" (the baseline of its device), "library" or "triton"
    device: str = "cuda"  # where it is timed: "cuda" or "cpu"
    run: Callable[[Tensor, Tensor, Tensor], Tensor]
    config: Callable[[Tensor, Tensor], str]
    why_not: Callable[..., str | None]
    default: bool = True  # measured unless asked otherwise
    first_call_s: float | None = None  # what a first call may take with all it compiles, if that is more than usual


@dataclass(frozen=True, kw_only=True)
class Kernel(Contender):
    """One of ours, with its tiles in the tables of `kernels.tiles` under its name. Without `run` it is no contender:
    an arm runs it, and it is compiled and looked at as the others are."""

    run: Callable[..., Tensor] | None = None
    """Takes `config=` too where the kernel can be tuned."""
    config: Callable[[Tensor, Tensor], str] | None = None
    why_not: Callable[..., str | None] | None = None

    prepare: Callable[..., Any] | None = None
    """(x, w, out, Config) -> the KernelLaunch for checked tensors, which `kernels.machine` runs."""
    variants: Callable[[Any], Sequence[Any]] = lambda config: (config,)
    """Config -> those that share its tile and are code of their own, or take other ways through it."""
    jit: Any  # the Triton function, so that nobody times an interpreted one; None of a kernel that is absent
    example: Callable[..., Any]
    """(Config, dtype) -> the KernelLaunch to be compiled and looked at, as those that count: it is never run."""
    least_tma: tuple[int, int] = (0, 0)  # TMA loads and stores in its code, if it multiplies on tensor cores
    register_counts: tuple[int, int] | None = None
    """Registers a thread that setmaxnreg must give the consumers and the producer, if its warps are specialised."""
    beside_link: bool = False  # shares SMs with a link's copier, to which it must leave room

    modelled: str = ""  # the table of whose unmeasured entries the model of waves takes the best for a shape
    flattens: bool = False  # has `flatten`
    rasters: tuple[str, ...] = ("m", "n")  # dimensions along which it can group tiles
    grid: dict[str, tuple] = field(default_factory=dict)
    """Values of fields of its configuration that `kernels.tune` tries; without them it cannot be tuned."""


CONTENDERS: dict[str, Contender] = {}
KERNELS: dict[str, Kernel] = {}

ORDER = ("decode", "persistent", "tiled")
"""Our kernels for a GPU, as `kernels.matmul` takes them: the first that can run. `warpgroup` is for the same shapes as
`persistent`."""


def register(contender: Contender) -> Contender:
    """Add a contender, or a kernel, under its name, once."""
    if contender.name in CONTENDERS or contender.name in KERNELS:
        raise ValueError(f"contender {contender.name!r} is registered already; give the new one another name")
    if isinstance(contender, Kernel):
        KERNELS[contender.name] = contender
    if contender.run:
        CONTENDERS[contender.name] = contender
    return contender


def register_absent(
    *names: str, why: str = "Triton is not installed; install it (Linux only) or take the contender 'torch' or 'cublas'"
) -> None:
    """Stand-ins for kernels that cannot be imported here: they give `why` as the reason, and raise it when they are
    run or compiled."""

    def refuse(*args: Any) -> Any:
        raise ValueError(why)

    for name in names:
        register(Kernel(
            name=name, run=refuse, config=lambda x, w: "none", why_not=lambda x, w, out=None: why,
            jit=None, example=refuse,
        ))  # fmt: skip
