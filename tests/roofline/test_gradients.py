"""What is said of gradients that are summed over ranks: the model and its fit, records, the figure; and who may run."""

from types import SimpleNamespace

import pytest
from made_up_run import HEAD, save

from roofline import operations, plots
from roofline.analysis import gradients
from roofline.analysis.fields import FIELDS
from roofline.analysis.gradients import Model
from roofline.analysis.records import frame, records_of
from roofline.operations.gradient_all_reduce import GradientAllReduce, sweep
from roofline.pytest_plugin import selection
from roofline.report import gradients as gradients_report
from roofline.report.write import write
from roofline.store.run import Run, Shape
from roofline.theory.simulator import hidden_fraction

CASE = GradientAllReduce("xxl/16", 128, 320, "fp32", 2)
S, L = CASE.gradient_bytes, CASE.layers
OVERHEAD_S, BYTES_PER_S = 1.5e-3, 128e6
BACKWARD_S = S / BYTES_PER_S


def make_run(in_flight=1, overhead_s=OVERHEAD_S):
    """Return a run whose arms take what the model says, with rounds that are slower and faster for all."""
    model = Model(BACKWARD_S, S, L, in_flight, overhead_s, BYTES_PER_S)
    alone = {"collectives": 1, "nbytes": S}
    entrants = {
        "flat": ({"bucket_bytes": S, "collectives": 1}, BACKWARD_S + overhead_s + S / BYTES_PER_S),
        "overlapped": ({"bucket_bytes": S // L, "collectives": L}, model.time_s(S // L)),
        "ddp": ({"bucket_bytes": 7 * S // 8, "collectives": 2}, 0.1),
        "backward": ({"role": "gemm"}, BACKWARD_S),
        "all_reduce": ({"role": "link"} | alone, overhead_s + S / BYTES_PER_S),
    }
    for count in (1, 4, 16):
        about = {"role": "message", "collectives": count, "nbytes": S // 4}
        entrants[f"all_reduce of a quarter in {count}"] = about, count * overhead_s + S / 4 / BYTES_PER_S
    for name, size in CASE.buckets.items():
        entrants[name] = {"bucket_bytes": size, "collectives": S // size}, model.time_s(size)
    ranks = {"backend": "gloo", "world": 2, "nodes": 2, "ranks_a_node": 1, "loopback": False}
    run = Run({key: value for key, value in HEAD.items() if key != "kind"} | {"ranks": ranks})
    about = {name: {"config": "known", "relative_error": 0.0} | fields for name, (fields, _) in entrants.items()}
    shape = Shape(
        CASE.id, CASE.op, "gradients", CASE.__dict__, CASE.dtype, CASE.work, "flat", "warm", about, round_count=30,
        facts=CASE.facts | {"in_flight": 2}, stopped_by="width", telemetry={}, late=dict.fromkeys(entrants, 0),
    )  # fmt: skip
    run.take(shape.line())
    for index in range(30):
        times = {name: time_s * 1.1 ** (index % 3 - 1) for name, (_, time_s) in entrants.items()}
        run.take({"kind": "round", "shape": CASE.id, "index": index, "order": [*times], "time_s": times})
    run.take({"kind": "end", "finished": "2026-01-01T00:00:00+00:00", "cut_short": None})
    return run


@pytest.mark.parametrize("in_flight", [1, 2])
def test_overhead_bandwidth_and_collectives_in_flight_are_found_again(in_flight):
    (shape,) = make_run(in_flight).shapes.values()
    model = gradients.fit(shape)
    assert model.in_flight == in_flight
    assert model[:3] == pytest.approx((BACKWARD_S, S, L))
    assert model[4:] == pytest.approx((OVERHEAD_S, BYTES_PER_S))


def test_no_model_where_all_reduces_seem_to_cost_less_than_their_bytes():
    run = make_run(overhead_s=-1e-4)
    assert gradients.fit(*run.shapes.values()) is None
    assert gradients_report.summary(frame(run)) == [f"{CASE.id}: Best bucket: 64 KiB measured"]


def test_records_have_what_was_hidden_and_the_model():
    run = make_run()
    records = {record["contender"]: record for record in records_of(run)}
    assert [*records] == ["flat", "overlapped", "ddp", *CASE.buckets]
    model = Model(BACKWARD_S, S, L, 1, OVERHEAD_S, BYTES_PER_S)
    fastest = min((2**power for power in range(16, 24)), key=model.time_s)
    assert 1 / 2 <= fastest / model.bucket_bytes <= 2  # sqrt(s o w), of one collective at a time
    for name, record in records.items():
        assert record.keys() <= FIELDS.keys(), name
        hidden = hidden_fraction(record["t_gemm_s"], record["t_comm_s"], record["time_s"])
        assert record["hidden_fraction"] == pytest.approx(hidden), name
        assert record["ratio_to_baseline"] == pytest.approx(records["flat"]["time_s"] / record["time_s"]), name
        swept = name == "overlapped" or name.startswith("bucketed")
        assert record["model_s"] == (pytest.approx(record["time_s"]) if swept else None), name
    assert records["flat"]["hidden_fraction"] == pytest.approx(0, abs=1e-6)
    assert records["bucketed_1MiB"]["hidden_fraction"] > 0.5
    cases = frame(run)
    assert list(gradients.best(cases)["contender"]) == ["bucketed_1MiB"]
    (line,) = gradients_report.summary(cases)
    assert line == (
        f"{CASE.id}: Best bucket: 1 MiB measured, 0.83 of sqrt(s o w) = 1.21 MiB, by o = 1.5 ms and w = 0.128 GB/s"
    )


def test_figure_has_a_point_for_each_arm():
    cases = frame(make_run())
    (axes,) = plots.buckets(cases).axes
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    assert {"flat", "ddp", "backward alone", "sqrt(s o w)"} <= named.keys()
    points = named["in buckets, while the backward pass goes on"].lines[0].get_xydata()
    assert sorted(points[:, 0]) == [S // L, *CASE.buckets.values()]
    curve = dict(named["model, 1 in flight"].get_xydata())
    swept = cases.dropna(subset="model_s")
    on_curve = [row for row in swept.itertuples() if row.bucket_bytes in curve]
    assert [curve[row.bucket_bytes] for row in on_curve] == pytest.approx([1e3 * row.model_s for row in on_curve])


def test_report_of_such_a_run_has_table_figure_and_finding(tmp_path):
    shape = make_run().shapes[CASE.id]
    save(tmp_path, [HEAD, shape.line(), *(round_.line(CASE.id) for round_ in shape.rounds)])
    assert "buckets.svg" in {path.name for path in write(tmp_path)}
    brief = (tmp_path / "report.md").read_text().partition("## Which bucket?")[2].partition("\n## ")[0]
    assert "](buckets.png)" in brief
    assert f"| {CASE.id} | bucketed_1MiB |" in brief


def test_one_process_is_told_to_start_torchrun():
    options = SimpleNamespace(
        world=1, device="cpu", timed=True, contenders=None, baseline=None, arm_matmul=None, users=(), shapes=()
    )
    assert sweep(options) == []
    with pytest.raises(ValueError, match=r"-k 'gradient': .*start torchrun --nproc-per-node N"):
        selection.check(options, operations.Runners(options), [], "gradient")
