"""`roofline account` on the command line: its text, its JSON against figures worked out by hand, and bad input."""

import json
import re
import shlex
from pathlib import Path

import pytest

from roofline.account.command import size
from roofline.cli import main

ROOT = Path(__file__).parents[2]
V5P = "--chip tpuv5p --flops 4.6e14 --fsdp 16 --tp 4"
TRAINING = "--fsdp 128 --tp 8 --step training --tokens 4e6"

QUESTIONS = [
    "",
    f"{V5P} --memory 95GB --saved half --tokens 131072",
    TRAINING,
    "--chip exercise --tp 64",
    "--chip exercise --fsdp 8 --model 1000,3000",
    "--fsdp 4 --tp 2 --dp 2 --pp 2 --saved checkpointed --step training --tokens 65536 --model llama-3-70b",
    "--chip tpuv4 --fsdp 64 --dp 4 --step training --tokens 1e6",
    "--chip L40S --node 1 --fsdp 1",
    "--dp 64 --tokens 1e12",
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
    return {lever["name"]: lever for lever in found["levers"]}


@pytest.mark.parametrize(
    "case",
    [
        ("--chip exercise --fsdp 8", "compute-bound above 22,000 tokens, 2,750.0 on each device; below, the forward"),
        ("--chip exercise --fsdp 8 --tokens 22000", "each device (22,000 are enough); below, the forward pass waits"),
        ("--chip exercise --fsdp 8 --tokens 21999", "each device (21,999 are too few); below, the forward pass waits"),
        # The book's, on H100.
        ("--fsdp 1024 --collectives whole --flops 9.9e14", "2,475.0 on each device"),
        (f"{V5P} --memory 95GB", "4.6e+14 FLOP/s (given), torus axes of 180 GB/s both", "95.00 GB = 88.48 GiB (given)"),
        (f"{V5P} --wires shared", "25,302 tokens, 395.3 on each device  <- taken here", "pass waits for the wires"),
        # Memory in GB and in GiB.
        ("--memory 80GiB", "  it fits, all sharded: 54.96 GB", "enough: 80 GB from N = 44 on, 80 GiB from N = 41 on"),
        ("--memory 80GiB", "64 devices: fsdp X = 4, tp Y = 16 (the least power of two whose memory holds it all, div"),
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
        ("--fsdp 64 --tp 8 --tokens 16", "too few: 384 devices have none, since the tokens are dealt out to 64"),
        # What is counted stands first.
        ("--fsdp 8", "xxl, FFN only: two matrices a block; attention and embeddings are not counted\n8 devices: fsdp"),
        ("--model llama-3-8b --fsdp 8", "llama-3-8b, FFN only: three matrices a block;", "; 5,637,144,576 parameters"),
        ("--model llama-3-8b --fsdp 8", "2,097,152 bytes a token: the input and the gate's and up's outputs"),
    ],
    ids=lambda case: case[0],
)
def test_what_the_text_says(said, case):
    line, *texts = case
    printed = said(line)
    for text in texts:
        assert text in printed, text
    assert printed.count("<- taken here") == 1


@pytest.mark.parametrize("question", QUESTIONS)
def test_text_is_aligned_and_short(said, question):
    lines = said(question).splitlines()
    assert max(map(len, lines)) <= 150
    table = [line for line in lines if line[:11] in ("  forward  ", "  backward ")]
    assert {len(line) for line in table} == {len(next(line for line in lines if "V, a token" in line))}
    assert not any(re.search(r"nan|inf\b|None|(?<![.\d])1 (devices|tokens|blocks)\b", line) for line in lines)


# JSON


XXL_STATE, XXL_SAVED, XXL_BLOCK = 3_517_578_215_424, 17_547_264, 3_489_660_928
"""Bytes of the state, of what is saved for a token, and of a block's weights in bf16."""


@pytest.mark.parametrize(
    ("line", "values"),
    [
        # Devices are divided at the least bound unless degrees are given.
        (
            "--chip tpuv5p --flops 4.6e14 --devices 64",
            {"question.setting.sharding.fsdp": 4, "question.setting.sharding.tp": 16},
        ),
        ("--devices 64 --dp 8", {"question.chosen": "divided at the least bound", "devices": 64}),
        ("--chip tpuv5p --devices 64 --tp 4 --pp 2", {"question.setting.sharding.fsdp": 8, "question.chosen": ""}),
        # What is given takes the place of the datasheet.
        ("--chip tpuv4 --bandwidth 50e9 --fsdp 8", {"question.setting.mesh.axis_bytes_per_s": 100e9}),
        (
            "--bandwidth 9e11 --node 4 --fsdp 8",
            {"question.setting.mesh.link_bytes_per_s": 9e11, "question.setting.mesh.size": 4},
        ),
        (
            "--fsdp 8 --network 1e11",
            {"question.setting.mesh.network_bytes_per_s": 1e11, "question.given": {"network": 1e11}},
        ),
        ("--fsdp 8 --memory 16GiB", {"question.device_bytes": 2**34, "question.given": {"memory": 2**34}}),
        # Checkpoints alone are computed again in the backward pass.
        ("--fsdp 8 --step training --saved half", {"passes.1.flop_per_token": XXL_BLOCK / 4}),
        ("--fsdp 8 --step training --saved checkpointed", {"passes.1.flop_per_token": 2.5 * XXL_BLOCK / 8}),
        # Stages that differ by a block are counted as the largest; they keep their weights gathered.
        ("--fsdp 8 --pp 4", {"stage_blocks": 32, "gathered_bytes": 32 * XXL_BLOCK}),
        (
            "--fsdp 8 --pp 4 --tokens 8",
            {"readings.0.device_bytes": (XXL_STATE + 8 * XXL_SAVED) / 126 * 32 / 8 + 32 * XXL_BLOCK},
        ),
        # Replicas hold the state each, and share what is saved.
        ("--dp 4 --fsdp 16 --tokens 64", {"readings.0.device_bytes": XXL_STATE / 16 + XXL_SAVED}),
        # A tensor parallel group shares its tokens.
        ("--tp 8 --tokens 1", {"devices_without_tokens": 0}),
        # JSON has no infinity.
        ("--chip exercise --tp 64", {"bounds.fabric.tokens": None}),
    ],
)
def test_fields_of_the_json(said, line, values):
    for path, value in values.items():
        found = answer(said, line)
        for key in path.split("."):
            found = found[int(key) if key.isdecimal() else key]
        assert found == (value if value is None else pytest.approx(value))


def test_json_of_v5p_against_figures_worked_out_by_hand(said):
    found = answer(said, f"{V5P} --memory 95GB --saved half --tokens 131072")
    assert found["schema"] == 2
    assert (found["state_bytes"], found["saved_bytes"]) == (XXL_STATE, 1_149_977_493_504)
    dropped, whole = found["readings"]
    assert (dropped["least_devices"], dropped["fits"]) == ({"95 GB": 50, "95 GiB": 46}, True)
    assert (whole["least_devices"], whole["fits"]) == ({"95 GB": None, "95 GiB": None}, False)
    assert dropped["device_bytes"] == pytest.approx(4_667_555_708_928 / 64)
    assert whole["device_bytes"] == pytest.approx(4_667_555_708_928 / 64 + 1_149_977_493_504)
    assert found["gathered_bytes"] == 872_415_232  # 2 D F bf16, over tp = 4
    (forward,) = found["passes"]
    assert (forward["flop_per_token"], forward["s_per_token"]) == (54_525_952, pytest.approx(1.18534678e-7))
    gather, activations, _ = found["terms"]
    assert gather["crossings"] == [{"fabric": "fsdp axes", "amount": 1, "bytes_per_s": 360e9}]
    assert (gather["fixed_bytes"], activations["token_bytes"]) == (872_415_232, 2048)
    assert found["bounds"]["fabric"]["tokens"] == pytest.approx(20_444.444)
    assert found["bounds"]["shared"]["tokens"] / 64 == pytest.approx(395.34, abs=0.01)
    assert found["least_d_ff"] == pytest.approx(10_222.22)
    assert (forward["math_s"], forward["wire_s"]) == (pytest.approx(15.5365774e-3), pytest.approx(2.98261618e-3))
    assert forward["serial_s"] == pytest.approx(15.5365774e-3 + 2.42337564e-3 + 2.98261618e-3)
    assert forward["overlapped_s"] == forward["math_s"]
    whole, real = (found["best_splits"][name] for name in ("whole", "real"))
    assert (whole["sharding"]["fsdp"], whole["tokens"]) == (4, pytest.approx(5111.11))
    assert real["tokens"] / 64 == pytest.approx(61.325, abs=1e-3)


def test_json_of_training_against_figures_worked_out_by_hand(said):
    found = answer(said, TRAINING)
    techniques = techniques_of(found)
    assert [each["flop_per_token"] for each in found["passes"]] == [3_407_872, 6_815_744]
    assert found["bounds"]["fabric"]["tokens"] == pytest.approx(2_513_076)
    # 3 * 436,207,616 * 127/128 bytes of weights and gradients, 5 * 256 * 7/8 bytes a token.
    assert techniques["sequence parallelism"]["wire_bytes"] == pytest.approx(126 * (1_298_399_232 + 1120 * 2_513_076))
    # Forward: 2 gathers or scatters beside one pass of matmuls; backward: 3 beside two.
    assert found["least_d_ff"] == pytest.approx(7 / 8 * 8 * 989.4e12 / 450e9)
    assert techniques["8-bit gathers of weights"]["of_the_bound_now"] == pytest.approx(0.75)
    assert techniques["activation checkpointing"]["memory_bytes"] == pytest.approx(-4e6 * 125 * 53248 * 2 / 1024)
    axes = techniques["more mesh axes for FSDP"]
    assert (axes["tokens"], axes["wire_bytes"]) == (None, None)


def test_a_stage_has_its_own_blocks_on_the_wire(said):
    found = answer(said, "--fsdp 8 --pp 2")
    now = techniques_of(found)["sequence parallelism"]
    # 63 blocks: 7/8 of the weights gathered, and once for all of them 2 D bytes of each of its tokens sent.
    tokens = found["bounds"]["fabric"]["tokens"]
    assert now["wire_bytes"] == pytest.approx(63 * 7 / 8 * XXL_BLOCK + 2 * 16384 * tokens / 8)


def test_what_does_not_fit_a_device_is_no_choice(said):
    found = techniques_of(answer(said, "--fsdp 1024"))
    assert next(iter(found)) == "8-bit gathers of weights"
    stages = found["4 pipeline stages"]
    # 32 blocks of weights beside the state: 3517.58 GB / 1024 * 128 / 126 and 32 * 3.49 GB.
    assert (stages["helps"], stages["tokens"]) == (False, None)
    assert stages["why"].startswith("115.16 GB do not fit a device of 80.00 GB; 4 times fewer devices gather")
    assert found["gradient accumulation, weights kept gathered"]["tokens"] is None
    assert next(iter(techniques_of(answer(said, "--fsdp 1024 --memory 120GB")))) == "4 pipeline stages"
    # The same question without the table of techniques.
    for memory, fits in (("80GB", False), ("120GB", True)):
        (reading,) = answer(said, f"--fsdp 256 --pp 4 --memory {memory}")["readings"]
        assert (reading["device_bytes"], reading["fits"]) == (pytest.approx(115.16e9, rel=1e-4), fits)
    # A device that holds too much already may still hold less.
    full = techniques_of(answer(said, "--fsdp 8 --tokens 1000"))
    assert full["8-bit gathers of weights"]["tokens"]
    assert full["4 pipeline stages"]["tokens"] is None


def test_every_field_of_the_json_is_documented(said):
    table = (ROOT / "docs/accounting.md").read_text().partition("## JSON")[2].partition("| :-- |")[2]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", table, re.M)))) == set(answer(said, V5P))


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
