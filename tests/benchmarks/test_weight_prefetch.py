"""FSDP's weight gather, every arm on every case: the next layer's w[n, k] comes over an emulated wire while this
layer's multiplies m tokens. With the wire of the exercise it hides above 2750 * (P - 1) / P tokens on a chip.
"""


def test_weight_prefetch(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
