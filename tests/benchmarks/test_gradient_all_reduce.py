"""A backward pass of small layers, whose gradients are summed over real ranks: in one all-reduce, in one for each, or
in buckets of several sizes while it goes on. Only torchrun starts ranks: without it nothing is collected.
"""


def test_gradient_all_reduce(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
