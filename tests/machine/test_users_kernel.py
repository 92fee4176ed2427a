"""The kernel of docs/your-kernel.md as a user has it, and mistakes in it: looked at, and run on the machine."""

import contextlib
import io
import re
import tempfile
from pathlib import Path

import cases
import pytest

from kernels import inspect
from tests import hopper

PAGE = (Path(__file__).parents[2] / "docs" / "your-kernel.md").read_text()
KERNEL, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SCALED = {
    "out, M, N, K, x_m": "out, x_scales, w_scales, M, N, K, x_m",
    "acc.to(": "(acc * tl.load(x_scales + m, m < M) * tl.load(w_scales + n, n < N)).to(",
    "matmul(x, w, out=None)": "matmul(x, w, out=None, scales=None)",
    "kernel[grid](x, w, out, M": "kernel[grid](x, w, out, *scales, M",
}
MISTAKES = {
    "in fp8": (SCALED, ""),
    "a step too few": ({"range(0, K, BK)": "range(BK, K, BK)"}, r"28\d+ elements of out are wrong"),
}
"""Replacements in the file, and what the machine says then."""


def said(subject: str) -> list[str]:
    """Return what the machine says of the page's kernel with a mistake, under two orders of events."""
    text = KERNEL
    for old, new in MISTAKES[subject][0].items():
        assert old in text
        text = text.replace(old, new)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mine.py").write_text(text)
        case = cases.of_user(f"{folder}/mine.py::matmul", (120, 240, 208), "fp8" if "fp8" in subject else "bf16")
        return [cases.run(case, seed).wrong for seed in range(2)]


def commands() -> list[str]:
    """Return what the two commands print of the page's kernel, and of a name that is not in it."""
    printed = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "mine.py").write_text(KERNEL)
        for main, words in ((inspect.main, []), (hopper.main, ["--seeds", "1", "--shape", "64,64,64"])):
            for name in ("matmul", "matmull"):
                printed_by = contextlib.redirect_stdout(io.StringIO())
                with printed_by as out, contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
                    main([f"{folder}/mine.py::{name}", *words])
                printed.append(out.getvalue())
    return printed


@pytest.mark.parametrize("subject", MISTAKES)
def test_machine_says_what_is_wrong_with_it(elsewhere, subject):
    for wrong in elsewhere(said, subject):
        assert re.search(MISTAKES[subject][1] or "^$", wrong), wrong


def test_commands_take_it_by_file_and_name(elsewhere):
    looked, no_name, ran, neither = elsewhere(commands)
    assert re.search(r"kernel  sm_90 warps4 stages3 +bf16 .* wgmma\.m64n64k16 .* ok", looked)
    assert re.search(r"exact  .*mine\.py::matmul  bf16 64x64x64 ", ran)
    for text in (no_name, neither):
        assert text.endswith("matmull is not in it; did you mean matmul? its functions are matmul\n")
        assert len(text.splitlines()) == 1
