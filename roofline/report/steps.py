"""How training steps are shown: tokens a second, what bf16 and compiling gain, and what a call's time goes to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roofline.plots.steps import KINDS
from roofline.report.sections import Section
from roofline.report.tables import texts

if TYPE_CHECKING:
    from pandas import DataFrame

FIGURES = "step_shares", "step_memory"
COLUMNS = ("shape", "contender", "tokens_per_s", "compile_s", *(f"{kind}_share" for kind in KINDS))


def section(frame: DataFrame) -> Section:
    """Return the section of what trains a transformer."""
    rows = frame[frame["tokens_per_s"].notna()]
    return Section(
        "Training steps",
        "Tokens of the batch over the time of a call, and the shares of that time by torch's profiler, once all timing "
        "was over. Modes take no turns with one another: where one is compared with fp32, minutes lie between them.",
        FIGURES,
        texts(rows, COLUMNS),
        tuple(gains(rows)),
        long=True,
    )


def gains(rows: DataFrame) -> list[str]:
    """Return a line for each size and part: by how much compiling is faster in each mode, and each mode than fp32."""
    lines = []
    sizes = rows["shape"].str.extract(r"-(l\d.*)-\w+-\w+$")[0]
    for (size, part), group in rows.groupby([sizes, "part"], sort=False):
        rates = group.pivot(index="dtype", columns="contender", values="tokens_per_s").reindex(group["dtype"].unique())
        words = []
        if {"eager", "compiled"} <= {*rates}:
            pairs = (rates["compiled"] / rates["eager"]).dropna().items()
            words += [f"compiled {ratio:.2f} x as fast as eager in {mode}" for mode, ratio in pairs]
        if "fp32" in rates.index:
            gained = (rates / rates.loc["fp32"]).drop("fp32").stack()
            words += [f"{mode} {ratio:.2f} x as fast as fp32, {name}" for (mode, name), ratio in gained.items()]
        lines += [f"{part} of {size}: {'; '.join(words)}"] if words else []
    return lines
