"""Where the gain of overlapping goes with the number P of ranks, from what a run measured: `roofline predict --ranks`.

    T_comm = latency + (messages - 1) * message + bytes of the own node and of others, each at its bandwidth + copies
    time   = skew * P / (P + 1) + ideal(T_gemm, T_comm) + lost

Matmul and gather keep their sizes, and what is gathered is cut into P chunks. A rank receives one message from each
other, for each row block of an arm that cuts the rows. Ranks begin up to `skew` late, and a sample is the slowest
rank's: that is the expected maximum of P even draws. The ideal is the simulator's. What a gather took beyond its
messages in the run, and an arm beyond its ideal, stays, as do the FLOP and all but a P-th of the bytes. Each launch
over some chunks costs again what the cost model says that a matmul takes whatever its K, or less, where the run's arm
was faster than that.
"""

import textwrap
from dataclasses import dataclass, fields
from functools import cache
from statistics import median

from roofline import operations
from roofline.analysis.base import Column, grouped
from roofline.analysis.overlap import arms, messages, style
from roofline.analysis.overlap.arms import base_arm, is_serial
from roofline.analysis.overlap.simulator import hidden_fraction
from roofline.analysis.prediction import cost_model
from roofline.analysis.prediction.model import Model
from roofline.analysis.throughput.metrics import shape_of
from roofline.report import tables, theme
from roofline.report.format import number_text, time_text
from roofline.store.run import Run
from roofline.theory.schedule import at_least_one
from roofline.theory.work import ITEMSIZE

MOST_CHUNKS, MOST_TILES, MOST_PANELS = 32, 256, 6
"""Of arms but `chunk_launches`, whose chunks are taken together beyond; of a table; of the figure."""
NOISE = 0.01
"""By so much of its ideal an arm may well be measured too fast."""


@dataclass(frozen=True)
class Network:
    """The wire between many ranks, in bytes/s and seconds, as `command.NETWORK` has it; None is not known."""

    ranks_a_node: int | None = None
    bandwidth_inside: float | None = None
    bandwidth_between: float | None = None
    latency_inside: float | None = None
    latency_between: float | None = None
    message: float | None = None
    skew: float | None = None

    def __post_init__(self):
        at_least_one(ranks_a_node=1 if self.ranks_a_node is None else self.ranks_a_node)

    def t_comm_s(self, ranks: int, gathered_bytes: int, blocks: int = 1) -> float:
        near = min(ranks, self.ranks_a_node) - 1
        ways = (near, self.bandwidth_inside), (ranks - 1 - near, self.bandwidth_between)
        bytes_s = sum(count * gathered_bytes / ranks / bytes_per_s for count, bytes_per_s in ways if count)
        return self.latency_s(ranks) + (blocks * (ranks - 1) - 1) * (self.message or 0.0) + bytes_s

    def latency_s(self, ranks: int) -> float:
        return self.latency_between if ranks > self.ranks_a_node else self.latency_inside

    def late_s(self, ranks: int) -> float:
        """By which the last of so many ranks begins late, on average."""
        return self.skew * ranks / (ranks + 1)

    def missing(self, most: int) -> list[str]:
        """The options that say what is needed for so many ranks, and is not known."""
        inside, between = (self.ranks_a_node or most) > 1, most > (self.ranks_a_node or most)
        needed = (True, inside, between, inside, between, most > 2, True)
        return [FLAGS[name] for name, is_so in zip(FLAGS, needed, strict=True) if is_so and getattr(self, name) is None]

    def __str__(self) -> str:
        known = {flag: own for name, flag in FLAGS.items() if (own := getattr(self, name)) is not None}
        texts = (f"{own:.3g}" if own >= 1 else time_text(own).replace(" ", "") for own in known.values())
        return " ".join(map(" ".join, zip(known, texts, strict=True)))


FLAGS = {one.name: f"--{one.name.replace('_', '-')}" for one in fields(Network)}


def measured(run: Run) -> Network:
    """What the run says of its wire: nothing where one process owned all ranks. Its skew is such that even draws are as
    far apart as the ranks' unsplit matmuls were."""
    about, wires = run.metadata.get("ranks"), messages.of(run)
    if not about or not wires:
        return Network()
    ranks, a_node, every, pair = about["world"], about["ranks_a_node"], wires["all"], wires["pair"]
    gemms = [(shape, gemm) for shape in run.shapes.values() for gemm in shape.of_role("gemm")]
    each = [[shape.values(gemm, f"rank{rank}_s").values() for rank in range(ranks)] for shape, gemm in gemms]
    apart = [max(times) - min(times) for own in each for times in zip(*own, strict=True)]
    found = {"ranks_a_node": a_node, "skew": median(apart) * (ranks + 1) / (ranks - 1) if apart else None}
    if about["nodes"] > 1 and a_node > 1:  # what all send to all goes both ways, and a pair shares a node
        return Network(**found, bandwidth_inside=pair.bytes_per_s, latency_inside=pair.latency_s)
    message_s = max(0.0, (every.latency_s - pair.latency_s) / (ranks - 2)) if ranks > 2 else None
    where, latency_s = "inside" if about["nodes"] == 1 else "between", every.latency_s - (ranks - 2) * (message_s or 0)
    found |= {f"bandwidth_{where}": every.bytes_per_s, f"latency_{where}": latency_s}
    return Network(**found, message=message_s)


