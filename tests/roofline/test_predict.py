"""The cost model, and the model of a machine, against numbers worked out by hand."""

import json
import math
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest

from roofline import operations
from roofline.analysis.overlap import simulator
from roofline.analysis.overlap.arms import TILE, OverlapPlan, plan
from roofline.analysis.prediction import cost_model, residual
from roofline.analysis.prediction import model as predictor
from roofline.analysis.prediction.cost_model import PRIORS, Constants, MachineSpec, Tile
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.matmul import Matmul
from roofline.theory import schedule, waves
from roofline.theory.schedule import Grid
from roofline.theory.work import Work

GPU = MachineSpec(flops=132e12, read_bytes_per_s=4e12, workers=132)  # 1e12 FLOP/s for each SM
CPU = MachineSpec(flops=1e11, read_bytes_per_s=1e10)
PERFECT = Constants(compute=1.0, memory=1.0, extra_k=0, start_s=0, p=200.0)
TILES = (Tile(400, 400),)


def gpu_terms(m, n, k, constants=PERFECT, nbytes=0, tiles=TILES):
    return cost_model.terms(cost_model.load(m, n, k, nbytes or 1, GPU, tiles), constants)


def test_cpu_by_hand():
    constants = Constants(compute=0.8, memory=0.25, extra_k=50, start_s=1e-5, vector=0.5)
    found = cost_model.terms(cost_model.load(100, 200, 450, 1_000_000, CPU), constants)
    assert found.compute_s == pytest.approx(2 * 100 * 200 * 500 / 0.8e11)  # 250 us
    assert found.memory_s == pytest.approx(1e6 / 0.25e10)  # 400 us
    assert found.time_s == pytest.approx(660e-6)
    single = cost_model.load(1, 200, 450, 1_000_000, CPU)  # reads its weights once and computes nothing
    assert cost_model.terms(single, constants).time_s == pytest.approx(1e-5 + 1e6 / 0.5e10)
    assert cost_model.terms(single, replace(constants, vector=None)).time_s > 400e-6


def test_gpu_by_hand():
    constants = Constants(compute=0.5, memory=0.8, extra_k=100, start_s=5e-6, p=2.0)
    found = gpu_terms(4800, 4800, 900, constants, nbytes=153_600_000)  # 144 tiles: two waves
    assert found.compute_s == pytest.approx(2 * 2 * 400 * 400 * 1000 / 0.5e12)  # 1280 us
    assert found.memory_s == pytest.approx(48e-6)
    assert found.time_s == pytest.approx(5e-6 + (1280e-6**2 + 48e-6**2) ** 0.5)


def test_one_tile_more_than_a_wave_costs_a_wave():
    full, more = gpu_terms(4400, 4800, 500), gpu_terms(4401, 4800, 500)
    assert full.compute_s == pytest.approx(2 * 400 * 400 * 500 / 1e12)
    assert more.compute_s == pytest.approx(2 * full.compute_s)
    assert gpu_terms(4000, 4800, 500).compute_s == full.compute_s  # idle SMs gain nothing


def test_predictions_and_choices_of_tiles_are_by_one_model():
    """Where neither memory nor L2 is a limit, what a choice costs is what is predicted of it."""
    machine = waves.GpuSpec(132, 132e12, float("inf"), 0, float("inf"))
    for m, n, shares in ((2048, 6656, False), (2048, 6656, True), (300, 6656, True)):
        tiling = waves.Tiling(128, 256, tail=132 * shares)
        expected = waves.cost(m, n, 16384, 2, tiling, machine).seconds
        assert gpu_terms(m, n, 16384, tiles=(Tile(128, 256, shares=shares),)).compute_s == pytest.approx(expected)


def test_library_splits_k_where_tiles_are_few_and_takes_flat_tiles_for_few_rows():
    tile = Tile(256, 128, adapts=True)
    assert cost_model.cost(256, 128 * 33, 10**6, tile, GPU).rounds == pytest.approx(0.25, rel=1e-3)
    assert cost_model.cost(256, 128 * 33, 10**6, Tile(256, 128), GPU).rounds == pytest.approx(1)
    assert cost_model.cost(256, 128 * 33, 64, tile, GPU).rounds == pytest.approx(1)  # sums would cost more than a wave
    assert [cost_model.fitting(tile, m).rows for m in (1, 64, 65, 128, 129, 8192)] == [64, 64, 128, 128, 256, 256]
    assert cost_model.fitting(Tile(256, 128), 1).rows == 256


