"""Reports from saved data: tables, ceilings, plots, and what is said where something was not measured."""

import csv
import math
from itertools import chain

import pandas
import pytest
from made_up_run import END, HEAD, LINES, ceiling, save, shape
from matplotlib.collections import PathCollection

import roofline
from roofline.analysis.fields import GROUPS
from roofline.analysis.records import frame, records_of
from roofline.commands.cli import main
from roofline.report import findings as findings_module
from roofline.report import plots, tables, throughput
from roofline.report.findings import findings

FAST = {"cublas": 2e-6, "tiled": 4e-6}


@pytest.mark.parametrize("ceilings", [[], [ceiling("read", 4e12)]])
def test_without_both_ceilings_there_are_rates_but_no_shares(loaded, ceilings):
    rows = frame(loaded([HEAD, *ceilings, *shape(16, {"cublas": [2e-6, 3e-6, 4e-6] * 10})]))
    assert rows[["roof_tflops", "of_roof"]].isna().all(axis=None)
    assert (rows["tflops_low"] < rows["tflops_high"]).all()
    assert tables.terminal(tables.texts(rows, tables.TABLES["throughput"].columns))
    (legend,) = (axes.get_legend() for axes in plots.memory_roofline(rows).axes[:1])
    assert not [text for text in legend.get_texts() if "measured" in text.get_text()]


def test_where_the_dispatchers_choice_was_not_measured_the_table_says_so(loaded):
    lines = [line for m, name in ((16, "tiled"), (64, "decode")) for line in shape(m, FAST, dispatched=name)]
    table = throughput.tokens_table(roofline.by_tokens(loaded([*LINES[:5], *lines, END])))
    assert table["dispatched [95 %]"].tolist() == ["0.500 tiled", "unmeasured"]


def test_speed_by_tokens_is_a_frame_and_csv_prints_it(loaded, tmp_path, capsys):
    run = loaded(with_libraries({"cublas": [2e-6, 2.2e-6] * 15, "tiled": 4e-6, "lt": 1e-6}))
    (row,) = roofline.by_tokens(run).to_dict("records")
    assert [*row] == [*GROUPS["tokens"], "lt", "lt_low", "lt_high"]
    assert (row["fastest"], row["least_shape"]) == ("tiled", "up tp1")
    assert row["tflops"] == pytest.approx(2 * 16 * 1024**2 / 4e-6 / 1e12)
    assert math.isnan(row["dispatched_ratio"])
    assert main(["csv", str(tmp_path / "run"), "--by-tokens"]) == 0
    (printed,) = csv.DictReader(capsys.readouterr().out.splitlines())
    assert [*printed] == [*row]
    assert float(printed["ratio_to_baseline"]) == row["ratio_to_baseline"]


def test_an_interval_that_spans_a_decade_is_unknown_wherever_it_is_shown(loaded):
    rows = frame(loaded(LINES)).head(2)
    rows.loc[1, ["ratio_low", "of_roof_low"]] = 0.0
    rows.loc[1, ["ratio_high", "of_roof_high"]] = math.inf
    assert tables.markdown(tables.texts(rows, tables.TABLES["throughput"].columns)).count("[unknown]") == 2
    rows.loc[1, ["ratio_low", "ratio_high"]] = 0.1, 0.99
    assert tables.markdown(tables.texts(rows, tables.TABLES["throughput"].columns)).count("[unknown]") == 1


def with_libraries(times):
    """Lines of a run in which all but cuBLAS and `tiled` are libraries."""
    about, *rounds = shape(16, times)
    about["entrants"] |= {"lt": about["entrants"].get("lt", {}) | {"of_library": True}}
    return [*LINES[:5], about, *rounds]


def test_a_baseline_that_is_not_as_fast_as_itself_is_a_finding(loaded):
    run = loaded(with_libraries({"cublas": 2e-6, "tiled": 4e-6, "cublas_again": 2e-6}))
    assert not [text for text in findings(run, frame(run)) if text.startswith("unequal")]
    rows = frame(run)
    rows.loc[rows["contender"] == "cublas_again", ["ratio_to_baseline", "ratio_low", "ratio_high"]] = 1.05, 1.04, 1.06
    (text,) = findings_module.unequal(pandas.concat([rows] * 2, ignore_index=True))
    assert text == (
        "the baseline is not as fast as itself on 2 of 2 shapes, 1.050 [1.040, 1.060]: "
        "cublas_again on up, tp 1, M 16, bf16"
    )
    assert not [*findings_module.unequal(rows)]  # one interval of twenty may miss


