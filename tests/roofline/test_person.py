"""What a person sees of a run: kinds of things, each with its smallest input and the right outcome."""

import re
from itertools import combinations
from pathlib import Path

import pandas
import pytest
from made_up_gathers import HERE, OURS, gather_matmul, gathering
from made_up_run import END, HEAD, ceiling, lines_with_probe, save, shape

from roofline.analysis.records import frame
from roofline.commands.cli import main
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.operations.weight_prefetch import WeightPrefetch
from roofline.report import plots, write
from roofline.report.plots import theme
from roofline.report.tables import ABOVE
from roofline.report.write import sections, terminal
from roofline.store.journal import load

LOW_ROOF = ceiling("matmul", 1e9, dtype="bf16"), ceiling("read", 1e9)
HIGH_ROOF = ceiling("matmul", 750e12, dtype="bf16"), ceiling("read", 40e12)
FAST = {"cublas": 2e-6, "tiled": 1e-6}


SHARES = [  # ceilings, lines of shapes, whether a share is marked
    (LOW_ROOF, lines_with_probe(16, FAST, 1e-6, 1e3), True),
    (HIGH_ROOF, lines_with_probe(16, FAST, 1e-6, 1e12), False),
    ((), shape(16, FAST), False),
]


@pytest.mark.parametrize(("roofs", "shapes", "is_marked"), SHARES)
def test_a_share_above_its_roof_is_marked_wherever_it_stands(tmp_path, roofs, shapes, is_marked):
    run = load(save(tmp_path / "run", [HEAD, *roofs, *shapes, END]))
    shown, whole = terminal(run), sections(run, frame(run), ())
    marked = [line for line in shown if "%" in line and line.endswith(" !")]
    assert (bool(marked), shown.count(ABOVE)) == (is_marked, int(is_marked))
    for section in whole:
        cells = [] if section.table is None else section.table.to_numpy().ravel()
        assert (ABOVE in section.lines) == any(cell.endswith(" !") for cell in cells)
    assert any(ABOVE in section.lines for section in whole) == is_marked


WORST = [  # lines of a run, how its terminal begins
    ([HEAD, *HIGH_ROOF, *shape(16, {"cublas": 2e-6, "tiled": 2e-6}), END], ["nothing wrong"]),
    ([HEAD, *LOW_ROOF, *lines_with_probe(16, FAST, 1e-6, 1e3), END], ["above the roof", "roof drifted", "faster"]),
    (
        [HEAD, *LOW_ROOF, *shape(16, {"cublas": 1e-6, "tiled": 2e-6}, stopped_by="interrupt", throttled=True)],
        ["cut off", "throttled", "above the roof", "and 2 more in the report"],
    ),
]


@pytest.mark.parametrize(("lines", "begins"), WORST)
def test_the_worst_findings_stand_above_the_first_table(tmp_path, lines, begins):
    shown = terminal(load(save(tmp_path / "run", lines)))
    assert shown[0] == "Findings"
    assert [line.partition(":")[0] for line in shown[1 : shown.index("")]] == begins


LEFT_BEHIND = [("", False), ("--benchmark-only", False), ("--benchmark-only --benchmark-autosave", True)]


@pytest.mark.parametrize(("words", "is_there"), LEFT_BEHIND)
def test_a_storage_is_made_where_something_is_saved(run_project, words, is_there):
    run = run_project("-k", "torch", *words.split())
    assert run.code == 0
    assert (run.root / ".benchmarks").exists() == is_there


def test_the_summary_names_who_failed(run_project):
    assert "\nFAILED test_small.py::test_matmul[" in run_project("--benchmark-only", "-k", "wrong").text