def test_best_tile_takes_least():
    # 1536 x 1408: 132 tiles of 128 x 128 are one wave; 66 of 128 x 256 leave half of it idle.
    own = (Tile(128, 256), Tile(256, 128), Tile(128, 128))
    assert cost_model.best_tile(1536, 1408, 4096, own, GPU) == Tile(128, 128)
    assert cost_model.best_tile(1536, 2816, 4096, own, GPU) == Tile(128, 256)  # equals: the first


@pytest.mark.parametrize("nbytes", [10, 10**9])
def test_perfect_constants_are_the_plain_roofline(nbytes):
    flop = 2 * 4400 * 4800 * 700
    found = gpu_terms(4400, 4800, 700, nbytes=nbytes).time_s  # whole waves of whole tiles
    assert found == pytest.approx(max(flop / 132e12, nbytes / 4e12), rel=5e-3)
    assert cost_model.roofline_s(Work(flop, nbytes), GPU) == max(flop / 132e12, nbytes / 4e12)
    assert cost_model.roofline_s(Work(flop, nbytes, wire_bytes=10**9), GPU, 1e9) == 1.0


@pytest.mark.parametrize("machine", [GPU, CPU])
@pytest.mark.parametrize("source", PRIORS)
def test_more_work_never_takes_less(machine, source):
    """But where a library shares tiles out along K: each share has a least size, so that more K may be less, by 8 %."""
    constants = replace(PRIORS[source], vector=None)
    sizes = (1, 2, 63, 64, 65, 128, 129, 500, 1000, 1024, 4096, 5000)
    grown = {
        "m": [(m, 1664, 4096) for m in sizes],
        "n": [(300, n, 4096) for n in sizes],
        "k": [(300, 1664, k) for k in sizes],
    }
    for axis, shapes in grown.items():
        for tiles in (TILES, cost_model.USUAL[:1], cost_model.USUAL):
            loads = [cost_model.load(m, n, k, 2 * (m * k + n * k + m * n), machine, tiles) for m, n, k in shapes]
            times = [cost_model.terms(load, constants).time_s for load in loads]
            margin = 0.08 if tiles[0].adapts else 0.0
            assert all(after >= before * (1 - margin) for before, after in pairwise(times)), axis
            assert times[0] < times[-1]


def model(**more):
    family = predictor.Family("any", "bf16", PERFECT, tiles=(Tile(128, 256),))
    return predictor.Model("gpu", {"bf16": GPU}, (family,), (family,), **more)


def test_gather_by_hand():
    case = AllGatherMatmul("1024x2640", "up", 1, 6400, "bf16", 8, "1GBps")
    speed = case.work.wire_bytes / 1e-3
    known = model(latency_s=1e-4, losses={"serial": 1.1})
    found = known.gather(case, "serial", speed, lambda t_gemm, t_comm: t_gemm + t_comm)
    t_gemm_s = 5 * 2 * 128 * 256 * 1024 / 1e12  # 50 x 11 tiles: five waves
    assert found.terms["t_gemm_s"] == pytest.approx(t_gemm_s, rel=1e-3)
    assert found.terms["t_comm_s"] == pytest.approx(1.1e-3)
    assert found.time_s == pytest.approx(1.1 * (t_gemm_s + 1.1e-3), rel=1e-3)
    assert known.gather(case, "other", speed, max).time_s == pytest.approx(1.1e-3)  # no loss is known: none
    assert known.gather(case, "other", float("inf"), max).terms["t_comm_s"] == 0.0
    spilled = known.gather(case, "other", float("inf"), max, spilled_bytes=4 * 10**9)  # device bytes of the matmul
    assert spilled.terms["memory_s"] == pytest.approx((case.work.device_bytes + 4e9) / 4e12)
    assert spilled.time_s == pytest.approx(spilled.terms["memory_s"], rel=1e-3)


