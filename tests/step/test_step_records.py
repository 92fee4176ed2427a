"""What a report says of a transformer's training steps, by journals that are written by hand."""

import pytest
from made_up_run import END, HEAD, ceiling, lines_of, save

from kernels.step.figure import step_memory
from roofline.account.cases import TransformerStep
from roofline.analysis.records import frame
from roofline.report.write import body, write
from roofline.store.journal import load

TIMES = {"fp32": {"eager": 0.4, "compiled": 0.32}, "bf16": {"eager": 0.2, "compiled": 0.1}}
COSTS = {
    **{"weight_bytes": 10**7, "optimizer_bytes": 2 * 10**7, "saved_bytes": 5 * 10**6, "peak_bytes": 6 * 10**6},
    "memory_timeline": {"forward": [10**6, 4 * 10**6], "backward": [6 * 10**6, 2 * 10**6], "optimizer": [2 * 10**6]},
}


def lines_with_costs(part, dtype):
    """Return the lines of a shape, with the costs of `eager` alone."""
    case = TransformerStep(12, 768, 16, 256, part, dtype)
    lines = lines_of(case, TIMES[dtype], baseline="eager", about={"compiled": {"compile_s": 21.0}})
    return [*lines, {"kind": "costs", "shape": case.id, "contender": "eager", "costs": COSTS}]


@pytest.fixture
def folder(tmp_path):
    lines = [line for part in ("forward", "step") for dtype in TIMES for line in lines_with_costs(part, dtype)]
    return save(tmp_path / "run", [HEAD, ceiling("matmul", 60e12, dtype="fp32"), ceiling("read", 4e12), *lines, END])


def test_rates_are_told(folder):
    run = load(folder)
    rows = frame(run).set_index("case")
    row = rows.loc["transformer_step-l12-d768-b16-t256-step-fp32-compiled"]
    assert row["tokens_per_s"] == pytest.approx(16 * 256 / 0.32)
    assert row["of_roof"] == pytest.approx(row["flop"] / 0.32 / 60e12)
    assert rows["compile_s"].dropna().tolist() == [21.0] * 4
    (table,) = [section.table for section in body(run, frame(run)) if section.title == "Training steps"]
    assert table["tokens/s"].iloc[:2].tolist() == ["1.024e+04", "1.28e+04"]


def test_figure_shows_memory_over_a_step(folder):
    memory = step_memory(load(folder))
    eager = memory.axes[0].get_lines()[0]
    assert eager.get_ydata().tolist() == [31, 34, 36, 32, 32]
    assert eager.get_label() == "fp32, eager: 36 MB at most"
    assert memory.get_suptitle().startswith("Memory over a step of l12-d768-b16-t256")
    names = {path.name for path in write(folder)}
    assert "step_memory.png" in names
    report = (folder / "report.md").read_text()
    assert "![step memory](step_memory.png)" in report
    assert "## Memory of training steps\n" in report
