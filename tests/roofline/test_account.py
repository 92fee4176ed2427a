"""`roofline account` on the command line: its text, its JSON against figures worked out by hand, and bad input."""

import json
import re
import shlex
from pathlib import Path
from statistics import median

import pytest

import roofline
from roofline.account.command import size
from roofline.cli import main
from roofline.store.run import Run

ROOT = Path(__file__).parents[2]
V5P = "--chip tpuv5p --flops 4.6e14 --fsdp 16 --tp 4"
TRAINING = "--fsdp 128 --tp 8 --step training --tokens 4e6"

QUESTIONS = [
    "",
    f"{V5P} --memory 95GB --saved half --tokens 131072",
    TRAINING,
    "--chip exercise --tp 64",
    "--chip exercise --fsdp 8 --model 1000,3000",
    "--fsdp 4 --tp 2 --ep 2 --experts 4 --top-k 2 --dp 2 --pp 2 --saved checkpointed --step training --tokens 65536 "
    "--sharp",
    "--chip tpuv4 --axes dp=0 --network 6.25e9 --fsdp 64 --dp 4 --step training --tokens 1e6 --ways one",
    "--chip L40S --node 1 --fsdp 1",
    "--ep 64 --experts 64 --top-k 8 --tokens 1e12",
    "--chip exercise --fsdp 8 --tokens 22000 --hidden 0.9",
]


@pytest.fixture
def said(capsys):
    """What the command prints for a line of options."""

    def run(line):
        assert main(["account", *shlex.split(line)]) == 0
        return capsys.readouterr().out

    return run


def answer(said, line):
    return json.loads(said(f"{line} --json"))


def techniques_of(found):
    return {technique["name"]: technique for technique in found["techniques"]}


@pytest.mark.parametrize(
    "case",
    [
        ("--chip exercise --fsdp 8", "compute-bound above 22,000 tokens, 2,750.0 on each device; below, the forward"),
        ("--chip exercise --fsdp 8 --tokens 22000", "each device (22,000 are enough); below, the forward pass waits"),
        ("--chip exercise --fsdp 8 --tokens 21999", "each device (21,999 are too few); below, the forward pass waits"),
        ("--chip exercise --fsdp 8 --collectives exact", "2,406.2 on each device"),
        # The book's, on H100 and on three axes of TPU v5p.
        ("--fsdp 1024", "2,454.2 on each device"),
        ("--fsdp 1024 --collectives whole --flops 9.9e14", "2,475.0 on each device"),
        ("--chip tpuv5p --fsdp 512", "850.0 on each device"),
        (f"{V5P} --memory 95GB", "4.6e+14 FLOP/s (given), torus axes of 180 GB/s both", "95.00 GB = 88.48 GiB (given)"),
        (f"{V5P} --wires shared", "25,302 tokens, 395.3 on each device  <- taken here", "pass waits for the wires"),
        # Memory in GB and in GiB.
        ("--memory 80GiB", "  it fits, all sharded: 54.96 GB", "enough: 80 GB from N = 44 on, 80 GiB from N = 41 on"),
        ("--memory 80GiB", "64 devices: fsdp X = 4, tp Y = 16 (the least power of two whose memory holds it all, div"),
        ("--memory 80GiB --fsdp 128 --tokens 131072", "80 GiB from N = 68 on"),
        ("--memory 79.5GiB --fsdp 64", "79.5 GiB from N = 42 on"),
        ("--saved half --tokens 131072", "80 GiB at no N", "+ 1,149.98) GB / N + 1,149.98 GB"),
        ("--saved half --tokens 131072", "  it does not fit, the other half kept, whole on every device: 1,222.91 GB"),
        ("--chip exercise --fsdp 8", "  it takes, all sharded: 439.70 GB = 409.50 GiB on each device\n  compute-bound"),
        # Without a bound, without a wire, and with very little.
        ("--chip exercise --tp 64", "  never compute-bound: over the tp axes each token takes longer than on the chip"),
        ("--chip exercise --tp 64", "need F above 176,000, and F = 53,248: so they do not", "now none, the wire takes"),
        ("--chip exercise --tp 8", "  compute-bound at any number of tokens\n\nxxl: 126 ", "THE BOUND: there is none"),
        # The best lever is the first of the table.
        (V5P, "best lever: a better split of X and Y: compute-bound above 79.9 tokens on each device; X = 4, Y"),
        ("--chip exercise --fsdp 8", "best lever: a better split of X and Y: compute-bound at any number of tokens; X"),
        ("--dp 1", "1 device: not sharded"),
        ("--model 4,8 --fsdp 8 --tokens 1", "1.02e-06", "at 1 token, 0.125 on each device", "1 block, D = 4"),
        # What the degrees mean for axes, stages, replicas and microbatches.
        ("--chip tpuv5p --tp 4 --dp 4", "180 GB/s both ways (2 for tp, 1 for dp),"),
        ("--chip tpuv5p --tp 4 --fsdp 4", "180 GB/s both ways (1 for tp, 2 for fsdp),"),
        ("--fsdp 8 --pp 4", "fsdp X = 8, pp = 4 (stages of 32 blocks and of fewer: counted as of 32)"),
        ("--dp 4 --fsdp 16", "(the state whole in each of 4 replicas)"),
        ("--fsdp 64 --tokens 128 --gathers 4", "32 devices have none, since the tokens of a microbatch are dealt out"),
        ("--fsdp 64 --tp 8 --tokens 16", "too few: 384 devices have none, since the tokens are dealt out to 64"),
        ("--fsdp 256 --tokens 4e6 --gathers 8", "  it fits, all sharded: 48.01 GB", "for 500,000 tokens at once, bf"),
    ],
    ids=lambda case: case[0],
)
def test_what_the_text_says(said, case):
    line, *texts = case
    printed = said(line)
    for text in texts:
        assert text in printed, text
    assert printed.count("<- taken here") == 1


