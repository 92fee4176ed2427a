"""Operations and case ids: each is read back as the case that it names, and what is bad is refused with what would be
right."""

from dataclasses import replace

import pytest

from roofline import operations
from roofline.operations.all_gather_matmul import AllGatherMatmul
from roofline.operations.matmul import Matmul
from roofline.operations.matmul_reduce_scatter import MatmulReduceScatter
from roofline.operations.weight_prefetch import WeightPrefetch


@pytest.mark.parametrize("contender", [None, "row_block"])
@pytest.mark.parametrize("name", ["llama-3-70b", "xxl/16", "1000x3000"])
def test_ids_are_read_back(name, contender):
    behind = f"-{contender}" if contender else ""
    for case in (
        Matmul(name, "down", 1, 7, "bf16"),
        AllGatherMatmul(name, "up", 2, 4096, "fp32", 2, "ridge1.4"),
        AllGatherMatmul(name, "up", 1, 4096, "fp16", 4, "0.125GBps"),
        AllGatherMatmul(name, "up", 1, 4096, "fp16", 4, "0.125GBpsengine"),
        AllGatherMatmul(name, "up", 1, 4096, "fp16", 4, "0.125GBpscopier32"),
    ):
        assert operations.parse(case.id + behind) == (case, contender)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("matmull-xxl-up-tp8-m16-bf16", "did you mean matmul?"),
        ("matmul-xxl-up-m16-bf16", "is not written as cases are: matmul-xxl-up-tp8-m4096-bf16-persistent"),
        ("matmul-xxxl-up-tp8-m16-bf16", "unknown model 'xxxl': did you mean xxl?"),
        ("matmul-xxl-upp-tp8-m16-bf16", "unknown layer 'upp'"),
        ("matmul-xxl-up-tp7-m16-bf16", "tp=7 does not divide d_ff=53248"),
        ("matmul-xxl-up-tp8-m16-bf17", "unknown dtype 'bf17'"),
        ("weight_prefetch-xxl-up-p8-tp1-m16-bf16-ridged", "'ridged' is no bandwidth"),
        ("all_gather_matmul-xxl-up-p7-tp8-m16-bf16-ridge", "ranks=7 does not divide"),
    ],
)
def test_bad_ids_are_named(text, expected):
    with pytest.raises(ValueError, match="case ") as error:
        operations.parse(text)
    assert expected in str(error.value)


DIVISORS = [
    (MatmulReduceScatter, "down", 1, "m=1,"),
    (AllGatherMatmul, "up", 16, "k=100,"),
    (WeightPrefetch, "up", 16, "n=300,"),
]


@pytest.mark.parametrize(("case", "layer", "m", "size"), DIVISORS)
def test_a_number_of_ranks_that_does_not_divide_is_named_with_the_size(case, layer, m, size):
    with pytest.raises(ValueError, match=f"ranks=8 does not divide {size} .* choose another --ffn-ranks, or other siz"):
        case("100x300", layer, 1, m, "fp32", 8, "ridge")


def test_an_operation_that_is_known_or_of_an_unknown_analysis_is_refused():
    known = operations.OPERATIONS["matmul"]
    with pytest.raises(ValueError, match="is known already"):
        operations.register(known)
    with pytest.raises(ValueError, match="analysis 'gradients' is not known: take throughput or overlap"):
        operations.register(replace(known, analysis="gradients"))
