"""The configurations of our kernels, side by side on every shape: `pytest --benchmark-only --ffn-tune`, on a GPU.

`tune_persistent-xxl-up-tp8-m2048-bf16-128x256x64_w8_s3_g16`: one kernel, one shape, one candidate. The baseline is
`incumbent`, what the kernel takes at present. What is faster is saved in kernels/configs. At last, as
`tune_matmul-xxl-up-tp8-m2048-bf16-warpgroup`, the kernels are compared, of which kernels.matmul takes the fastest.
Without --ffn-tune there are no such cases.
"""


def test_tune(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
