"""What reports say first: each rule by data that triggers it, and the page that lists them."""

import json
import re

import pytest
from features import unfilled
from made_up_gathers import HERE, ON_CPU, OURS, gather_matmul, gathering
from made_up_run import END, HEAD, LINES, ceiling, lines_with_probe, shape

from conftest import ROOT
from roofline.analysis.comparison import compare
from roofline.analysis.fields import FIELDS
from roofline.analysis.overlap import LOST
from roofline.analysis.records import frame, records_of
from roofline.operations.options import FLAGS
from roofline.report import findings
from roofline.report.tables import ABOVE
from roofline.report.write import body, terminal, write
from roofline.store.stats import grouped

PAGE = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
RULES = PAGE.partition("\n## Findings\n")[2].partition("\n## ")[0]

PLAIN = {"cublas": 2e-6, "tiled": 2e-6}
LOW_ROOF = ceiling("matmul", 1e9, dtype="bf16"), ceiling("read", 1e9)
MISSING = {"kind": "not_measured", "case": "a", "reason": "wrong"}


@pytest.fixture
def findings_by_rule(loaded):
    """`findings_by_rule(lines)` returns {rule: its lines} of the run that is journalled so."""

    def find(lines):
        run = loaded(lines)
        texts = [line.partition(": ") for line in findings.findings(run, frame(run))]
        return grouped((rule, text) for rule, _, text in texts)

    return find


def run_of(*lines, **head):
    """Return the lines of a whole run."""
    return [HEAD | head, *lines, END]


def run_of_arms(lost):
    """Return the lines of a whole run on a CPU, whose arms hide all but `lost`."""
    return [HERE, *gathering(gather_matmul(), lost=lost), END]


def test_the_most_important_is_first_and_what_is_good_last(findings_by_rule):
    assert [*findings_by_rule(LINES)] == ["throttled", "slower", "roof drifted", "not measured", "faster"]
    text = "matmul: tiled on 1 of 1 shapes, than cublas; best 1.053 [1.053, 1.053]: tiled on up, tp 1, M 16, bf16"
    assert findings_by_rule(run_of(*shape(16, {"cublas": 2e-6, "tiled": 1.9e-6}))) == {
        "nothing wrong": ["no rule of docs/start.md speaks against these numbers"],
        "faster": [text],
    }


def test_an_arm_over_its_own_fabric_is_none_of_those_and_without_all_cores_serial_is_the_baseline(findings_by_rule):
    assert "faster" not in findings_by_rule(run_of_arms({"serial": 1.0, "symm_mem": 0.1}))
    (faster,) = findings_by_rule(run_of_arms(OURS))["faster"]
    assert "2 of" not in faster
    assert "than serial; best" in faster


def test_arm_below_its_own_ideal_names_what_it_lost_to(findings_by_rule):
    (line,) = findings_by_rule(run_of_arms(ON_CPU | {"row_block_launches": 0.7}))["below own ideal"]
    assert line.startswith("all_gather_matmul: row_block_launches on 1 of 1 shapes, lost mostly to launches and what ")
    assert line.endswith("least 77 %: row_block_launches on up, tp 16, P 8, M 4096, fp32, wire balance86")
    assert "below own ideal" not in findings_by_rule(run_of_arms(ON_CPU | {"row_block_launches": 0.1}))


def test_a_void_case_has_no_other_finding(findings_by_rule):
    void = {"throttled": True, "others_share": 0.3}
    slow = gathering(gather_matmul(), pace=0.7, rounds=12, lost=OURS | {"chunk_launches": 3.0})
    slow[0]["telemetry"] |= void
    assert [*findings_by_rule(run_of(*slow))] == ["void"]
    lines = run_of(*slow, *gathering(gather_matmul(64), lost=OURS | {"chunk_launches": 2.0}))
    (slower,) = findings_by_rule(lines)["slower"]
    assert slower.startswith("all_gather_matmul: chunk_launches on 1 of 1 shapes, than serial; worst")


def disturbed(**telemetry):
    """Return lines of a run with this telemetry."""
    line, *rounds = shape(16, PLAIN)
    return run_of(line | {"telemetry": {"throttled": None} | telemetry}, *rounds)


def run_with(variables, source="cpu"):
    """Return lines of a run of four cores with these environment variables."""
    head, *rest = run_of(*shape(16, PLAIN))
    machine = head["machine"] | {"source": source, "cores": 4, "environment": variables}
    return [head | {"machine": machine}, *rest]


