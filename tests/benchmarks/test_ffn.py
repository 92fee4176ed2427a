"""The feed-forward layer, every arm on every case: tokens are gathered before `up` and sums scattered behind `down`
over an emulated wire, and beside them plain tensor parallelism with its all-reduce.
"""


def test_ffn(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
