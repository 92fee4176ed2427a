"""A transformer's forward pass, its forward and backward pass, and its whole training step with AdamW, in fp32, TF32
(on a GPU) and bf16 autocast: each operator by itself (`eager`) and by torch.compile (`compiled`).

It is off the default run: `pytest --benchmark-only -k test_transformer_step`. kernels/step/README.md has what it
reports.
"""


def test_transformer_step(ffn_benchmark, shape, contender):
    ffn_benchmark(shape, contender)