def lines_of_cpu(*tokens):
    """Return lines of a machine of less than a TFLOP/s."""
    sheet = {"flops": {"bf16": 989.4e9}, "memory_bandwidth_bytes_per_s": 4.8e9}
    head = HEAD | {"machine": HEAD["machine"] | {"source": "cpu", "datasheet": sheet}}
    shapes = (shape(m, {"cublas": m * 1e-5 + 1e-3, "tiled": m * 2e-5 + 2e-3}) for m in tokens)
    return [head, ceiling("matmul", 750e9, dtype="bf16"), ceiling("read", 4e9), *chain(*shapes)]


def heights(axes):
    return sorted(
        y for points in axes.collections if isinstance(points, PathCollection) for _, y in points.get_offsets()
    )


def test_roofs_and_points_are_in_flops(loaded):
    run = loaded(lines_of_cpu(1, 16, 100, 8192))
    figure, records = plots.memory_roofline(frame(run)), records_of(run)
    (axes,) = figure.axes
    figure.draw_without_rendering()
    assert "100 GFLOP/s" in [text.get_text() for text in axes.get_yticklabels()]
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    roofs = [name.partition(", ridge at")[0] for name in names[:2]]
    assert roofs == ["datasheet: 989 GFLOP/s, 4.80 GB/s", "measured: 750 GFLOP/s, 4.00 GB/s"]
    assert heights(axes) == pytest.approx(sorted(record["tflops"] for record in records))
    assert [text.get_text().strip() for text in axes.texts] == ["M 1", "M 16", "M 100", "M 8192"]


def test_title_is_the_finding(loaded):
    figure = plots.memory_roofline(frame(loaded(lines_of_cpu(4096, 8192))))
    finding = "tiled: 0.500 of cublas's speed in the geometric mean over 2 shapes"
    assert figure.get_suptitle().startswith(finding)
    throttled = [*LINES[:5], *shape(16, {"cublas": 1e-6}, throttled=True)]
    figure = plots.memory_roofline(frame(loaded(throttled)))
    assert figure.get_suptitle().startswith("FLOP/s of cublas")
    assert figure.axes[0].get_legend().get_title().get_text().endswith("; throttled in 1 of 1")


def test_run_of_an_unknown_operation_is_reported_with_what_was_not_measured(tmp_path, undrawn):
    lines = [line | {"op": "fused"} if line["kind"] == "shape" else line for line in LINES]
    folder = save(tmp_path / "run", lines)
    assert main(["report", str(folder)]) == 0
    report = (folder / "report.md").read_text()
    assert report.split("\n\n")[2] == "## Findings"
    assert "| matmul-1024x1024-up-tp1-m16-bf16 | tiled |" in report
    assert "- skipped: matmul-1024x1024-up-tp1-m16-bf16-other: why" in report
    assert "cut off" not in report


def test_baseline_that_was_refused_gives_no_ratio_and_a_host_that_is_often_late_a_note(loaded):
    lines = [line | {"late": {"tiled": 4}} if line["kind"] == "shape" else line for line in LINES]
    records = records_of(loaded(lines))
    assert {(record["contender"], record["ratio_to_baseline"], record["baseline_time_s"]) for record in records} == {
        ("tiled", None, None)
    }
    assert [record["notes"] for record in records] == ["host late in 4", "throttled: power cap; host late in 4"]


def test_a_terminal_has_aligned_columns_and_an_empty_one_nowhere():
    rows = [{"shape": shape, "M": m, "notes": ""} for shape, m in (("a", "1"), ("a", "20"), ("b", "3"))]
    table = tables.written(rows)
    assert tables.terminal(table) == ["shape   M", "a       1", "a      20", "b       3"]


def test_a_matmul_whose_operands_stay_in_the_cache_says_so(loaded):
    about, *rounds = shape(16, FAST)
    records = records_of(loaded([*LINES[:5], about | {"cache": "warm: 7 sets of operands"}, *rounds, END]))
    assert {record["notes"] for record in records} == {"cache warm"}
