"""The example of docs/examples that is an operation of a user's by the page alone: a field, a table, a figure, and
kernels in Triton."""

import pytest
import torch

import roofline
from conftest import ROOT
from roofline import operations
from roofline.commands.cli import main
from roofline.operations import contenders

FILE = ROOT / "docs" / "examples" / "rms_norm.py"


def pytest_of(zygote, *words: str) -> tuple[int, str]:
    return zygote.run("-q", f"--ffn-operations={FILE}", "--ffn-device=cpu", *words)


def test_both_parts_are_right_in_the_interpreter(zygote):
    code, text = pytest_of(zygote, "--ffn-tokens=3")
    assert (code, "4 passed" in text) == (0, True), text


@pytest.mark.slow
def test_a_run_has_its_field_table_and_figure_and_is_redrawn_with_its_file(zygote, tmp_path):
    small = "--ffn-tokens=16", "--ffn-max-seconds=0.1", "--ffn-processes=1", f"--ffn-results={tmp_path}"
    code, text = pytest_of(zygote, "--benchmark-only", *small)
    assert code == 0, text
    (folder,) = tmp_path.iterdir()
    cases = roofline.load(folder).frame()
    assert {*cases["contender"]} == {"torch"}
    assert "GB/s" in (folder / "report.md").read_text().partition("## Norms\n")[2].partition("##")[0]
    figure = folder / "norms.png"
    figure.unlink()
    assert main(["report", str(folder)]) == 0
    assert (
        "rms_norm is not known here, and is shown without what its code computes and draws"
        in (folder / "report.md").read_text()
    )
    assert not figure.exists()
    assert main(["report", str(folder), "--operations", str(FILE)]) == 0
    del operations.OPERATIONS["rms_norm"]
    assert figure.exists()


def verdicts() -> list[str]:
    """What the machine says of both kernels as compiled for Hopper, of rows that fill no block."""
    from kernels.machine import check

    module = contenders.module_of(FILE)
    x, grad = torch.randn(2, 3, 200)
    about = module.arguments(x)
    said = []
    for part, kernel in (("forward", module.forward_kernel), ("backward", module.backward_kernel)):
        result = torch.full_like(x, torch.nan)
        tensors = [x, result] if part == "forward" else [x, grad, result]
        right = module.by_torch(part, x, grad)
        said.append(str(check(kernel, (3,), [*tensors, *about.values()], expected=[right], seeds=2)))
    return said


def test_both_kernels_are_exact_on_the_machine(elsewhere):
    assert all(words.startswith("exact") for words in elsewhere(verdicts))
