"""Attention over sequence lengths, every contender on every shape: out = softmax(q @ k.T / sqrt(width)) @ v.

`pytest --benchmark-only -k test_attention` times it, forward and backward apart, and notes the bytes that each
contender keeps for the backward pass; plain `pytest` checks each once, small. The default run leaves it out.
"""


def test_attention(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