def test_the_book_on_experts_over_two_nodes(said):
    """A token of 8 experts goes to the other node once: 2 * 7168 / 16 bytes * 2 copies * 1/2 over 50 GB/s, twice."""
    line = "--model 7168,4096 --ep 16 --experts 64 --top-k 8 --flops 990e12"
    terms = answer(said, line)["pace"]["terms"]
    assert sum(term["s_per_token"] for term in terms) == pytest.approx(35.84e-9)
    assert {term["fabric"] for term in terms} == {"network"}


@pytest.mark.parametrize("question", QUESTIONS)
def test_text_is_aligned_and_short(said, question):
    lines = said(question).splitlines()
    assert max(map(len, lines)) <= 150
    table = [line for line in lines if line[:11] in ("  forward  ", "  backward ")]
    assert {len(line) for line in table} == {len(next(line for line in lines if "V, a token" in line))}
    assert not any(re.search(r"nan|inf\b|None|\b1 (devices|tokens|blocks)\b", line) for line in lines)


# JSON


XXL_STATE, XXL_SAVED, XXL_BLOCK = 3_517_578_215_424, 17_547_264, 3_489_660_928
"""Bytes of the state, of what is saved for a token, and of a block's weights in bf16."""


@pytest.mark.parametrize(
    ("line", "values"),
    [
        # Devices are divided at the least bound unless degrees are given.
        ("--chip tpuv5p --flops 4.6e14 --devices 64 --axes fsdp=2,tp=1", {"sharding.fsdp": 4, "sharding.tp": 16}),
        ("--devices 64 --dp 8", {"sharding.chosen": "divided at the least bound", "sharding.devices": 64}),
        ("--chip tpuv5p --devices 64 --tp 4 --pp 2", {"sharding.fsdp": 8, "sharding.tp": 4, "sharding.chosen": ""}),
        # What is given takes the place of the datasheet.
        ("--chip tpuv4 --bandwidth 50e9 --ways one --fsdp 8", {"chip.axis_bytes_per_s": 50e9, "chip.ways": 1}),
        ("--chip tpuv4 --network 3e9 --fsdp 8", {"chip.network_bytes_per_s": 3e9, "chip.given": {"network": 3e9}}),
        ("--bandwidth 9e11 --node 4 --fsdp 8", {"chip.link_bytes_per_s": 9e11, "chip.node_size": 4}),
        ("--fsdp 8 --network 1e11 --sharp", {"chip.network_bytes_per_s": 1e11, "chip.sharp": True}),
        ("--fsdp 8 --memory 16GiB", {"chip.memory_bytes": 2**34, "chip.given": {"memory": 2**34}}),
        # Checkpoints are computed again in the backward pass.
        ("--fsdp 8 --step training", {"pace.math.1.flop_per_token": XXL_BLOCK / 4, "pace.recompute": False}),
        ("--fsdp 8 --step training --saved half", {"pace.math.1.flop_per_token": XXL_BLOCK / 4}),
        ("--fsdp 8 --step training --saved checkpointed", {"pace.math.1.flop_per_token": 2.5 * XXL_BLOCK / 8}),
        # Stages that differ by a block are counted as the largest; they keep their weights gathered.
        ("--fsdp 8 --pp 4", {"sharding.stage_blocks": 32, "memory.gathered_bytes": 32 * XXL_BLOCK}),
        (
            "--fsdp 8 --pp 4 --tokens 8",
            {"memory.readings.0.device_bytes": (XXL_STATE + 8 * XXL_SAVED) / 126 * 32 / 8 + 32 * XXL_BLOCK},
        ),
        # Replicas hold the state each, and share what is saved.
        ("--dp 4 --fsdp 16 --tokens 64", {"memory.readings.0.device_bytes": XXL_STATE / 16 + XXL_SAVED}),
        # Too few tokens for the devices: a tensor parallel group shares one.
        ("--fsdp 64 --tp 8 --tokens 16", {"pace.at_tokens.devices_without_tokens": 384}),
        ("--fsdp 64 --tokens 64", {"pace.at_tokens.devices_without_tokens": 0}),
        ("--tp 8 --tokens 1", {"pace.at_tokens.devices_without_tokens": 0}),
        ("--fsdp 64 --tokens 128 --gathers 4", {"pace.at_tokens.devices_without_tokens": 32}),
        # At the bound itself the chips set the pace.
        ("--chip exercise --fsdp 8 --tokens 22000", {"pace.at_tokens.steps.0.pace": "chips"}),
        ("--chip exercise --fsdp 8 --tokens 21999", {"pace.at_tokens.steps.0.pace": "wire"}),
        # What is left over makes the largest microbatch.
        ("--dp 8 --tokens 10 --gathers 4", {"memory.tokens": 3}),
    ],
)
def test_fields_of_the_json(said, line, values):
    for path, value in values.items():
        found = answer(said, line)
        for key in path.split("."):
            found = found[int(key) if key.isdecimal() else key]
        assert found == pytest.approx(value)


