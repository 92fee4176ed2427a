"""What the compiler made of the kernels of attention. The machine runs them: test_shipped.py."""

import attention_cases
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_nothing_spills(elsewhere, width):
    """On Hopper, where all is multiplied by wgmma, and within the 99 KB of shared memory of other GPUs."""
    assert elsewhere(attention_cases.problems, width) == []
