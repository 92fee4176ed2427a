"""The matmul of the layer `down`, every arm on every case: its parts go to the other ranks over an emulated wire while
others are computed. As before the layer `up`, the wire hides above a tensor-parallel share of 2750 * (P - 1) / P.
"""


def test_matmul_reduce_scatter(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
