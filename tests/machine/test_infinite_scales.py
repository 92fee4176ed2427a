"""fp8 with a scale that is infinite: it is nobody's but its own row's."""

import math

import pytest

FP8_KERNELS = ("persistent", "warpgroup", "decode", "blockwise", "warpgroup_blockwise")


def rows_that_are_wrong(name: str) -> list[int]:
    """Rows of out that differ from the product, where the first row of x has an infinite scale; row 0 counts as wrong
    where any of it is finite."""
    import cases  # here, since Triton compiles in this process alone

    from kernels.fp8 import scale_rows, scales_of_rows

    wrong = []

    def scales_of(*given):
        x_scales, w_scales = made(*given)
        x_scales[0, -1] = math.inf
        return x_scales, w_scales

    def differences(out, x, w, before, scales) -> str:
        x_scales, w_scales = scales_of_rows(w, scales)
        product = scale_rows(x[1:].double(), x_scales[1:]) @ scale_rows(w.double(), w_scales).T
        if out[0].isfinite().any():
            wrong.append(0)
        wrong.extend((1 + (out[1:] != product.to(out.dtype)).any(1).nonzero().flatten()).tolist())
        return ""

    case = next(case for case in cases.cases() if case.kernel == name and " fp8 " in case.title)
    with pytest.MonkeyPatch.context() as patch:
        made = cases.scales_of
        patch.setattr(cases, "scales_of", scales_of)
        patch.setattr(cases, "differences", differences)
        outcome = cases.run(case, 0)
    assert not outcome.wrong, outcome.wrong
    return wrong


@pytest.mark.parametrize("name", FP8_KERNELS)
def test_an_infinite_scale_is_of_its_row_alone(printed_elsewhere, name):
    code = f"import json, test_infinite_scales as t; print(json.dumps(t.rows_that_are_wrong({name!r})))"
    assert printed_elsewhere(code) == []