@pytest.mark.parametrize(("machine", "tiles"), [(GPU, TILES), (CPU, ())])
def test_slopes_are_what_a_constant_that_is_off_makes_of_the_time(machine, tiles):
    constants, step = Constants(0.8, 0.25, 50, 1e-5, 2.0 if tiles else 1.0, None if tiles else 0.5), 1e-6
    for m in (1, 300):
        load = cost_model.load(m, 2000, 450, 10**7, machine, tiles)
        names = [name for name in cost_model.SPREAD if getattr(constants, name) is not None]
        for name, slope in zip(names, cost_model.slopes(load, constants), strict=True):
            least = name == "p"
            moved = replace(constants, **{name: least + (getattr(constants, name) - least) * (1 + step)})
            change = math.log(cost_model.terms(load, moved).time_s / cost_model.terms(load, constants).time_s) / step
            assert slope == pytest.approx(cost_model.SPREAD[name] * change, abs=1e-5), name


def test_process_by_hand():
    """One known case of slope 0.3: what is far keeps what the constants share, what is near more, itself nearly all."""
    known, far = residual.Place((0.0, 0.0, 0.0), (0.3,)), residual.Place((1e9, 0.0, 0.0), (0.3,))
    near = residual.Place((math.log(4), 0.0, 0.0), (0.3,))
    told = residual.process([known], [0.2], scale=0.1)
    whole = 0.3**2 + 0.1**2 + residual.NOISE**2
    for place, shared in ((known, 0.1), (far, 0.09), (near, 0.09 + 0.01 / math.e)):
        assert told.at(place) == pytest.approx((0.2 * shared / whole, whole - shared**2 / whole)), place
    assert residual.process([], [], 0.1).at(known) == (0.0, pytest.approx(whole))


def test_process_is_that_of_numpy():
    draw = np.random.default_rng(0)
    places = [residual.Place(tuple(row[:3]), tuple(row[3:] / 10)) for row in draw.normal(size=(12, 5))]
    off, (new, *known) = draw.normal(size=11) / 10, places
    cover = np.array([[residual._covariance(a, b, 0.07) for b in known] for a in known]) + residual.NOISE**2 * np.eye(
        11
    )
    seen = np.array([residual._covariance(new, place, 0.07) for place in known])
    mean, variance = residual.process(known, list(off), 0.07).at(new)
    assert mean == pytest.approx(seen @ np.linalg.solve(cover, off))
    whole = residual._covariance(new, new, 0.07) + residual.NOISE**2
    assert variance == pytest.approx(whole - seen @ np.linalg.solve(cover, seen))


@pytest.mark.parametrize("truth", [0.03, 0.2])
def test_scale_is_found_again(truth):
    draw, sizes = np.random.default_rng(1), [(m, n, k) for m in range(0, 8, 2) for n in (5, 7) for k in (5, 7)]
    places = [residual.Place(tuple(map(float, size)), (0.0,)) for size in sizes]
    cover = np.array([[residual._covariance(a, b, truth) for b in places] for a in places])
    off = draw.multivariate_normal(np.zeros(len(places)), cover)
    assert residual.best_scale(places, list(off)) == pytest.approx(truth, rel=0.5)


def test_gather_bound_by_its_wire_does_not_spread_with_its_matmul():
    case = AllGatherMatmul("1024x2640", "up", 1, 6400, "bf16", 8, "1GBps")
    known = model(loss_spread=0.03)
    fast, slow = (known.gather(case, "overlapped", case.work.wire_bytes / t, max) for t in (1e-6, 1.0))
    gemm = known.gemm(case).spread
    assert (slow.spread, fast.spread) == (0.03, pytest.approx(math.hypot(0.03, gemm)))
    assert slow.low_s == pytest.approx(slow.time_s * math.exp(-1.2816 * 0.03))


def test_shape_of_unknown_tile_takes_that_of_the_nearest():
    known = ((16, 1000, Tile(64, 128)), (4096, 1000, Tile(128, 256)), (4096, 8000, Tile(256, 128)))
    family = predictor.Family("tiled", "bf16", PERFECT, tile_of=known)
    assert family.tiles_for(20, 1000) == (Tile(64, 128),)
    assert family.tiles_for(9000, 900) == (Tile(128, 256),)
    assert family.tiles_for(3000, 9000) == (Tile(256, 128),)


