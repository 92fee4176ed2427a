"""`roofline predict --ranks`: against ranks that are simulated one by one, by hand; its words, figure and bad input."""

import json
import random
from pathlib import Path
from statistics import fmean

import pytest
from made_up_gathers import HERE, SWEEP
from made_up_run import lines_of, save

from roofline.analysis.prediction import scale
from roofline.analysis.prediction.cost_model import Constants, MachineSpec
from roofline.analysis.prediction.model import Family, Model
from roofline.cli import main
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.operations.weight_prefetch import WeightPrefetch
from roofline.store.journal import load

GEMM_S, LAUNCH_S, BYTES_S = 0.1, 0.004, 0.08
"""Of the matmul, of what each launch takes of it again, and of all bytes that are gathered: x or w, as large."""
LATENCY_S, MESSAGE_S = 0.002, 1e-4
BLOCKS = (16, 8, 4, 2, 1)
ARMS = {
    AllGatherMatmul: ["chunk_launches", "row_block_launches"],
    WeightPrefetch: ["overlapped"],
    MatmulReduceScatter: ["block_launches"],
}


def gather(ranks, case=AllGatherMatmul):
    return case("4096x1024", "down" if case is MatmulReduceScatter else "up", 1, 1024, "fp32", ranks, "gloo")


def alone(ranks, blocks=1):
    """When each message is here at a rank that nobody is late for."""
    each = MESSAGE_S + BYTES_S / ranks / blocks
    return [LATENCY_S - MESSAGE_S + each * (1 + index) for index in range(blocks * (ranks - 1))]


def launched(arrivals, parts):
    """(units, when they are here), multiplied by launches of all that is here."""
    now, index, arrivals = 0.0, 0, [*arrivals]
    while index < parts:
        now = max(now, arrivals[index])
        here = sum(at <= now for at in arrivals) - index
        now += LAUNCH_S + here * (GEMM_S - LAUNCH_S) / parts
        index += here
    return now


def arm_s(arm, ranks):
    """Of a rank that nobody is late for."""
    if arm == "serial":
        return alone(ranks)[-1] + GEMM_S
    if arm == "overlapped":
        return max(alone(ranks)[-1], GEMM_S)
    if arm in ("chunk_launches", "block_launches"):  # which is the other backwards in time
        return launched([0.0, *alone(ranks)], ranks)
    ends = []
    for blocks in BLOCKS:  # a launch over fewer rows is as much shorter
        here, now = alone(ranks, blocks)[ranks - 2 :: ranks - 1], 0.0
        done = 0
        while done < blocks:
            now = max(now, here[done])
            count = sum(at <= now for at in here) - done
            now, done = now + count * GEMM_S / blocks, done + count
        ends.append(now)
    return min(ends)


def slowest_s(arm, ranks, skew_s, rounds=400):
    """The sample: the mean over rounds of the last rank's end, each beginning up to so much late."""
    rng = random.Random(0)
    return arm_s(arm, ranks) + fmean(max(rng.uniform(0, skew_s) for _ in range(ranks)) for _ in range(rounds))


def run_of(folder, ranks, skew_s=0.0, cases=tuple(ARMS), **about):
    """A run of real ranks, each a node, in which all takes as long as that."""
    known = {"world": ranks, "nodes": ranks, "ranks_a_node": 1, "backend": "gloo", "loopback": False} | about
    lines = [HERE | {"schema": 4, "ranks": known, "cases": []}]
    whole = gather(ranks).gathered_bytes
    for pattern, count in (("all", ranks - 1), ("pair", 1)):
        for nbytes in (2**12, 2**24):
            took = LATENCY_S + (count - 1) * MESSAGE_S + count * nbytes / whole * BYTES_S
            line = {"kind": "message", "pattern": pattern, "nbytes": nbytes, "received_bytes": count * nbytes}
            lines.append(line | {"times_s": [took] * 3})
    spread = {f"rank{rank}_s": GEMM_S + skew_s * rank / (ranks - 1) for rank in range(ranks)}
    # Even draws of so many ranks are this far apart on average.
    apart = {name: GEMM_S + (own - GEMM_S) * (ranks - 1) / (ranks + 1) for name, own in spread.items()}
    for kind in cases:
        times = {arm: slowest_s(arm, ranks, skew_s) for arm in ("serial", *ARMS[kind])}
        times |= {"gemm torch": GEMM_S + skew_s * ranks / (ranks + 1), "link": alone(ranks)[-1]}
        lines += lines_of(
            gather(ranks, kind), times, about={"gemm torch": {"role": "gemm"}, "link": {"role": "link"}},
            values={"gemm torch": apart, "link": {"last_arrival_s": alone(ranks)[-1]}}, vendor="serial", link="gloo",
            link_bytes_per_s_requested=None, row_blocks=4, workers=1, row_tiles=4, column_tiles=1,
        )  # fmt: skip
    return save(folder, lines)