def test_two_rounds_have_no_interval_verdict_or_finding_but_that_they_are_few(loaded, findings_by_rule, tmp_path):
    times = {"cublas": 2e-7, "tiled": 4e-3}
    read, matmul = ceiling("read", 1e9), ceiling("matmul", 1e9, dtype="bf16")
    lines = run_of(*lines_with_probe(16, times, 1e-6)[:3], read, matmul)
    telemetry = {"throttled": True, "throttle_reasons": "power cap", "others_share": 0.5}
    lines[1] |= {"round_count": 2, "telemetry": telemetry}
    for line in (read, matmul):
        del line["low"], line["high"]
    assert {*findings_by_rule(lines)} <= {"few rounds", "roof drifted"}
    run = loaded(lines)
    (record,) = [row for row in records_of(run) if row["contender"] == "tiled"]
    assert [record[name] for name in ("time_low_s", "ratio_low", "of_roof_high")] == [None] * 3
    json.dumps(record, allow_nan=False)
    write(tmp_path / "run")
    assert "| 5e-05 [unknown] |" in (tmp_path / "run" / "report.md").read_text()
    with pytest.raises(ValueError, match="nothing can be compared"):
        compare([run], [run])


def test_one_sample_of_ten_that_waited_is_no_finding(findings_by_rule):
    lines = run_of(*shape(16, PLAIN, rounds=40))
    lines[0] |= {"method_version": 7, "machine": HEAD["machine"] | {"source": "cpu", "cores": 4}}
    for waited, is_told in ((2, False), (3, True)):
        for line in lines[2 : 2 + waited]:
            line["values"] = {"tiled": {"waited_s": 1e-6}}
        assert ("waiting" in findings_by_rule(lines)) == is_told


SWEPT = {"cublas": 2e-6, "tiled_64": 2e-6, "tiled_128": 2e-6}


def swept(other):
    """Return lines of a run whose contenders launch these binaries."""
    kernels = {
        "kernel_names": dict.fromkeys(SWEPT, "k"),
        "binaries": {"cublas": "", "tiled_64": "a", "tiled_128": other},
    }
    lines = shape(16, SWEPT)
    return run_of(*lines, {"kind": "kernels", "shape": lines[0]["id"], **kernels})


def in_a_graph(graph_s):
    """Return lines of a run whose calls take so long in a CUDA graph."""
    return run_of(*shape(16, PLAIN, about={"tiled": {"graph_s": graph_s}}))


def hiding(lost):
    """Return the findings' lines of arms that hide all but `lost` of the shorter of two times that are alike."""
    return run_of_arms(ON_CPU | {"row_block_launches": lost})


