"""What was counted, and which kernels ran, in records, tables and the figure; runs without either look as ever."""

import pytest
from made_up_run import LINES, save, shape
from ncu_sample import NVJET, REDUCE
from pandas import notna

from roofline import plots
from roofline.analysis.records import frame, records_of
from roofline.format import kernels_text
from roofline.report import throughput
from roofline.report.write import write
from roofline.store import journal

SHAPES = {m: f"matmul-1024x1024-up-tp1-m{m}-bf16" for m in (16, 8192)}
FLOP = {m: 2 * m * 1024**2 for m in SHAPES}
LEAST = {m: 2 * (2 * m * 1024 + 1024**2) for m in SHAPES}
SOURCE = {"tool": "ncu", "version": "2025.1", "cache": "flushed", "metrics": {"dram_bytes": ["a", "b"]}}


def counter_line(m, contender, dram_bytes, tensor_ops):
    about = {"kind": "counters", "shape": SHAPES[m], "contender": contender, "counter_source": SOURCE}
    return about | {"dram_bytes": dram_bytes, "l2_bytes": 10**9, "tensor_ops": tensor_ops}


NAMES = {"kind": "kernels", "shape": SHAPES[16]}
NAMES |= {"kernel_names": {"cublas": f"{NVJET} + {REDUCE}", "tiled": "tiled_kernel"}}
COUNTED = [
    *LINES[:-2],
    counter_line(16, "cublas", 2 * LEAST[16], 4 * FLOP[16]),
    counter_line(16, "tiled", None, 0),
    counter_line(8192, "tiled", LEAST[8192] // 2, FLOP[8192]),
    NAMES,
    {"kind": "note", "about": "counters", "text": "Counters: none were read: before."},
    {"kind": "note", "about": "counters", "text": "Counters: 3 of 4."},
    LINES[-1],
]


@pytest.fixture
def folder(tmp_path):
    return save(tmp_path / "run", COUNTED)


def read_records(folder):
    return {(r["m"], r["contender"]): r for r in records_of(journal.load(folder))}


def test_derived_fields_by_hand(folder):
    by_case = read_records(folder)
    cublas = by_case[16, "cublas"]
    assert cublas["counted_intensity"] == pytest.approx(cublas["device_intensity"] / 2)
    assert (cublas["dram_of_device_bytes"], cublas["tensor_ops_of_flop"]) == (2, 4)
    unknown = by_case[16, "tiled"]
    assert (unknown["dram_bytes"], unknown["counted_intensity"], unknown["dram_of_device_bytes"]) == (None, None, None)
    assert unknown["tensor_ops_of_flop"] == 0
    fields = ("dram_bytes", "l2_bytes", "tensor_ops", "counter_source", "kernel_name")
    assert [by_case[8192, "cublas"][field] for field in fields] == [None] * 5


def test_operations_that_are_not_the_flop_are_told_and_noise_is_not(folder):
    cases = frame(journal.load(folder))
    for share, first_words in ((1.005, []), (1.04, ["more"]), (0.96, ["fewer"])):
        *lines, _ = throughput.counted(cases[:1].assign(tensor_ops_of_flop=share)).lines
        assert [line.split()[0] for line in lines] == first_words


def test_report_has_the_columns_and_the_last_note_alone(folder):
    write(folder)
    report = (folder / "report.md").read_text()
    assert "Counters: 3 of 4." in report
    assert "before" not in report
    assert f"{NVJET} + splitKreduce_kernel" in report
    assert f"| {SHAPES[16]} | cublas | 4.33 MB | 2 | 7.76 | 15.5 | 1 GB | 4 |" in report
    assert "counted by ncu 2025.1; a + b" in report


def test_figure_joins_the_modelled_point_and_the_counted_one_at_one_height(folder):
    axes = plots.memory_roofline(frame(journal.load(folder))).axes[0]
    joined = [line for line in axes.lines if line.get_linewidth() == 1.2 and notna(line.get_xdata()).all()]
    by_case = read_records(folder)
    ends = sorted({tuple(line.get_xdata()) for line in joined})
    for (left, right), r in zip(ends, (by_case[16, "cublas"], by_case[8192, "tiled"]), strict=True):
        assert right / left == pytest.approx(r["counted_intensity"] / r["device_intensity"])
    assert all(line.get_ydata()[0] == line.get_ydata()[1] for line in joined)
    low, high = axes.get_xlim()
    assert all(low < x < high for pair in ends for x in pair)


def test_shape_that_is_measured_again_forgets_its_counts(tmp_path):
    odd = NAMES | {"shape": SHAPES[8192], "kernel_names": {"nobody": "k"}}  # of no contender: it does no harm
    lines = [*COUNTED[:-1], odd, *shape(16, {"cublas": 2e-6, "tiled": 4e-6}), COUNTED[-1]]
    by_case = read_records(save(tmp_path / "run", lines))
    assert (by_case[16, "cublas"]["dram_bytes"], by_case[16, "cublas"]["kernel_name"]) == (None, None)
    assert by_case[8192, "tiled"]["dram_bytes"] is not None


def test_names_of_kernels_are_short():
    names = "void at::native::(anonymous namespace)::sum_kernel<4>(int)", "sm90_" + 60 * "x"
    assert kernels_text(" + ".join(names)) == f"sum_kernel + sm90_{40 * 'x'}..."
