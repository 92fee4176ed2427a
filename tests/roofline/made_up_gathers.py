"""Journals of runs that gather over a wire, written by hand: arms that hide a known share, and their timelines."""

from made_up_run import HEAD, lines_of, save
from matplotlib.text import Text

from roofline.analysis.records import frame
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.ffn import Ffn
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.operations.weight_prefetch import WeightPrefetch
from roofline.report import plots
from roofline.store.journal import load
from roofline.theory.arms import ARMS, base_arm, is_serial

GEMM_S, COMM_S = 20e-3, 16e-3
OURS = {"serial": 1.0, "chunk_launches": 0.1, "row_block_launches": 0.2, "overlapped": 0.05}
"""The share of the shorter one that an arm does not hide."""

OF_A_LAYER = OURS | {"block_launches": 0.15, "all_reduce": 1.0, "layer_launches": 0.25, "chained_launches": 0.02}

ON_CPU = OURS | {"serial_all_cores": 0.4}


def timeline_line(case, arm, gemm_s, comm_s, end_s):
    """Return the line of an arm that waits for every transfer in turn, or for all at once."""
    blocks = 4 if arm.startswith("row_block") else 1
    transfers = [[chunk, block] for block in range(blocks) for chunk in range(1, case.ranks)]
    arrivals_s = [comm_s * (i + 1) / len(transfers) for i in range(len(transfers))]
    if is_serial(arm):
        waits = [[len(transfers), 0.0, comm_s]]
    elif arm == "overlapped":
        waits = [[len(transfers), gemm_s, max(gemm_s, comm_s)]]
    else:
        step = case.ranks - 1 if blocks > 1 else 1
        counts = range(step if blocks > 1 else 0, len(transfers) + 1, step)
        launch_s, now, waits = gemm_s / len(counts), 0.0, []
        for count in counts:
            here_s = max(now, arrivals_s[count - 1] if count else 0.0)
            waits.append([count, now, here_s])
            now = here_s + launch_s
        end_s = now
    line = {"kind": "timeline", "shape": case.id, "contender": arm, "round": 3, "transfers": transfers}
    return line | {"arrivals_s": arrivals_s, "waits": waits, "end_s": end_s}


def gathering(case, gemm_s=GEMM_S, comm_s=COMM_S, *, link="paced", pace=1.0, without=(), rounds=30, lost=OURS):
    """Return the lines of a shape whose arms hide all but `lost`. Contenders of `without` have no samples."""
    arms = [arm for arm in lost if case.op in ARMS[base_arm(arm)].ops]
    about = {"gemm torch": {"role": "gemm"}, "link": {"role": "link"}, "symm_mem": {"link": "NVLink"}}
    times = {arm: max(gemm_s, comm_s) + lost[arm] * min(gemm_s, comm_s) for arm in arms}
    shape_lines = lines_of(
        case, times | {"gemm torch": gemm_s, "link": comm_s}, about=about, rounds=rounds, wobble=1.02,
        baseline="serial", without=without, link=link,
        link_bytes_per_s_requested=case.work.wire_bytes / comm_s / pace if link == "paced" else None,
        row_blocks=4, workers=1, row_tiles=4, column_tiles=1,
    )  # fmt: skip
    if "link" not in without:
        for line in shape_lines[1:]:
            line["values"] = {"link": {"last_arrival_s": line["time_s"]["link"]}}
    shown = [arm for arm in arms if arm not in without and arm != "symm_mem"]
    return shape_lines + [timeline_line(case, arm, gemm_s, comm_s, times[arm]) for arm in shown]


def gather_matmul(tp=16, wire="balance86", ranks=8):
    return AllGatherMatmul("xxl/16", "up", tp, 4096, "fp32", ranks, wire)


def prefetch(m, wire="balance86", ranks=8):
    return WeightPrefetch("xxl/16", "up", 1, m, "fp32", ranks, wire)


def scatter(tp=16, wire="balance86"):
    return MatmulReduceScatter("xxl/16", "down", tp, 4096, "fp32", 8, wire)


def layer(tp=16, wire="balance86"):
    return Ffn("xxl/16", "up_down", tp, 4096, "fp32", 8, wire)


HERE = HEAD | {"machine": HEAD["machine"] | {"source": "cpu"}}
SWEEP = [
    *gathering(gather_matmul(4), 80e-3),
    *gathering(gather_matmul(16)),
    *gathering(gather_matmul(64), 6.1e-3),
    *gathering(gather_matmul(16, "ridge"), comm_s=GEMM_S),
    *gathering(prefetch(64), 7e-3),
    *gathering(prefetch(172), 18.1e-3),
]

LAYER = [
    line
    for of, gemm_s in ((gather_matmul, GEMM_S), (scatter, 0.98 * GEMM_S), (layer, 1.01 * GEMM_S))
    for tp, wire, slower in ((16, "balance86", 1.0), (64, "balance86", 0.4), (16, "ridge", 0.8))
    for line in gathering(of(tp, wire), gemm_s * slower, lost=OF_A_LAYER)
]
"""What comes before a layer, what goes behind it, and both: shapes that lie close together."""


NAMES = ["network_roofline", "overlap", "timeline"]


class Drawn:
    """`Drawn` holds the figures that `draw` made of some lines, and the lines of text on each."""

    def __init__(self, folder, lines, only=()):
        self.run = load(save(folder, lines))
        self.figures = {}
        for name in only or NAMES:
            figure = getattr(plots, name)(self.run if name == "timeline" else frame(self.run))
            if figure is not None:
                self.figures[name] = figure
        self.texts = {
            name: [line.strip() for text in figure.findobj(Text) for line in text.get_text().split("\n") if line]
            for name, figure in self.figures.items()
        }