ACCOUNTS = [  # options, what the account says, what it does not
    ("--model 5120,13824 --fsdp 64", ("memory: not known of D,F alone; add --blocks N, --gate",), ("fits", "MEMORY")),
    ("--model mine@5120x13824 --fsdp 64 --tokens 4096", ("memory: not known",), ("fits", "MEMORY", "GB  ")),
    ("--model 5120,13824 --blocks 40 --fsdp 64", ("FFN only: 2 matrices", " 5,662,310,400 weights"), ("not known",)),
    ("--model 5120,13824 --blocks 40 --gate --fsdp 64", ("FFN only: 3 matrices", "8,493,465,600"), ("not known",)),
    ("--model 5120,13824 --blocks 40 --vocabulary 32000", ("2 of 32,000 x D;", "5,989,990,400"), ("embeddings",)),
    ("--chip h100", ("\nH100 SXM: ", "'h100' is taken for H100 SXM; there is the H100 PCIe too"), ()),
    ("--chip A100", ("\nA100 SXM: ", "'A100' is taken for A100 SXM"), ("there is",)),
    ("--chip h100pcie --fsdp 2", ("\nH100 PCIe: ",), ("taken for",)),
    ("--chip h200", ("\nH200: ",), ("taken for",)),
]


@pytest.mark.parametrize(("line", "texts", "absent"), ACCOUNTS)
def test_an_account_says_what_it_lacks_and_takes_what_it_is_given(capsys, line, texts, absent):
    assert main(["account", *line.split()]) == 0
    shown = " ".join(capsys.readouterr().out.split(" "))
    assert [text for text in texts if text not in shown.replace("\n  ", " ")] == []
    assert [text for text in absent if text in shown] == []


DIVISORS = [  # operation, tokens, the option that the size is of
    (MatmulReduceScatter, "down", 1, "the 1 that", "--ffn-tokens"),
    (AllGatherMatmul, "up", 16, "the 100 that", "--ffn-model"),
    (WeightPrefetch, "up", 16, "the 300 that", "--ffn-tp"),
]


@pytest.mark.parametrize(("case", "layer", "m", "size", "option"), DIVISORS)
def test_a_number_of_ranks_that_does_not_divide_names_the_option(case, layer, m, size, option):
    with pytest.raises(ValueError, match=f"ranks=8 does not divide {size} .* choose another {option}, or --ffn-ranks"):
        case("100x300", layer, 1, m, "fp32", 8, "ridge")


def test_attention_of_one_length_has_no_slope_and_no_nan():
    rows = [
        {"op": "attention", "contender": name, "m": 256, "mask": "full", "part": part, "batch": 8, "heads": 1,
         "width": 64, "time_s": 1e-3, "saved_bytes": 1e6 * size}
        for name, size in (("eager", 3), ("sdpa", 1))
        for part in ("forward", "backward")
    ]  # fmt: skip
    figure = plots.attention(pandas.DataFrame(rows))
    words = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert words == [["eager", "sdpa"]] * 3


def test_titles_of_the_network_roofline_say_different_things(draw):
    figure = draw([HERE, *gathering(gather_matmul(), lost=OURS), END], "network_roofline").figures["network_roofline"]
    (title,) = (axes.get_title() for axes in figure.axes)
    gain = figure.get_suptitle().partition("over serial, ")[2].partition(" in ")[0]
    assert gain.endswith(" x")
    assert gain not in title


@pytest.mark.parametrize("size", [7, 8, 8.5, 9, 10])
def test_labels_of_points_that_are_near_stand_apart(size):
    figure = theme.new(4, 4)
    axes = figure.subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    places = {"ridge1.4": 0.5, "tp=16": 0.51, "P=4": 0.52}
    labels = [theme.note(axes, name, (x, 0.7), (0, -7), fontsize=size) for name, x in places.items()]
    theme.separate(figure, [labels])
    boxes = [label.get_window_extent(figure.canvas.get_renderer()).padded(1) for label in labels]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]


def test_figures_of_a_page_are_as_wide_as_a_telephone():
    page = (Path(write.__file__).parent / "page.html").read_text(encoding="utf-8")
    (rule,) = re.findall(r"^figure svg {(.*)}$", page, re.MULTILINE)
    assert "width: 100%" in rule
    assert "min-width" not in rule
