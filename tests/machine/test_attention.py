"""The kernels of kernels.attention on the machine, in bf16: as float64 has it, by TMA and by pointers, causal and not,
with lengths that a block divides and that none does."""

import pytest

CASES = [(16, 136, True, True), (16, 72, False, False)]
MORE = [(width, length, causal, True) for width in (64, 128) for length in (256, 200) for causal in (True, False)]
MORE += [(16, 128, False, False), (32, 200, False, True), (64, 1, True, True), (64, 1, False, False)]
MORE += [(32, 128, False, False), (64, 128, True, False), (128, 72, True, False)]


def accusations(run, case: tuple, seeds: int) -> dict[str, str]:
    return run(f"import json, attention_cases as c; print(json.dumps(c.accusations(*{case}, seeds={seeds})))")


@pytest.mark.parametrize("case", CASES)
def test_no_kernel_is_accused(printed_elsewhere, case):
    assert accusations(printed_elsewhere, case, 1) == {}


@pytest.mark.slow
@pytest.mark.parametrize("case", MORE)
def test_no_kernel_is_accused_under_eight_orders(printed_elsewhere, case):
    assert accusations(printed_elsewhere, case, 8) == {}


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_nothing_spills(printed_elsewhere, width):
    """On Hopper, where all is multiplied by wgmma, and within the 99 KB of shared memory of other GPUs."""
    assert printed_elsewhere(f"import json, attention_cases as c; print(json.dumps(c.problems({width})))") == []