def test_json_of_v5p_against_figures_worked_out_by_hand(said):
    found = answer(said, f"{V5P} --memory 95GB --saved half --tokens 131072")
    memory, pace = found["memory"], found["pace"]
    assert found["schema"] == 1
    assert found["chip"]["axes"] == {"tp": 1, "fsdp": 2}
    assert (memory["state_bytes"], memory["saved_bytes_per_token"], memory["saved_bytes"]) == (
        XXL_STATE, 8_773_632, 1_149_977_493_504,
    )  # fmt: skip
    assert memory["all_saved_bytes_per_token"] == XXL_SAVED
    dropped, whole = memory["readings"]
    assert (dropped["least_devices"], dropped["fits"]) == ({"95 GB": 50, "95 GiB": 46}, True)
    assert (whole["least_devices"], whole["fits"]) == ({"95 GB": None, "95 GiB": None}, False)
    assert dropped["device_bytes"] == pytest.approx(4_667_555_708_928 / 64)
    assert whole["device_bytes"] == pytest.approx(4_667_555_708_928 / 64 + 1_149_977_493_504)
    assert memory["gathered_bytes"] == 872_415_232  # 2 D F bf16, over tp = 4
    assert pace["math"] == [
        {"step": "forward", "flop_per_token": 54_525_952, "s_per_token": pytest.approx(1.18534678e-7)}
    ]
    gather, activations, sums = pace["terms"]
    assert gather["crossings"] == [{"fabric": "fsdp axes", "amount": 1, "bytes_per_s": 360e9}]
    assert (gather["fixed_bytes"], gather["fixed_s"], gather["s_per_token"]) == (
        872_415_232, pytest.approx(2.42337564e-3), 0,
    )  # fmt: skip
    assert (activations["bytes_per_token"], sums["s_per_token"]) == (2048, pytest.approx(1.13777778e-8))
    assert pace["bound"]["tokens"] == pytest.approx(20_444.444)
    assert pace["bounds"]["shared"]["tokens_per_device"] == pytest.approx(395.34, abs=0.01)
    assert pace["least_d_ff"] == pytest.approx(10_222.22)
    at = pace["at_tokens"]["steps"][0]
    assert (at["math_s"], at["wire_s"]) == (pytest.approx(15.5365774e-3), pytest.approx(2.98261618e-3))
    assert at["serial_s"] == pytest.approx(15.5365774e-3 + 2.42337564e-3 + 2.98261618e-3)
    assert (at["overlapped_s"], at["pace"]) == (pytest.approx(15.5365774e-3), "chips")
    best = pace["best_split"]
    assert (best["whole"]["fsdp"], best["whole"]["tp"], best["whole"]["tokens"]) == (4, 16, pytest.approx(5111.11))
    assert best["real"]["tokens_per_device"] == pytest.approx(61.325, abs=1e-3)
    assert (best["least_wire_whole"]["fsdp"], best["least_wire_whole"]["wire_s"]) == (16, pytest.approx(2.98261618e-3))
    assert best["least_wire_real"]["fsdp"] == pytest.approx(17.75, abs=0.01)  # sqrt(131072 / 53248 * 2 * 64)