def decided(spread):
    """Return lines of a run of six processes, in which a contender is by turns so much slower and faster."""
    times = [2e-6 * (1 + spread * (-1) ** (index // 6)) for index in range(36)]
    line, *rounds = shape(16, {"cublas": [2e-6] * 36, "tiled": times}, rounds=36)
    rounds = [of_round | {"process": index // 6} for index, of_round in enumerate(rounds)]
    return run_of(line, *rounds, options={"decide": 0.03, "processes": 6})


@pytest.mark.parametrize(
    ("rule", "lines", "text"),
    [
        ("one binary", swept("a"), "tiled_64 and tiled_128 run the same machine code on 1 of 1 shapes"),
        ("one binary", swept("b"), ""),
        (
            "launch bound",
            in_a_graph(1.1e-6),
            "1 of 2 cases, which take down to 55 % of their time in a graph: matmul, t",
        ),
        ("launch bound", in_a_graph(1.7e-6), ""),
        ("half hidden", hiding(0.5), "all_gather_matmul: row_block_launches on 1 of 1 shapes, lost mostly to "),
        ("half hidden", hiding(0.1), ""),
        ("undecided", decided(0.1), "1 of 2 cases, known to within "),
        ("undecided", decided(0.001), ""),
    ],
)
def test_what_users_asked_for_is_found_where_it_is_and_nowhere_else(rule, lines, text, findings_by_rule):
    found = findings_by_rule(lines).get(rule, [])
    assert [line.startswith(text) for line in found] == [True] * bool(text)


def test_a_binary_is_a_field_of_its_row(loaded):
    assert unfilled(loaded(swept("a")), "binaries") == []


def test_each_way_out_names_an_option_for_what_an_arm_is_lost_to():
    headers = {FIELDS[name].header for name in LOST}
    assert headers == {*findings.WAYS}
    assert {way.split(",")[0] for way in findings.WAYS.values()} <= {*FLAGS.values()}


@pytest.mark.parametrize(
    ("lines", "rule", "text"),
    [
        ([HEAD, *shape(16, PLAIN)], "cut off", "it did not come to its end; 2 rows by then"),
        (run_of(*shape(16, PLAIN), options={"quick": True}), "quick", "few shapes and few rounds"),
        (run_of(MISSING | {"outcome": "failed"}), "failed", "1 wrong, "),
        (run_of(*shape(16, PLAIN), *shape(64, PLAIN, throttled=True)), "throttled", "2 of 4 cases, as by power cap: m"),
        (run_of(*gathering(gather_matmul(), pace=0.7)), "void", "3 of 3 cases, the link off its pace by up to -"),
        (run_with({"OPENBLAS_NUM_THREADS": "1"}), "environment", "OPENBLAS_NUM_THREADS=1: fewer threads than the"),
        (run_with({"ONEDNN_MAX_CPU_ISA": "AVX2"}), "environment", "ONEDNN_MAX_CPU_ISA=AVX2 keeps torch's oneDNN from"),
        (run_with({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, "gpu"), "environment", "CUBLAS_WORKSPACE_CONFIG=:16:8 sets"),
        (run_of(*shape(16, PLAIN, stopped_by="interrupt")), "few rounds", "2 of 2 cases, 30 or more"),
        (run_of(ceiling("read", 4e12, spread=0.05), *shape(16, PLAIN)), "roof drifted", "read is known to within 5"),
        (run_of(ceiling("read", 4e12, spread=0.99), *shape(16, PLAIN)), "roof drifted", "read is unknown: its samples"),
        (run_of(*LOW_ROOF, *shape(16, PLAIN)), "above the roof", "2 of 2"),
        (disturbed(stolen_share=0.05), "stolen time", "2 of 2 cases, up to 5.0 %: matmul, cublas on up, tp 1"),
    ],
)  # fmt: skip
def test_each_rule_is_triggered(lines, rule, text, findings_by_rule):
    rules = findings_by_rule(lines)
    assert rules[rule][0].startswith(text)
    assert "nothing wrong" not in rules


@pytest.mark.parametrize(
    "lines",
    [
        run_of(*shape(16, {"cublas": 2e-6, "tiled": 2.05e-6})),  # within the margin
        run_of(*shape(16, {"cublas": 1.9e-6, "tiled": [3e-6, 1e-6] * 15})),  # within a wide interval
        disturbed(stolen_share=0.02, others_share=0.05),
        run_with({"OMP_NUM_THREADS": "4", "OPENBLAS_THREAD_TIMEOUT": "20", "GOMP_SPINCOUNT": "20000"}),
        run_with({"OMP_NUM_THREADS": "1"}, "gpu"),
        run_of(ceiling("copy", 4e12, spread=0.2), *shape(16, PLAIN)),  # which no share is of
    ],
)
def test_what_is_within_its_limit_is_no_finding(lines, findings_by_rule):
    assert [*findings_by_rule(lines)] == ["nothing wrong"]


def test_page_lists_the_rules_in_their_order_with_their_limits(loaded):
    rows = re.findall(r"^\| `?([a-z ]+?)`? \| (.+) \| (.+) \|$", RULES, re.MULTILINE)
    listed = {rule: f"{data} {meaning}" for rule, data, meaning in rows if rule != "rule"}
    run = loaded(LINES)
    assert [*listed] == [*findings.rules(run, frame(run))]
    limits = {"below own ideal": findings.OWN_IDEAL, "disturbed": findings.OTHERS, "stolen time": findings.STOLEN}
    for rule, limit in limits.items():
        assert f"{limit:g}" in listed[rule]


HIGH_ROOF = ceiling("matmul", 750e12, dtype="bf16"), ceiling("read", 40e12)


FAST = {"cublas": 2e-6, "tiled": 1e-6}


SHARES = [  # ceilings, lines of shapes, whether a share is marked
    (LOW_ROOF, lines_with_probe(16, FAST, 1e-6, 1e3), True),
    (HIGH_ROOF, lines_with_probe(16, FAST, 1e-6, 1e12), False),
    ((), shape(16, FAST), False),
]


@pytest.mark.parametrize(("roofs", "shapes", "is_marked"), SHARES)
def test_a_share_above_its_roof_is_marked_wherever_it_stands(loaded, roofs, shapes, is_marked):
    run = loaded(run_of(*roofs, *shapes))
    shown = terminal(run)
    whole = body(run, frame(run))
    marked = [line for line in shown if "%" in line and line.endswith(" !")]
    assert (bool(marked), shown.count(ABOVE)) == (is_marked, int(is_marked))
    for section in whole:
        cells = section.table.to_numpy().ravel() if section.has_table else []
        assert (ABOVE in section.below) == any(cell.endswith(" !") for cell in cells)
    assert any(ABOVE in section.below for section in whole) == is_marked


WORST = [  # lines of a run, how its terminal begins
    (run_of(*HIGH_ROOF, *shape(16, PLAIN)), ["nothing wrong"]),
    (run_of(*LOW_ROOF, *lines_with_probe(16, FAST, 1e-6, 1e3)), ["above the roof", "roof drifted", "faster"]),
    (
        [HEAD, *LOW_ROOF, *shape(16, {"cublas": 1e-6, "tiled": 2e-6}, stopped_by="interrupt", throttled=True)],
        ["cut off", "throttled", "above the roof", "and 2 more in the report"],
    ),
]


@pytest.mark.parametrize(("lines", "begins"), WORST)
def test_the_worst_findings_stand_above_the_first_table(loaded, lines, begins):
    first, title, *shown = terminal(loaded(lines))
    assert (first.partition(":")[0], title) == ("Fastest library", "Findings")
    assert [line.partition(":")[0] for line in shown[: shown.index("")]] == begins