def said(capsys, *arguments):
    code = main(["predict", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("ranks", [2, 5])
def test_the_rank_that_begins_last_is_the_slowest(ranks):
    """Whom others wait for ends after them: each has a port of its own, open once it has begun."""
    rng, each_s = random.Random(1), MESSAGE_S + BYTES_S / ranks
    for _ in range(50):
        begins, ends = [rng.uniform(0, 0.03) for _ in range(ranks)], []
        for rank, begin in enumerate(begins):
            here, free = [begin], begin
            for step in range(1, ranks):
                free = max(free, begins[(rank + step) % ranks]) + each_s
                here.append(free - MESSAGE_S + LATENCY_S)
            ends.append(begin + launched([at - begin for at in here], ranks))
        assert max(ends) == pytest.approx(max(begins) + arm_s("chunk_launches", ranks), abs=1.5 * LAUNCH_S)


@pytest.mark.parametrize("skew_s", [0.0, 0.02])
@pytest.mark.parametrize("ranks", [2, 4])
def test_other_ranks_take_what_they_do_when_simulated_one_by_one(tmp_path, monkeypatch, capsys, ranks, skew_s):
    monkeypatch.setattr(scale, "launch_share", lambda model, case: LAUNCH_S / GEMM_S)
    asked = ("--ranks", "2,4,16,256", "--json", "--run", run_of(tmp_path / "run", ranks, skew_s))
    code, out, err = said(capsys, *asked, *(("--message", MESSAGE_S) if ranks == 2 else ()))
    assert code == 0, err
    found = json.loads(out)
    assert found["wire"]["latency_between"] == pytest.approx(LATENCY_S)
    assert found["wire"]["message"] == pytest.approx(MESSAGE_S)
    assert found["wire"]["skew"] == pytest.approx(skew_s, abs=1e-9)
    assert {row["ranks"] for row in found["gathers"]} == {2, 4, 16, 256}
    for row in found["gathers"]:
        own = slowest_s(row["arm"], row["ranks"], skew_s)
        assert row["time_s"] == pytest.approx(own, rel=0.01), row
        assert row["t_comm_s"] == pytest.approx(alone(row["ranks"])[-1], rel=1e-3)
        assert row["gain"] == pytest.approx(slowest_s("serial", row["ranks"], skew_s) / own, rel=0.02)
        assert (row["measured_s"] is not None) == (row["ranks"] == ranks)


def test_ranks_of_a_node_hear_each_other_by_another_wire():
    network = scale.Network(8, 100.0, 10.0, 0.5, 1.5, 0.25, 0.0)
    assert network.t_comm_s(8, 800) == 0.5 + 6 * 0.25 + 700 / 100
    assert network.t_comm_s(16, 800) == 1.5 + 14 * 0.25 + 350 / 100 + 400 / 10
    assert network.t_comm_s(16, 800, blocks=2) == network.t_comm_s(16, 800) + 15 * 0.25
    assert scale.Network(skew=3.0).late_s(2) == 2.0


def test_what_a_launch_takes_again_is_what_does_not_go_with_k():
    constants = Constants(compute=1.0, memory=0.5, extra_k=256, start_s=1e-3)
    family = Family("torch", "fp32", constants)
    model = Model("cpu", {"fp32": MachineSpec(1e11, 1e10)}, (family,), (family,))
    case = gather(2)
    each_k = 2 * case.m * case.n / 1e11 + 4 * (case.m + case.n) / 0.5e10
    fixed = 1e-3 + 256 * 2 * case.m * case.n / 1e11 + 4 * case.m * case.n / 0.5e10
    assert scale.launch_share(model, case) == pytest.approx(fixed / (fixed + case.k * each_k))
    assert scale.launch_share(None, case) == 0


def test_words_say_where_the_gain_is_best_and_from_where_on_it_is_less_than_half(tmp_path, capsys):
    folder = run_of(tmp_path / "run", 4)
    code, out, _ = said(
        capsys, "--ranks", "4,10000", "--run", folder, "--plot", tmp_path / "gain.svg", "--message", "1ms"
    )
    assert code == 0
    # 209.5 / 109.5 ms at 32, where T_comm is nearest to T_gemm; 307 / 207 at 128, and 436 / 336 at 256.
    assert "overlapped: gains most at P = 32, 1.91 x, and less than half as much from P = 256 on" in out
    assert "left out, P = 10000: n=1024 cannot be cut for so many" in out
    assert "--ranks-a-node 1 --bandwidth-between 2.1e+08 --latency-between 2ms --message 1ms --skew 0us" in out
    assert "what launches cost, of which small chunks need more (--on RUN with ceilings)" in out
    assert out.count("P  arm") == len(ARMS)
    texts = (tmp_path / "gain.svg").read_text()
    for text in ("chunk_launches", "overlapped", gather(4).id, "hollow: measured", "--message 1ms", "gain over serial"):
        assert text in texts
    assert scale.words("x", {2: 1.0, 4: 0.9}) == "x: no gain at any P"
    assert scale.words("x", {2: 1.1, 4: 1.2}) == "x: gains most at P = 4, 1.20 x, and more than half to the end"


def test_emulated_run_has_t_gemm_and_is_told_the_rest(tmp_path, capsys):
    folder = save(tmp_path / "run", [HERE, *SWEEP])
    code, _, err = said(capsys, "--ranks", "64", "--run", folder)
    assert (code, err.count("\n")) == (2, 1)
    assert "give --ranks-a-node, --bandwidth-inside, --latency-inside, --message, --skew" in err
    wire = [*["--ranks-a-node", "8", "--skew", "0", "--message", "1us"]]
    wire += "--bandwidth-inside 1e10 --latency-inside 1us".split()  # noqa: SIM905
    code, _, err = said(capsys, "--ranks", "64", "--run", folder, *wire)
    assert (code, err.count("\n")) == (2, 1)
    assert "give --bandwidth-between, --latency-between\n" in err
    wire += ["--bandwidth-between", "1e9", "--latency-between", "20us"]
    case = next(line["shape"] for line in SWEEP if line["kind"] == "shape")
    code, out, _ = said(capsys, case, "--ranks", "8,64", "--run", folder, *wire)
    assert code == 0
    assert out.count(" chunk_launches ") == 2


def test_where_ranks_share_nodes_and_nodes_a_wire_the_run_tells_what_is_inside(tmp_path):
    run = load(run_of(tmp_path / "run", 4, nodes=2, ranks_a_node=2))
    found = scale.measured(run)
    assert found.latency_inside == pytest.approx(LATENCY_S)
    assert found.missing(4) == ["--bandwidth-between", "--latency-between", "--message"]
    inside = scale.measured(load(run_of(tmp_path / "run", 4, nodes=1, ranks_a_node=4)))
    assert (inside.missing(4), inside.missing(8)) == ([], ["--bandwidth-between", "--latency-between"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "1"], "'1' is no list of 2 to 10000 ranks, as in 2,8,64,1024"),
        (["--ranks", "8,x", "--run", "RUN"], "'8,x' is no list of 2 to 10000 ranks"),
        (["--ranks", "8", "--chip", "H100 SXM"], "--ranks goes with --run"),
        (["--skew", "1us", "--run", "RUN", "matmul-xxl-up-tp8-m1-bf16"], "--skew goes with --ranks"),
        (["--ranks", "8", "--run", "RUN", "--skew", "5"], "'5': it must be 0 to 1 seconds, as in 5e-5 or 50us"),
        (["--ranks", "8", "--run", "RUN", "--ranks-a-node", "0"], "ranks_a_node=0: it must be 1 or more"),
        (["--ranks", "8", "--run", "RUN"], "did not measure all of its wire: give --message"),
        (["--ranks", "2", "--run", "RUN", "other"], "the run measured no gather other: it has all_gather_"),
        (["--ranks", "2", "--run", "RUN", "--plot", "gain.xyz"], "Format 'xyz' is not supported"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, tmp_path, capsys):
    folder = run_of(tmp_path / "run", 2)
    try:
        code = main(["predict", *(str(folder) if word == "RUN" else word for word in arguments)])
    except SystemExit as stop:
        code = stop.code
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1), error
    assert words in error


def test_nothing_is_said_from_loopback(tmp_path, capsys):
    folder = run_of(tmp_path / "run", 2, loopback=True)
    wire = ["--bandwidth-between", "1e9", "--latency-between", "1us", "--skew", "0", "--ranks-a-node", "1"]
    code, _, err = said(capsys, "--ranks", "2", "--run", folder, *wire)
    assert (code, err.count("\n")) == (2, 1)
    assert "nothing can be said from this run: void, loopback" in err


def test_json_is_documented(tmp_path, capsys):
    _, out, _ = said(capsys, "--ranks", "2", "--json", "--run", run_of(tmp_path / "run", 2))
    found = json.loads(out)
    text = (Path(__file__).parents[2] / "results" / "README.md").read_text().partition("With `--ranks`:")[2]
    assert [name for name in (*found, *found["gathers"][0]) if f"`{name}`" not in text.partition("\n## ")[0]] == []