def test_model_survives_being_written():
    known = ((16, 1000, Tile(64, 128)),)
    family = predictor.Family("tiled", "bf16", PRIORS["cpu"], 3, (), known)
    family = replace(family, residuals=((16, 1000, 64, 10**6, 0.1),), scale=0.1)
    written = replace(model(losses={"serial": 1.1}, arms={"op": ["serial"]}, drift=0.02), families=(family,))
    assert predictor.of_values(json.loads(json.dumps(asdict(written)))) == written


@pytest.mark.parametrize("t_comm_s", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("arm", ["tile_outer", "chunk_outer", "row_block", "row_block_launches", "chunk_launches"])
def test_planned_arm_is_what_the_simulator_says_of_the_whole_grid(arm, t_comm_s):
    planned = plan(arm, 2048, 3000, 8, 132, 1.0, t_comm_s)
    cuts = (16, 8, 4, 2, 1) if arm.startswith("row_block") else (1,)
    ends = [OverlapPlan(arm, Grid(16, 12), 132, 8, b).simulate(1.0, t_comm_s).end_s for b in cuts]
    assert planned.predicted_s(1.0, t_comm_s) == pytest.approx(min(ends))


def test_planned_arm_of_many_tiles_is_simulated_on_fewer():
    many = plan("row_block", 8192, 53248, 8, 132, 1.0, 1.0)
    whole = OverlapPlan("row_block", Grid(64, 208), 132, 8, 16).simulate(1.0, 1.0).end_s
    assert many.predicted_s(1.0, 1.0) == pytest.approx(whole, rel=0.01)


def test_planned_spills_are_those_of_the_table():
    planned, grid = plan("chunk_outer", 4096, 7000, 8, 132, 1.0, 1.5), Grid(32, 28)
    chunk_s = simulator.product_s(grid, 132, 8, 1.0)
    table = schedule.spill_once(grid, 132, simulator.arrivals(8, 1.5, 1)[0], chunk_s)
    assert schedule.spills(table) > 0
    assert planned.spilled_bytes(1.0, 1.5) == schedule.spills(table) * 2 * 4 * TILE[0] * TILE[1]
    assert plan("row_block", 4096, 7000, 8, 132, 1.0, 1.5).spilled_bytes(1.0, 1.5) == 0


@pytest.mark.parametrize("contender", [None, "persistent", "row_block"])
@pytest.mark.parametrize("name", ["xxl", "llama-3-70b", "xxl/16", "gpt-2-small", "gpt-3", "1000x3000"])
def test_ids_are_read_back(name, contender):
    behind = f"-{contender}" if contender else ""
    for case in (
        Matmul(name, "down", 1, 7, "bf16"),
        AllGatherMatmul(name, "up", 2, 4096, "fp32", 2, "ridge1.4"),
        AllGatherMatmul(name, "up", 1, 4096, "fp16", 4, "0.125GBps"),
    ):
        assert operations.parse(case.id + behind) == (case, contender)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("matmull-xxl-up-tp8-m16-bf16", "did you mean matmul?"),
        ("matmul-xxl-up-m16-bf16", "is not written as cases are: matmul-xxl-up-tp8-m4096-bf16-persistent"),
        ("all_gather_matmul-xxl-up-tp8-m16-bf16", "is not written as cases are: all_gather_matmul-xxl-up-p8-"),
        ("matmul-xxxl-up-tp8-m16-bf16", "unknown model 'xxxl': did you mean xxl?"),
        ("matmul-xxl-upp-tp8-m16-bf16", "unknown layer 'upp'"),
        ("matmul-xxl-up-tp7-m16-bf16", "tp=7 does not divide d_ff=53248"),
        ("matmul-xxl-up-tp8-m16-bf17", "unknown dtype 'bf17'"),
        ("weight_prefetch-xxl-up-p8-tp1-m16-bf16-ridged", "'ridged' is no bandwidth"),
        ("all_gather_matmul-xxl-up-p7-tp8-m16-bf16-ridge", "ranks=7 does not divide"),
    ],
)
def test_bad_ids_are_named(text, said):
    with pytest.raises(ValueError, match="case ") as error:
        operations.parse(text)
    assert said in str(error.value)
