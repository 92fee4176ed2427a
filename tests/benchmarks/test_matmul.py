"""The FFN matmuls of a transformer, every contender on every shape: out[m, n] = x[m, k] @ w[n, k].T.

    up     D -> F, column-parallel: n = F / tp, k = D
    down   F -> D, row-parallel:    n = D,      k = F / tp

Beside them, by --ffn-layers, gate_up, qkv and o of models that have them; by --ffn-shapes any others.

`pytest --benchmark-only` times them, contenders of a shape in turns; plain `pytest` checks each once, small.
Which model, layers, tokens, tp, dtypes and contenders: the --ffn-* options.
"""


def test_matmul(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
