"""Which cases the operations that gather over a wire are measured on, by default and by what the user chose.

With P = 8 ranks and the bandwidth that puts the exercise's balance under the chip, tensor-parallel degrees (for the
all-gather matmul) and tokens on a chip (for the weight prefetch) run from one side of the balance to the other. Where
the model is scaled down, so is the balance: 2750 / 16 for `xxl/16`, and half of it for elements of 4 bytes, which puts
the ridge at the same degree.
"""

from dataclasses import dataclass

from roofline.theory.models import parse as parse_model
from roofline.theory.wires import EXERCISE_BALANCE, INFINIBAND_BYTES_PER_S, NVLINK_BYTES_PER_S, Wire
from roofline.theory.work import ITEMSIZE, AllGatherMatmul, WeightPrefetch

RANKS = (8, 4, 2)
"""The first that divides d_model and d_ff gathers by default; where none does, nobody."""

LEAST_TOKENS = 1024
"""Of --ffn-tokens, the all-gather matmul takes those from here on: fewer rows have nothing to be cut in."""

BALANCE = "balance"
"""Stands for the exercise's balance, scaled to model and dtype."""

MODES = {
    # mode: (rows, tp, tokens of the prefetch, further wires at one tp, further ranks at one tp)
    "cuda": (
        (8192,),
        (4, 8, 16, 26, 32, 64),
        (1024, 2048, EXERCISE_BALANCE, 4096, 8192),
        ("ridge", "ridge1.4", Wire("fixed", NVLINK_BYTES_PER_S).token, Wire("fixed", INFINIBAND_BYTES_PER_S).token),
        (4,),
    ),
    "cpu": ((4096,), (4, 16, 26, 64), (64, 128, 172, 256, 512), ("ridge", "ridge1.4"), ()),
    "test-cuda": ((200,), (8,), (100,), (), ()),
    "test-cpu": ((200,), (8,), (100,), (), ()),
}


@dataclass(frozen=True)
class Sweep:
    """Rows, degrees, ranks and wires, resolved. `more_wires` and `more_ranks` are measured at one degree only."""

    rows: tuple[int, ...] = ()
    tp: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    """Of the weight prefetch, as is `prefetch_tp`."""
    prefetch_tp: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    wires: tuple[str, ...] = ()
    more_wires: tuple[str, ...] = ()
    more_ranks: tuple[int, ...] = ()

    def all_gather_matmuls(self, model: str, dtype: str) -> list[AllGatherMatmul]:
        def cases(degrees, ranks, wires) -> list[AllGatherMatmul]:
            return [
                AllGatherMatmul(model, "up", tp, m, dtype, p, exercise(model, dtype) if wire == BALANCE else wire)
                for p in ranks
                for wire in wires
                for tp in degrees
                for m in self.rows
            ]

        found = cases(self.tp, self.ranks, self.wires)
        if found and (self.more_wires or self.more_ranks):
            middle = (_middle(found),)
            found += cases(middle, self.ranks, self.more_wires) + cases(middle, self.more_ranks, self.wires)
        return found

    def weight_prefetches(self, model: str, dtype: str) -> list[WeightPrefetch]:
        return [
            WeightPrefetch(model, "up", tp, m, dtype, p, exercise(model, dtype) if wire == BALANCE else wire)
            for p in self.ranks
            for wire in self.wires
            for tp in self.prefetch_tp
            for m in self.tokens
        ]


def make(
    mode: str,
    model: str,
    ranks: tuple[int, ...] = (),
    wires: tuple[str, ...] = (),
    *,
    tokens: tuple[int, ...] = (),
    tp: tuple[int, ...] = (),
) -> Sweep:
    """The sweep of `mode` (`cuda`, `cpu`, or with `test-` before it), with what the user chose in the place of it."""
    rows, degrees, prefetched, more_wires, more_ranks = MODES[mode]
    d_model, d_ff = parse_model(model).d_model, parse_model(model).d_ff
    dividing = [count for count in RANKS if d_model % count == d_ff % count == 0]
    return Sweep(
        rows=tuple(m for m in tokens if m >= LEAST_TOKENS or mode.startswith("test")) if tokens else rows,
        tp=tp or tuple(degree for degree in degrees if d_ff % degree == 0) or (1,),
        tokens=tokens or prefetched,
        prefetch_tp=tp or (1,),
        ranks=ranks or tuple(dividing[:1]),
        wires=wires or ((BALANCE,) if "test" not in mode else ("1GBps",)),
        more_wires=() if wires or tp else more_wires,
        more_ranks=() if ranks or tp or dividing[:1] != [8] else more_ranks,
    )


def nobody(model: str) -> str:
    """Why no ranks gather for `model`, where none of `RANKS` fits it."""
    sizes = parse_model(model)
    counts = ", ".join(map(str, RANKS))
    return f"none of {counts} ranks divides both d_model={sizes.d_model} and d_ff={sizes.d_ff} of {model}"


def exercise(model: str, dtype: str) -> str:
    """The exercise's balance, scaled to `model` and `dtype`: a token of `theory.wires`.

    >>> exercise("xxl", "bf16"), exercise("xxl/16", "fp32")
    ('balance2750', 'balance86')
    """
    divisor = int(model.partition("/")[2] or 1)
    balance = EXERCISE_BALANCE / divisor * 2 / ITEMSIZE[dtype]
    return Wire("balance", round(balance) if balance >= 10 else balance).token


def _middle(cases: list[AllGatherMatmul]) -> int:
    """The degree whose wire intensity is the least above the exercise's balance; else that of the greatest."""
    by_intensity = sorted(cases, key=lambda case: case.work.wire_intensity)
    balance = float(exercise(by_intensity[0].model, by_intensity[0].dtype).removeprefix("balance"))
    above = [case for case in by_intensity if case.work.wire_intensity > balance]
    return (above or by_intensity[-1:])[0].tp
