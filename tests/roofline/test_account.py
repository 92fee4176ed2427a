"""`roofline account` on the command line: its text, its JSON against figures worked out by hand, and bad input."""

import json
import re
import shlex
import time
from pathlib import Path

import pytest

from roofline.account.command import size
from roofline.cli import main

ROOT = Path(__file__).parents[2]
V5P = "--chip tpuv5p --flops 4.6e14 --fsdp 16 --tp 4"
NODES = "--fsdp 128 --tp 8 --tokens 4e6"

QUESTIONS = [
    "",
    f"{V5P} --memory 95GB --saved half --tokens 131072",
    NODES,
    "--chip exercise --tp 64",
    "--chip exercise --fsdp 8 --model 1000,3000",
    "--fsdp 8 --tp 2 --saved checkpointed --tokens 65536 --model llama-3-70b",
    "--chip L40S --fsdp 1",
    "--fsdp 64 --tokens 1e12",
]


@pytest.fixture
def printed(capsys):
    """What the command prints for a line of options."""

    def run(line):
        assert main(["account", *shlex.split(line)]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "case",
    [
        ("--chip exercise --fsdp 8 --tokens 22000", "each device (22,000 are enough); below, the forward pass waits"),
        ("--chip exercise --fsdp 8 --tokens 21999", "each device (21,999 are too few); below, the forward pass waits"),
        # The book's, on H100.
        ("--fsdp 1024 --collectives whole --flops 9.9e14", "2,475.0 on each device"),
        (f"{V5P} --memory 95GB", "4.6e+14 FLOP/s (given), torus axes of 180 GB/s (1 f", "95.00 GB = 88.48 GiB (given)"),
        ("--memory 79.5GiB --fsdp 64", "79.5 GiB from N = 42 on"),
        ("--saved half --tokens 131072", "80 GiB at no N", "+ 1,149.98) GB / N + 1,149.98 GB"),
        ("--chip exercise --fsdp 8", "  it takes, all sharded: 439.70 GB = 409.50 GiB on each device\n  compute-bound"),
        # Without a bound, without a wire, and with very little.
        ("--chip exercise --tp 64", "  never compute-bound: over the tp axes each token takes longer than on the chip"),
        ("--chip exercise --tp 64", "need F above 176,000, and F = 53,248: so they do not", "now none, the wire takes"),
        ("--chip exercise --tp 8", "  compute-bound at any number of tokens\n\nxxl: 126 ", "THE BOUND: there is none"),
        ("--chip exercise --fsdp 8", "best lever: a better split of X and Y: compute-bound at any number of tokens; X"),
        (
            "",
            "1 device: not sharded\n  it does not fit, all sharded: 3,517.58 GB",
            "enough: 80 GB from N = 44 on, 80 G",
        ),
        ("--model 4,8 --fsdp 8 --tokens 1", "1.02e-06", "at 1 token, 0.125 on each device", "1 block, D = 4"),
        ("--model llama-3-8b --fsdp 8", "llama-3-8b, FFN only: three matrices a block;", "; 5,637,144,576 parameters"),
        ("--model llama-3-8b --fsdp 8", "2,097,152 bytes a token: the input and the gate's and up's outputs"),
    ],
    ids=lambda case: case[0],
)
def test_text(printed, case):
    line, *texts = case
    shown = printed(line)
    assert [text for text in texts if text not in shown] == []


@pytest.mark.parametrize("question", QUESTIONS)
def test_text_is_aligned_and_short(printed, question):
    lines = printed(question).splitlines()
    assert max(map(len, lines)) <= 150
    first = next(number for number, line in enumerate(lines) if "V, a token" in line)
    assert {len(line) for line in lines[first : lines.index("  compute-bound above")]} == {len(lines[first])}
    assert not any(re.search(r"nan|inf\b|None|(?<![.\d])1 (devices|tokens|blocks)\b", line) for line in lines)


# JSON


