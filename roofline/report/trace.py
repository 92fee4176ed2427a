"""What a step hides of its communication, by the trace that torch.profiler wrote of it; `roofline.hidden` says more."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy
from pandas import DataFrame, concat

from roofline.report.format import time_text
from roofline.report.plots import theme
from roofline.report.tables import markdown

PATTERNS = {
    "computing": "kernel (?!.*nccl)|cpu_op aten::",
    "matmul": r"kernel (?!.*nccl)(?i:.*((?<!fb)gemm|gemv|nvjet|matmul|triton_tem\w*mm))|cpu_op aten::\w*mm$",
    "communication": r"kernel .*nccl|gpu_memcpy Memcpy PtoP|\w+ gloo:",
    "waits": r"cpu_op \w*c10d|\w+ gloo:(?!send|recv)",
}
"""{what goes on: of which events, by category and name}. A CPU that waits computes nothing: what it calls within a call
of c10d, or on a thread of gloo's, is part of a transfer. What gloo sends or receives goes on after its call.

In HolisticTraceAnalysis (facebookresearch, hta/common/types.py at f4d0062c), too, NCCL's kernels communicate, and
others compute. It knows no matmuls. Other public readers know them by gemm, nvjet, cutlass and matmul. cutlass is left
out, since FlashAttention's kernels have it in their names, and CUTLASS's own matmuls have gemm. fbgemm's kernels embed.
Inductor's templates multiply; what else it calls mm adds the bias of one. aten::linear and aten::matmul call addmm, mm
or bmm."""

ALL = "all streams"

COLOURS = {"computing": "#9ecae1", "matmul": "#2171b5", "communication": "#fd8d3c", "both": "#0006"}
"""The last one is a shade over the others."""


@dataclass(frozen=True)
class HiddenTime:
    """What `roofline.hidden` found."""

    hidden: float | None
    """None where the trace has no computing, or no communication."""
    sentence: str
    streams: DataFrame
    """Seconds of each stream of a GPU, or thread of a CPU; `both_s` is its part in the time of both. The last row, `all
    streams`, is no sum: what several do at once counts once."""
    lanes: dict[str, DataFrame]
    """As `lanes_of`."""
    computing_s: float
    matmul_s: float
    communication_s: float
    both_s: float
    """Computing and communication at once, on all streams."""

    def __str__(self):
        table = self.streams.map(time_text).set_axis([*COLOURS], axis=1)
        return f"{markdown(table.reset_index())}\n\n{self.sentence}"

    def plot(self, path) -> None:
        """Draw the timeline into a file, a row for each stream."""
        from matplotlib.ticker import EngFormatter

        figure = theme.new(11, 2 + 0.4 * len(self.streams), self.streams, self.sentence)
        axes = figure.subplots()
        for kind, lane in self.lanes.items():
            for y, stream in enumerate(lane):
                half = 0.4 * lane[stream]
                half = half[half.diff().ne(0)]
                axes.fill_between(half.index, y - half, y + half, step="post", color=COLOURS[kind], lw=0, label=kind)
        theme.name_rows(axes, dict(enumerate(lane)))
        axes.xaxis.set_major_formatter(EngFormatter("s"))
        theme.legend(figure, title="")
        figure.savefig(path)


def hidden(*traces) -> HiddenTime:
    """As `roofline.hidden`."""
    tables = [*map(read, traces)]
    if len(traces) > 1:
        take_waiting_out(tables, traces)
    lanes = lanes_of(tables[0])
    at_s = lanes["both"].index
    lasts_s = numpy.diff(at_s, append=at_s[-1:])
    sums = {f"{kind}_s": lane.mul(lasts_s, axis=0).sum() for kind, lane in lanes.items()}
    streams = DataFrame(sums).rename_axis("stream")
    total = streams.loc[ALL]
    fraction = None
    sentence = f"{traces[0]} has no computing or no communication: of a GPU it has none without ProfilerActivity.CUDA."
    if shorter_s := min(total.computing_s, total.communication_s):
        fraction = total.both_s / shorter_s
        sentence = (
            f"hidden {fraction:.2f}: both went on at once for {time_text(total.both_s)}, the shorter of computing and "
            f"communication for {time_text(shorter_s)}.\nWaiting for other ranks counts as communication, in NCCL's "
            f"kernels as far as all traces have it ({len(traces)} given)."
        )
    return HiddenTime(fraction, sentence, streams, lanes, **total)


def read(path) -> DataFrame:
    """What computes or communicates, in the order in which it began: its `stream`, `name`, `group` of ranks, `start_s`
    and `end_s`, and which of `PATTERNS` it is. Raises ValueError for a file that is no trace."""
    try:
        content = Path(path).read_bytes()
        if str(path).endswith(".gz"):
            content = gzip.decompress(content)
        events = json.loads(content)["traceEvents"]
    except Exception as error:
        message = f"{path} is no trace ({error!r}): give what torch.profiler's export_chrome_trace wrote"
        raise ValueError(message) from None
    table = DataFrame(events, columns=["ph", "cat", "name", "tid", "ts", "dur", "args"])
    unit = "thread "
    shown = table.ph.eq("X")
    if table.cat.eq("kernel").any():
        unit = "stream "
        shown &= table.cat.isin(["kernel", "gpu_memcpy"])
    table = table[shown].sort_values("ts", ignore_index=True)
    label = table.cat.fillna("") + " " + table.name
    for kind, pattern in PATTERNS.items():
        table[kind] = label.str.match(pattern)
    table["stream"] = unit + table.tid.astype(str)
    table["group"] = table.args.str.get("Process Group Ranks").fillna("")
    table["start_s"] = 1e-6 * (table.ts - table.ts.min())
    table["end_s"] = table.start_s + 1e-6 * table.dur
    return table[table[[*PATTERNS]].any(axis=1)].copy()


def take_waiting_out(tables: list[DataFrame], traces) -> None:
    """Let each kernel of NCCL in the first table begin so late that it takes the least time of the same one over the
    ranks: who comes early waits first. The nth of a name and a group of ranks are the same. Raises ValueError."""
    ranks = concat(tables, keys=range(len(tables)), names=["rank"])
    collectives = ranks[ranks.name.str.contains("nccl")]
    same = collectives.groupby(["name", "group", "rank"])
    counts = same.size().unstack()
    are_equal = counts.nunique(axis=1).max() == 1
    if 0 not in counts or not are_equal or counts.count(axis=1).max() < 2:
        names = ", ".join(map(str, traces))
        raise ValueError(
            f"{names} have not the same kernels of NCCL: give the same steps of ranks of one group, or one"
        )
    lasts_s = collectives.end_s - collectives.start_s
    least_s = lasts_s.groupby([collectives.name, collectives.group, same.cumcount()]).transform("min")
    begins_s = collectives.end_s - least_s
    tables[0].update(begins_s.loc[0].rename("start_s"))


def lanes_of(ran: DataFrame) -> dict[str, DataFrame]:
    """{what goes on: whether it does in each stream, from the time in the index, in seconds, to the next}"""
    kinds = ran[[*PATTERNS]].astype(int)
    begun = kinds.set_index([ran.start_s, ran.stream])
    ended = kinds.set_index([ran.end_s, ran.stream])
    changes = concat([begun, -ended]).groupby(level=[0, 1]).sum()
    going = changes.unstack(fill_value=0).cumsum().gt(0)
    works = ~going["waits"]
    computing, communication = going["computing"] & works, going["communication"]
    both = computing.any(axis=1) & communication.any(axis=1)
    lanes = {
        "computing": computing,
        "matmul": going["matmul"] & works,
        "communication": communication,
        "both": (computing | communication).mul(both, axis=0),
    }
    for lane in lanes.values():
        lane[ALL] = lane.any(axis=1)
    return lanes