def test_json_of_training_against_figures_worked_out_by_hand(said):
    found = answer(said, TRAINING)
    pace, techniques = found["pace"], techniques_of(found)
    assert [math["flop_per_token"] for math in pace["math"]] == [3_407_872, 6_815_744]
    assert pace["bound"]["tokens"] == pytest.approx(2_513_076)
    # 3 * 436,207,616 * 127/128 bytes of weights and gradients, 5 * 256 * 7/8 bytes a token.
    assert techniques["sequence parallelism"]["wire_bytes"] == pytest.approx(126 * (1_298_399_232 + 1120 * 2_513_076))
    # Forward: 2 gathers or scatters beside one pass of matmuls; backward: 3 beside two.
    assert pace["least_d_ff"] == pytest.approx(7 / 8 * 8 * 989.4e12 / 450e9)
    assert techniques["8-bit gathers of weights"]["of_the_bound_now"] == pytest.approx(0.75)
    assert techniques["activation checkpointing"]["flop"] == pytest.approx(7 / 6)
    assert techniques["activation checkpointing"]["memory_bytes"] == pytest.approx(-4e6 * 125 * 53248 * 2 / 1024)
    axes = techniques["more mesh axes for FSDP"]
    assert (axes["possible"], axes["tokens"], axes["wire_bytes"]) == (False, None, None)


def test_a_stage_has_its_own_blocks_on_the_wire(said):
    found = answer(said, "--fsdp 8 --pp 2")
    now = techniques_of(found)["sequence parallelism"]
    # 63 blocks: 7/8 of the weights gathered, and once for all of them 2 D bytes of each of its tokens sent.
    tokens = found["pace"]["bound"]["tokens"]
    assert now["wire_bytes"] == pytest.approx(63 * 7 / 8 * XXL_BLOCK + 2 * 16384 * tokens / 8)


def test_microbatches_save_their_activations_in_turn(said):
    line = "--fsdp 256 --tokens 4e6 --gathers 8"
    memory = answer(said, line)["memory"]
    assert (memory["tokens"], memory["saved_bytes"]) == (500_000, 500_000 * XXL_SAVED)
    # Each row costs what asking for it says: a quarter of the activations with four times the microbatches.
    (now,), (after,) = memory["readings"], answer(said, line.replace("8", "32"))["memory"]["readings"]
    more = techniques_of(answer(said, line))["gradient accumulation"]["memory_bytes"]
    assert after["device_bytes"] - now["device_bytes"] == pytest.approx(more)