def launch_share(model: Model | None, case) -> float:
    """Of the fastest matmul of `case`, that does not go with K."""
    found = [family for family in model.gemms if family.dtype == case.dtype] if model else []

    def seconds(family, k: float) -> float:
        sizes = case.m, case.n, k, ITEMSIZE[case.dtype] * (k * (case.m + case.n) + case.m * case.n)
        return cost_model.terms(family.load(*sizes, model.machines[case.dtype]), family.constants).time_s

    whole_s, half_s = min(((seconds(one, case.k), seconds(one, case.k / 2)) for one in found), default=(1.0, 0.5))
    return max(0.0, 2 * half_s - whole_s) / whole_s


class Gather:
    """One gather of a run, at any number of ranks, by its records."""

    def __init__(self, run: Run, records: list[dict], network: Network, model: Model | None):
        first, own = records[0], measured(run)
        self.id, self.network, self._records = shape_of(first), network, {r["arm"]: r for r in records}
        self.case, self._workers = operations.parse(self.id)[0], run.shapes[self.id].get("workers", 1)
        self.ranks, self.most = self.case.ranks, getattr(self.case, self.case.sharded)
        late_s, self._copies_s = own.late_s(self.ranks) if own.skew else 0.0, 0.0
        latency_s = first["link_latency_s"] or 0.0
        if not own.missing(self.ranks):
            latency_s = own.latency_s(self.ranks)
            self._copies_s = max(0.0, first["t_comm_s"] - own.t_comm_s(self.ranks, self.case.gathered_bytes))
        self.t_gemm_s, self._costs, share = first["t_gemm_s"] - late_s, {}, launch_share(model, self.case)
        for arm, record in self._records.items():
            for launch in (share, share / 2, share / 4, share / 8, 0.0):
                ideal_s = self._ideal_s(arm, self.ranks, lambda blocks: first["t_comm_s"], latency_s, launch)
                if (lost_s := record["time_s"] - late_s - ideal_s) >= -NOISE * ideal_s:
                    break
            self._costs[arm] = max(0.0, lost_s), launch

    def _ideal_s(self, arm: str, ranks: int, t_comm_s, latency_s: float, launch: float) -> float:
        """In the best number of row blocks; `t_comm_s(blocks)`."""
        base, ends = base_arm(arm), []
        chunks = ranks if base == "chunk_launches" else min(ranks, MOST_CHUNKS)
        for plan in arms.cuts(base, self.case.m, self.case.n, chunks, self._workers):
            comm_s = t_comm_s(plan.row_blocks)
            plan = plan._replace(delays=(latency_s / max(comm_s - latency_s, latency_s), 0.0), launch=launch)
            ends.append(plan.predicted_s(self.t_gemm_s, comm_s, MOST_TILES))
        return min(ends)

    @cache  # noqa: B019 (there are few, for one command)
    def at(self, ranks: int) -> list[dict]:
        """A row for each arm; none for more ranks than there is to cut."""
        if ranks > self.most:
            return []

        def of_blocks(blocks: int = 1) -> float:
            return self._copies_s + self.network.t_comm_s(ranks, self.case.gathered_bytes, blocks)

        t_gemm_s, comm_s, late_s = self.t_gemm_s, of_blocks(), self.network.late_s(ranks)
        times_s = {
            arm: late_s + lost_s + self._ideal_s(arm, ranks, of_blocks, self.network.latency_s(ranks), launch)
            for arm, (lost_s, launch) in self._costs.items()
        }
        return [
            {"gather": self.id, "ranks": ranks, "arm": arm, "t_gemm_s": t_gemm_s, "t_comm_s": comm_s, "time_s": time_s,
             "gain": times_s["serial"] / time_s, "times_threshold": t_gemm_s / comm_s,
             "hidden_fraction": hidden_fraction(t_gemm_s, comm_s, time_s - late_s),
             "measured_s": self._records[arm]["time_s"] if ranks == self.ranks else None}
            for arm, time_s in times_s.items()
        ]  # fmt: skip

    def gains(self, asked: list[int]) -> dict[str, dict[int, float]]:
        """{arm: {P: gain}} of arms that overlap, at what is asked and at powers of two below."""
        known = sorted({*asked, *(2**power for power in range(1, max(asked).bit_length()))})
        own = grouped((row["arm"], row) for ranks in known for row in self.at(ranks) if not is_serial(row["arm"]))
        return {arm: {row["ranks"]: row["gain"] for row in rows} for arm, rows in own.items()}


