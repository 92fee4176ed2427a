"""The all-gather matmul of the FFN's layer `up`, every arm on every case: out[m, n] = x[m, k] @ w[n, k].T.

x is sharded over its columns by P ranks, and comes over an emulated wire while it is multiplied. Cases run from one
side of the balance to the other: `-balance2750` is the wire of the exercise, `-ridge` one as fast as the matmul.
"""


def test_all_gather_matmul(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
