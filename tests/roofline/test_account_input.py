"""Bad input of `roofline account`: one line that says what is wrong and what would be right, at once."""

import time

import pytest

from roofline.cli import main


@pytest.mark.parametrize(
    ("line", "said"),
    [
        # What is not known.
        ("--model xxk", "unknown model 'xxk': did you mean xxl?"),
        ("--model 16384,-1", "two whole numbers above 0"),
        ("--chip h10", "did you mean 'H100 SXM'?"),
        ("--chip tpu-v6", "unknown chip 'tpu-v6': did you mean 'TPU v"),
        ("--step trainin", "did you mean training?"),
        ("--saved hlaf", "did you mean half?"),
        ("--wires share", "did you mean shared?"),
        ("--fdsp 8", "unrecognized arguments: --fdsp 8; did you mean --fsdp?"),
        ("--dtypes weights=fp12", "dtypes 'weights=fp12': it is KIND=DTYPE, of activations, copy"),
        # Sizes, counts and rates.
        ("--memory 80", "'80' has no unit: say it in B, KB, MB, GB, TB, KiB, MiB, GiB, TiB (a GiB is 2**30 bytes)"),
        ("--memory 80gb", "'80gb' has the unknown unit gb: say it in B, KB, MB, GB"),
        ("--memory 0GB", "'0GB' is no size above 0, as 80GB or 80GiB"),
        ("--memory=-80GB", "'-80GB' is no size above 0"),
        ("--memory 1e999GB", "is no size above 0"),
        ("--memory GB", "'GB' is no size above 0"),
        ("--tokens -5", "'-5' is not a whole number of tokens, 0 or more"),
        ("--tokens 1.5", "not a whole number of tokens"),
        ("--tokens 1e99 --fsdp 8", "'1e99' is above 1e+15 tokens: give those of one step, as 4e6"),
        ("--tp 0", "'0' is not a whole number above 0"),
        ("--flops 275", "'275' is below 1e+09: did you mean 275e12 FLOP/s, which is 275 TFLOP/s?"),
        ("--bandwidth 100", "'100' is below 1e+06: did you mean 100e9 bytes/s, which is 100 GB/s?"),
        ("--network 50", "did you mean 50e9 bytes/s"),
        ("--flops 0", "'0' is not a number above 0"),
        ("--network inf", "'inf' is not a number above 0"),
        # What does not fit together.
        ("--tp 7", "--tp 7 does not divide F = 53248: take 4 or 8"),
        ("--tp 9", "--tp 9 does not divide F = 53248: take 8 or 13"),
        ("--tp 60000", "--tp 60000 does not divide F = 53248: take 53248"),
        ("--tp 13", "--tp 13: groups of 13 devices do not pack into nodes of 8: let them divide it"),
        ("--fsdp 12", "--fsdp 12: groups of 12 devices do not pack into nodes of 8"),
        ("--fsdp 4 --dp 3", "--dp 3: groups of 12 devices"),
        ("--pp 127", "--pp 127: xxl has 126 blocks, and a stage needs one"),
        ("--devices 64 --fsdp 16 --tp 8", "--devices 64: the degrees given make 128; leave one out"),
        ("--devices 12", "account: --devices 12: groups of 12 devices do not pack into nodes of 8: let them"),
        ("--model 99999999,99999999 --devices 99999999", "account: --devices 99999999: groups of 99999999 devices"),
        (
            "--model 99999999,99999999 --chip L40S",
            "account: 8,388,608 devices, the least power of two whose memory holds it all: fsdp=8388608 spans",
        ),
        ("--chip L40S --devices 8", "account: --devices 8: fsdp=8 spans 8 nodes of 1, and the chip's network is not"),
        ("--node 12", "account: 64 devices, the least power of two whose memory holds it all: groups of 64 devices"),
        ("--devices 64 --tp 26", "--devices 64 is no multiple of the degrees given, 26 together"),
        ("--chip exercise", "how many devices? Give --devices N, or degrees"),
        ("--chip tpuv5p --node 8 --tp 2", "--node: TPU v5p is in a torus, it has no nodes; leave it out"),
        ("--chip tpuv5p --network 1e10 --tp 2", "--network: TPU v5p is in a torus"),
        (
            "--chip tpuv5p --fsdp 16 --tp 4 --dp 2 --pp 2",
            "--tp 4, --fsdp 16, --dp 2, --pp 2 need 4 axes of a torus, and TPU v5p has 3: leave one out",
        ),
        ("--chip exercise --devices 8 --tp 2", "--tp 2, fsdp of --devices 8 need 2 axes of a torus, and exercise has"),
        (
            "--chip L40S --tp 2",
            "tp=2 spans 2 nodes of 1, and the chip's network is not known; give --network BYTES/s, or",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(line, said, refused):
    start = time.process_time()
    error = refused("account", *line.split())
    assert said in error
    assert error.startswith("roofline")
    assert time.process_time() - start < 20  # no search without end


def test_huge_questions_end(capsys):
    for line in (
        "--model 1024,1099511627776 --devices 1099511627776",
        "--memory 1B",
        "--tokens 1e15 --fsdp 8",
        "--model 1,1 --fsdp 8 --tokens 1",
        "--flops 1e9 --fsdp 8",
    ):
        start = time.process_time()
        assert main(["account", *line.split()]) == 0
        assert time.process_time() - start < 30
    assert capsys.readouterr().err == ""
