"""The gated feed-forward layer on one rank, every contender on every shape: gate and up, SiLU and product, down.

`pytest --benchmark-only -k test_ffn_gated` times it, and its matmuls alone in the same rounds; plain `pytest` checks
each once, small. The default run leaves it out.
"""


def test_ffn_gated(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