def test_what_does_not_fit_a_device_is_no_choice(said):
    found = techniques_of(answer(said, "--fsdp 1024"))
    assert next(iter(found)) == "8-bit gathers of weights"
    stages = found["4 pipeline stages"]
    # 32 blocks of weights beside the state: 3517.58 GB / 1024 * 128 / 126 and 32 * 3.49 GB.
    assert (stages["possible"], stages["helps"], stages["tokens"]) == (False, False, None)
    assert stages["why"].startswith("115.16 GB do not fit a device of 80.00 GB; 4 times fewer devices gather")
    assert not found["gradient accumulation, weights kept gathered"]["possible"]
    roomy = answer(said, "--fsdp 1024 --memory 120GB")["techniques"]
    assert (roomy[0]["name"], roomy[0]["possible"]) == ("4 pipeline stages", True)
    # The same question without the table of techniques.
    for memory, fits in (("80GB", False), ("120GB", True)):
        (reading,) = answer(said, f"--fsdp 256 --pp 4 --memory {memory}")["memory"]["readings"]
        assert (reading["device_bytes"], reading["fits"]) == (pytest.approx(115.16e9, rel=1e-4), fits)
    # A device that holds too much already may still hold less.
    full = techniques_of(answer(said, "--fsdp 8 --tokens 1000"))
    assert full["8-bit gathers of weights"]["possible"] > full["4 pipeline stages"]["possible"]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_with_a_share_hidden_chips_compute_for_so_much_of_the_time(said, share):
    line = f"--chip exercise --fsdp 8 --hidden {share}"
    hidden = answer(said, line)["pace"]["hidden"]
    assert hidden["computes_at_bound"] == pytest.approx(1 / (2 - share))
    (step,) = answer(said, f"{line} --tokens {round(hidden['tokens'])}")["pace"]["at_tokens"]["steps"]
    assert step["math_s"] / step["hidden_s"] == pytest.approx(0.95, rel=1e-4)
    (step,) = answer(said, f"{line} --tokens 22000")["pace"]["at_tokens"]["steps"]
    assert step["math_s"] / step["hidden_s"] == pytest.approx(hidden["computes_at_bound"])


def test_the_share_hidden_is_what_a_run_measured(said, monkeypatch):
    plain = Run.records
    gradients = {"op": "gradient_all_reduce", "hidden_fraction": 0.0}  # which a run between ranks has, too
    monkeypatch.setattr(Run, "records", lambda self: [*plain(self), gradients])
    run = ROOT / "results/reference/amd-epyc-2026-11-22-5"
    records = [r for r in roofline.load(run).records() if r["op"] == "all_gather_matmul" and r["hidden_fraction"]]
    best = {}
    for record in records:
        shape = record["tp"], record["ranks"], record["wire"]
        best[shape] = max(best.get(shape, 0.0), record["hidden_fraction"])
    hidden = answer(said, f"--fsdp 8 --hidden {run}")["pace"]["hidden"]
    assert hidden["share"] == pytest.approx(median(best.values()))
    assert hidden["source"].startswith(
        f"the median over {len(best)} cases of all_gather_matmul, measured on FFN matmuls"
    )


def documented():
    """The fields in the tables of docs/accounting.md."""
    text = (ROOT / "docs/accounting.md").read_text().partition("## JSON")[2]
    return {name for row in re.findall(r"^\| (`.+?) \|", text, re.M) for name in re.findall(r"`([^`]+)`", row)}


def fields(value, known, path=""):
    """Every path of an answer, down to those that are documented as a whole."""
    if isinstance(value, dict) and path not in known:
        return set().union(*(fields(inner, known, f"{path}.{key}".lstrip(".")) for key, inner in value.items()))
    if isinstance(value, list) and path not in known:
        return set().union(*(fields(inner, known, f"{path}[]") for inner in value))
    return {path}


def test_every_field_is_documented_and_every_documented_field_is_there(said):
    known = documented()
    assert len(known) > 80
    nullable = {"pace.at_tokens", "pace.hidden"}
    found = set().union(*(fields(answer(said, question), known - nullable) for question in QUESTIONS))
    assert found == known


# Quick, light, and clear about bad input


def test_answers_in_half_a_second_without_heavy_packages(in_a_blink):
    assert "319.4 on each device" in in_a_blink("account", *V5P.split(), "--tokens", "131072")


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("80GB", 80 * 10**9), ("80 GiB", 80 * 2**30), ("1.5TB", 15 * 10**11), ("0.5KiB", 512), ("1e3MB", 10**9)],
)
def test_sizes_have_units(text, bytes_):
    assert size(text) == bytes_
    assert isinstance(size(text), int)
