"""The contenders of a benchmark by name, as registry.toml has them, and where each is found. Importing this imports
neither torch nor Triton.

A contender's `path` is `package.module:name` of a callable `matmul(x, w, out, scales)` with two methods: `require(x, w,
out, scales)` raises what it refuses, `describe(x, w, scales)` returns its configuration for these inputs.
`kernels.contract.Kernel` is such a callable for a Triton kernel, `kernels.vendor.Library` for another library's matmul,
and for one of a user's file, whose path is `FILE::NAME`.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from roofline.operations import contenders
from roofline.theory.data import tables_of


@dataclass(frozen=True)
class Contender(contenders.Contender):
    """One implementation of the matmul out[M, N] = x[M, K] @ w[N, K].T."""

    path: str
    _: KW_ONLY
    kind: str = "triton"
    devices: Sequence[str] = ("cuda",)
    default: bool = True
    """Whether it is measured unless other contenders are asked for."""
    beaten_up_to_m: int = 0
    """Rows of x up to which `decode` is faster on a Hopper, in 16 bits: by default it is not timed at so few."""
    dtypes: Sequence[str] = ()
    """The dtypes that it is run in by default. Empty: all."""
    probes: Sequence[str] = ()
    """Kinds of ceilings of its device that it reaches for: "matmul", "read"."""
    version: str = ""
    """The version of a user's file when the run began."""

    def load(self) -> Any:
        """Import the callable. Raises what `load` raises."""
        if self.kind != "user":
            return load(self.path)
        return load("kernels.vendor:of_user")(self.path, self.version)

    def why_not(self, x, w, out=None, scales=None) -> str | None:
        """Why this contender cannot take these inputs on this machine; None if it can. It launches nothing."""
        return contenders.reason(lambda: self.load().require(x, w, out, scales))


def load(path: str) -> Any:
    """Import what `path` names. ValueError where that needs a Triton, or a part of it, which is not installed: Gluon is
    experimental, and a release may move what another had."""
    try:
        return resolve_name(path)
    except ImportError as error:
        if not (error.name or "").startswith("triton"):
            raise
        raise ValueError(
            f"{path} needs Triton 3.7 to 3.9: {error}; install it (on Linux) or take the contender 'torch' or 'cublas'"
        ) from None


CONTENDERS = {name: Contender(name, **fields) for name, fields in tables_of(__file__, "registry.toml").items()}


def of_run(options) -> dict[str, Contender]:
    """The contenders of a run by name: ours, and those of the user's files. What these declare is read when they are
    loaded, in a process that may die of it."""
    versions = dict(options.users)
    of_run = dict(CONTENDERS)
    for name, place in users(options).items():
        of_run[name] = Contender(
            name=name,
            path=place,
            kind="user",
            devices=(options.device,),
            first_call="user",
            version=versions[place],
        )
    return of_run


def users(options) -> dict[str, str]:
    """{name: place} of the user's contenders."""
    return contenders.names([place for place, _ in options.users], CONTENDERS)


BESIDE_LINK = {
    "flagged": "kernels.flagged:example",
    "flagged_spills": "kernels.flagged_spills:example",
    "pieces_counters": "kernels.pieces:example_that_tells",
    "pieces_flags": "kernels.pieces:example_that_waits",
    "warpgroup_beside_copier": "kernels.warpgroup:beside_copier.example",
}
"""{kernel that arms of `collectives` run: path of its `example(config, dtype)`}. These kernels share SMs with the
copier of a link, and must leave room for it."""

ALONE = "flagged", "pieces_counters", "pieces_flags"
"""Of these there are tiles under `NAME_alone` for where nothing copies on the SMs."""

LINKS = {"copier": "collectives.device:example"}
"""{kernel of a link: path of its `example()`}."""

PROMOTED = "blockwise", "warpgroup_blockwise"
"""Kernels that take their sums out of the tensor cores at each step, and wait for them."""


GATED = {"gated": "kernels.gated.kernel:gated.example"} if (Path(__file__).parent / "gated").is_dir() else {}
"""The same of the gated layer's kernel, where its folder is there."""


def examples() -> dict[str, str]:
    """{name of a kernel that is compiled: path of its `example(config, dtype)`}. The example is the KernelLaunch to
    look at, which is never run."""
    ours = {name: f"{contender.path}.example" for name, contender in CONTENDERS.items() if contender.kind == "triton"}
    alone = {f"{name}_alone": BESIDE_LINK[name] for name in ALONE}
    return ours | BESIDE_LINK | alone | GATED


def module_of(kernel: str) -> str:
    """The name of the module of a kernel that is compiled: its class of configurations is the `Config` there."""
    return examples()[kernel].partition(":")[0]


def may_be_hopper() -> bool:
    """Whether the first GPU is a Hopper by NVML, which needs no context on it; True where NVML says nothing."""
    try:
        import pynvml

        pynvml.nvmlInit()
        major, _ = pynvml.nvmlDeviceGetCudaComputeCapability(pynvml.nvmlDeviceGetHandleByIndex(0))
        return major == 9
    except Exception:  # no package, no library, no device: NVML has a type for each
        return True


class Planner(contenders.Planner):
    """Lists the contenders of a matmul for its `options`."""

    def __init__(self, options):
        super().__init__(options, of_run(options).values())

    def names(self, case) -> list[str]:
        """The contenders that were asked for, and those of the user's files; else the defaults of the device, but those
        that lose on `case` in any event. Where nothing is timed, the interpreter also runs the Triton kernels."""
        options = self.options
        if options.contenders or options.users:
            asked = (*(options.contenders or [baseline(options)]), *users(options))
            return [name for name in dict.fromkeys(asked) if name in self.choices()]
        return [name for name, contender in CONTENDERS.items() if self._is_usual(contender, case)]

    def _is_usual(self, contender: Contender, case) -> bool:
        """Whether `contender` is run on `case` where none was asked for."""
        is_of_device = self.options.device in contender.devices
        if not contender.default or (contender.dtypes and case.dtype not in contender.dtypes):
            return False
        if not self.options.timed:
            return is_of_device or contender.kind == "triton"
        if not is_of_device:
            return False
        is_beaten = case.dtype != "fp32" and case.m <= contender.beaten_up_to_m
        return not (is_beaten and may_be_hopper())


def baseline(options) -> str:
    """The contender that the others are compared with: the vendor's of the device, unless the user chose."""
    vendors = (name for name, c in CONTENDERS.items() if c.kind == "vendor" and options.device in c.devices)
    return options.baseline or next(vendors)