def test_json_of_v5p_against_figures_worked_out_by_hand(printed):
    answer = json.loads(printed(f"{V5P} --memory 95GB --saved half --tokens 131072 --json"))
    assert answer["schema"] == 3
    assert (answer["state_bytes"], answer["saved_bytes"]) == (3_517_578_215_424, 1_149_977_493_504)
    dropped, whole = answer["readings"]
    assert (dropped["least_devices"], dropped["fits"]) == ({"95 GB": 50, "95 GiB": 46}, True)
    assert (whole["least_devices"], whole["fits"]) == ({"95 GB": None, "95 GiB": None}, False)
    assert dropped["device_bytes"] == pytest.approx(4_667_555_708_928 / 64)
    assert whole["device_bytes"] == pytest.approx(4_667_555_708_928 / 64 + 1_149_977_493_504)
    assert answer["gathered_bytes"] == 872_415_232  # 2 D F bf16, over tp = 4
    forward = answer["forward"]
    assert (forward["flop_per_token"], forward["s_per_token"]) == (54_525_952, pytest.approx(1.18534678e-7))
    gather, activations, _ = answer["terms"]
    assert gather["crossings"] == [{"fabric": "fsdp axes", "amount": 1, "bytes_per_s": 360e9}]
    assert (gather["fixed_bytes"], activations["token_bytes"]) == (872_415_232, 2048)
    assert answer["bounds"]["fabric"]["tokens"] == pytest.approx(20_444.444)
    assert answer["bounds"]["shared"]["tokens"] / 64 == pytest.approx(395.34, abs=0.01)
    assert answer["least_d_ff"] == pytest.approx(10_222.22)
    assert (forward["math_s"], forward["wire_s"]) == (pytest.approx(15.5365774e-3), pytest.approx(2.98261618e-3))
    assert forward["serial_s"] == pytest.approx(15.5365774e-3 + 2.42337564e-3 + 2.98261618e-3)
    assert forward["overlapped_s"] == forward["math_s"]
    whole, real = (answer["best_splits"][name] for name in ("whole", "real"))
    assert (whole["sharding"]["fsdp"], whole["tokens"]) == (4, pytest.approx(5111.11))
    assert real["tokens"] / 64 == pytest.approx(61.325, abs=1e-3)


def test_json_of_nodes_against_figures_worked_out_by_hand(printed):
    answer = json.loads(printed(f"{NODES} --json"))
    levers = {lever["name"]: lever for lever in answer["levers"]}
    assert answer["forward"]["flop_per_token"] == 3_407_872
    assert answer["bounds"]["fabric"]["tokens"] == pytest.approx(2_513_076)
    # 436,207,616 * 127/128 bytes of weights, 2 * 256 * 7/8 bytes a token.
    assert levers["overlap gathers with matmuls"]["wire_bytes"] == pytest.approx(126 * (432_799_744 + 448 * 2_513_076))
    assert answer["least_d_ff"] == pytest.approx(7 / 8 * 8 * 989.4e12 / 450e9)
    assert levers["8-bit gathers of weights"]["tokens"] == pytest.approx(2_513_076 / 2)
    assert levers["activation checkpointing"]["memory_bytes"] == pytest.approx(-4e6 * 125 * 53248 * 2 / 1024)


def test_every_field_of_the_json_is_documented_and_none_is_infinite(printed):
    answer = json.loads(printed("--chip exercise --tp 64 --json"))
    assert answer["bounds"]["fabric"]["tokens"] is None
    table = (ROOT / "docs/accounting.md").read_text().partition("## JSON")[2].partition("| :-- |")[2]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", table, re.M)))) == set(answer)


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


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--model xxk", "unknown model 'xxk': did you mean xxl?"),
        ("--model 16384,-1", "two whole numbers above 0"),
        ("--chip h10", "did you mean 'H100 SXM'?"),
        ("--saved hlaf", "did you mean half?"),
        ("--fdsp 8", "unrecognized arguments: --fdsp 8; did you mean --fsdp?"),
        ("--memory 80", "'80' has no unit: say it in B, KB, MB, GB, TB, KiB, MiB, GiB, TiB (a GiB is 2**30 bytes)"),
        ("--memory 80gb", "'80gb' has the unknown unit gb: say it in B, KB, MB, GB"),
        ("--memory=-80GB", "'-80GB' is no size above 0, as 80GB or 80GiB"),
        ("--memory 1e999GB", "is no size above 0"),
        ("--tokens -5", "'-5' is not a whole number of tokens, 0 to 1e15"),
        ("--tokens 1.5", "not a whole number of tokens"),
        ("--tokens 1e308", "not a whole number of tokens"),
        ("--tp 0", "'0' is not a whole number above 0"),
        ("--flops 275", "'275' is below 1e+09: did you mean 275e12 FLOP/s, which is 275 TFLOP/s?"),
        # What does not fit together.
        ("--tp 9", "--tp 9 does not divide F = 53248: take 8 or 13"),
        ("--tp 60000", "--tp 60000 does not divide F = 53248: take 53248"),
        ("--tp 13", "--tp 13: groups of 13 devices do not pack into nodes of 8: let them divide it"),
        ("--tp 4 --fsdp 3", "--fsdp 3: groups of 12 devices do not pack into nodes of 8"),
        ("--chip exercise --tp 2 --fsdp 4", "--tp 2, --fsdp 4 need 2 axes of a torus, and exercise has 1: leave one"),
        ("--chip L40S --tp 2", "tp=2 spans 2 nodes of 1, and the chip's network is not known: shard over fewer dev"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(line, text, refused):
    error = refused("account", *line.split())
    assert text in error
    assert error.startswith("roofline")


def test_huge_questions_end(printed):
    for line in (
        "--model 1024,1099511627776 --fsdp 1099511627776",
        "--memory 1B --fsdp 8",
        "--tokens 1e15 --fsdp 8",
        "--model 1,1 --fsdp 8 --tokens 1",
        "--flops 1e9 --fsdp 8",
    ):
        start = time.process_time()
        assert printed(line)
        assert time.process_time() - start < 30