def gathers(run: Run, cases: list[str], network: Network, model: Model | None) -> list[Gather]:
    """Those of `cases`, or all. Raises ValueError where there is none, or one is not of the run."""
    if run.void:
        raise ValueError(f"nothing can be said from this run: {run.void}")
    valid = (one for one in run.records() if one.get("t_own_ideal_s") and not one["link_off_pace"])
    known = {name: own for name, own in grouped((shape_of(one), one) for one in valid).items() if own[0]["t_serial_s"]}
    if unknown := [case for case in cases if case not in known] or ["at all"] * (not known):
        raise ValueError(f"the run measured no gather {unknown[0]}: it has {tables.named([*known]) or 'none'}")
    return [Gather(run, known[name], network, model) for name in cases or known]


ROW = (
    Column("ranks", header="P"),
    Column("arm", header="arm", right=False),
    Column("t_comm_s", header="T_comm", text=time_text),
    Column("times_threshold", header="x threshold", text=number_text),
    Column("time_s", header="time", text=time_text),
    Column("measured_s", header="measured", text=lambda s: time_text(s) if s else "-", shown=lambda r: r["measured_s"]),
    Column("gain", header="gain", text="{:.2f}".format),
    Column(header="hidden", of_row=lambda r: "-" if is_serial(r["arm"]) else f"{r['hidden_fraction']:.2f}"),
)


def terminal(found: list[Gather], asked: list[int], *, launches_known: bool) -> list[str]:
    """A table for each gather, where the gain goes in words, and what is known and what is not."""
    lines = []
    for gather in found:
        rows, cut = [row for ranks in asked for row in gather.at(ranks)], [one for one in asked if one > gather.most]
        lines.append(f"{gather.id}: T_gemm {time_text(gather.t_gemm_s)} without skew, from P = {gather.ranks}")
        lines += ["", *tables.terminal(rows, ROW), ""] if rows else []
        lines += [words(arm, gains) for arm, gains in gather.gains(asked).items()]
        size = f"{gather.case.sharded}={gather.most} cannot be cut for so many"
        lines += [f"left out, P = {', '.join(map(str, cut))}: {size}", ""] if cut else [""]
    unknown = ["switches that all share", "spills of chunk_outer for smaller chunks", "that flagged arms take 16 ranks"]
    unknown += ["what launches cost, of which small chunks need more (--on RUN with ceilings)"] * (not launches_known)
    return [*lines, f"wire: {found[0].network}", f"not in it: {', '.join(unknown)}"]


def words(arm: str, gains: dict[int, float]) -> str:
    """Where the gain of `arm` is best, and from where on it is below half of that."""
    best = max(gains, key=gains.get)
    if gains[best] <= 1:
        return f"{arm}: no gain at any P"
    below = [ranks for ranks, gain in gains.items() if ranks > best and gain - 1 < (gains[best] - 1) / 2]
    end = f"less than half as much from P = {below[0]} on" if below else "more than half to the end"
    return f"{arm}: gains most at P = {best}, {gains[best]:.2f} x, and {end}"


def draw(run: Run, found: list[Gather], asked: list[int]):
    """Gain over P, a line for each arm, a panel for each gather."""
    if len(found) > MOST_PANELS:
        raise ValueError(f"{len(found)} gathers are too many for a figure, {MOST_PANELS} are the most: name some")
    figure, grey = theme.new(9, 1.2 + 3 * len(found)), {"color": theme.GREY}
    theme.about(figure, run, "Predicted from P as measured: what overlapping buys over serial at other P")
    for axes, gather in zip(figure.subplots(len(found), sharex=True, squeeze=False)[:, 0], found, strict=True):
        gains, here = gather.gains(asked), {row["arm"]: row["measured_s"] for row in gather.at(gather.ranks)}
        for arm, look in style.styles(gains).items():
            axes.plot([*gains[arm]], [*gains[arm].values()], markersize=5, label=arm, **look)
            axes.plot(gather.ranks, here["serial"] / here[arm], markersize=11, **look | {"markerfacecolor": "none"})
        axes.axhline(1, linewidth=0.9, **grey)
        axes.axvline(gather.ranks, linewidth=0.9, linestyle=":", **grey)
        theme.note(axes, "hollow: measured", (gather.ranks, 1), (8, 0), ("data", "axes fraction"), va="top", **grey)
        axes.set(xscale="log", xlim=(1.8, 1.1 * max(asked)), ylabel="gain over serial")
        axes.set_title(gather.id, loc="left", fontsize=10)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_xlabel(f"P ranks\n{textwrap.fill(str(found[0].network), 100, break_on_hyphens=False)}", fontsize=9)
    return figure
