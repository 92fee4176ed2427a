"""`roofline account` on the command line: its text, its answer against figures worked out by hand, and memory. The
documents show more of it, test_documents.py, and test_command_lines.py bad input."""

import re
import shlex

import pytest
from account_settings import ask

from roofline.account import memory
from roofline.commands.cli import main
from roofline.theory.models import parse

V5P = "--chip tpuv5p --flops 4.6e14 --fsdp 16 --tp 4"


@pytest.mark.parametrize(
    "case",
    [
        ("--chip exercise --fsdp 8 --tokens 21999", "each device (21,999 are too few)", "the links set the pace"),
        ("--memory 79.5GiB --fsdp 64", "79.5 GiB from N = 42 on"),
        # Without a bound, without a link.
        (
            "--chip exercise --tp 64",
            "  never compute-bound: over the tp axes each token takes longer than on the chip",
            "need F above 176,000, and F = 53,248: so they do not",
        ),
        ("--chip exercise --tp 8", "  compute-bound at any number of tokens\n\nxxl: 126 ", "  any"),
        ("", "N = 1, X = 1 (fsdp), Y = 1 (tp)\n  it does not fit, all sharded: 3,517.58 GB", "from N = 44 on, 80 G"),
        (
            "--model llama-3-8b --fsdp 8",
            "3 matrices a block;",
            ", 5,637,144,576 weights",
            "2,097,152 bytes a token, the input and the gate's and up's outputs",
        ),
        ("--fsdp 64 --tokens 1e12", "at B = 1,000,000,000,000, ", "  1.755e+10  1.634e+10  "),
    ],
    ids=lambda case: case[0],
)
def test_text_has_the_numbers_and_is_aligned_and_short(capsys, case):
    line, *texts = case
    assert main(["account", *shlex.split(line)]) == 0
    report = capsys.readouterr().out
    assert [text for text in texts if text not in report] == []
    lines = report.splitlines()
    assert max(map(len, lines)) <= 150
    first = next(number for number, line in enumerate(lines) if line.startswith("  matmuls: ")) + 1
    last = next(number for number, line in enumerate(lines) if line.startswith("  compute-bound above  "))
    assert len({len(line) for line in lines[first:last]}) <= 1
    assert not re.search(r"nan|inf\b|None", report)


def test_answers_in_a_blink_without_heavy_packages(light):
    assert "319.4 on each device" in light(0.6, "roofline", "account", *V5P.split(), "--tokens", "131072")


@pytest.mark.parametrize(
    ("model", "saved", "elements"),
    [
        ("xxl", "all", 126 * (16384 + 53248)),  # the inputs of both layers
        ("xxl", "half", 63 * (16384 + 53248)),
        ("xxl", "checkpointed", 126 * 16384 + 53248),  # those of blocks, and of one inner layer
        ("llama-3-8b", "checkpointed", 32 * 4096 + 2 * 14336),  # the outputs of gate and up
    ],
)
def test_saved_activations(model, saved, elements):
    question = ask("exercise", {}, model=parse(model), tokens=1000, saved=saved)
    saved_bytes = memory.saved_bytes(question)
    assert saved_bytes == memory.sharded_bytes(question) - memory.state_bytes(question) == 1000 * 2 * elements
    assert {*memory.readings(question).values()} == {0, saved_bytes if saved == "half" else 0}


ACCOUNTS = [  # options, what the account says, what it does not
    ("--model 5120,13824 --fsdp 64", ("memory: not known of D,F alone; add --blocks N, --gate",), ("fits", "MEMORY")),
    ("--model mine@5120x13824 --fsdp 64 --tokens 4096", ("memory: not known",), ("fits", "MEMORY", "GB  ")),
    ("--model 5120,13824 --blocks 40 --fsdp 64", ("FFN only: 2 matrices", " 5,662,310,400 weights"), ("not known",)),
    ("--model 5120,13824 --blocks 40 --gate --fsdp 64", ("FFN only: 3 matrices", "8,493,465,600"), ("not known",)),
    ("--model 5120,13824 --blocks 40 --vocabulary 32000", ("2 of 32,000 x D;", "5,989,990,400"), ("embeddings",)),
    ("--chip h100pcie --fsdp 2", ("\nH100 PCIe: ",), ("SXM",)),
]


@pytest.mark.parametrize(("line", "texts", "absent"), ACCOUNTS)
def test_an_account_says_what_it_lacks_and_takes_what_it_is_given(capsys, line, texts, absent):
    assert main(["account", *line.split()]) == 0
    shown = " ".join(capsys.readouterr().out.split(" "))
    assert [text for text in texts if text not in shown.replace("\n  ", " ")] == []
    assert [text for text in absent if text in shown] == []
