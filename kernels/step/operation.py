"""A training step of a transformer as GPT-2, or a part of it: in fp32, TF32 and bf16, operator by operator or compiled.

It is off the default run: `pytest --benchmark-only -k test_transformer_step`, or `--ffn-operations transformer_step`.
"""

from itertools import product

from kernels.bench.kept import FORMULA, PEAK, SAVED, kept
from roofline.account.cases import PARTS_OF_STEP, STEP, TransformerStep
from roofline.operations.base import Operation, register
from roofline.operations.contenders import Contender
from roofline.operations.shown import Field, Table

MODES = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32", "bf16")}

SIZES = {
    "test": [(1, 64, 2, 16)],
    "cpu": [(2, 128, 2, 128), (4, 256, 2, 128)],
    "cuda": [(12, 768, 16, 256), (36, 1280, 16, 256)],  # those of GPT-2 small and large
}
"""By device, and where nothing is timed: layers, width, sequences of a batch and their length."""

BENCH = "kernels.step.bench"
CONTENDERS = (
    Contender("eager", f"{BENCH}:loss_of", require=f"{BENCH}:require_memory"),
    Contender("compiled", f"{BENCH}:compiled_loss", require=f"{BENCH}:require_memory", first_call="compiled"),
)
"""Each operator a kernel of its own, which is the baseline; and `torch.compile` of the model and its loss. Each is
called as loss(model, tokens, targets)."""


def sweep(options) -> list[TransformerStep]:
    """Each size in each part and mode. On a CPU the large one has whole steps alone; with --ffn-quick the small one has
    forward passes and steps."""
    parts: list = [PARTS_OF_STEP, PARTS_OF_STEP if options.device == "cuda" else ("step",)]
    if not options.timed:
        parts = [("step",)]
    elif options.quick:
        parts = [("forward", "step")]
    sizes = SIZES[options.device if options.timed else "test"]
    cases = []
    for (layers, width, batch, context), parts_of_size in zip(sizes, parts, strict=False):
        for part, mode in product(parts_of_size, MODES[options.device]):
            cases.append(TransformerStep(layers, width, batch, context, part, mode))
    return cases


OPERATION = register(
    Operation(
        case=TransformerStep,
        analysis="throughput",
        sweep=sweep,
        contenders=CONTENDERS,
        runner=f"{BENCH}:Runner",
        example=f"{STEP}-compiled",
        default=False,
        fields=(
            Field(
                "part",
                "`forward`, `backward`, which begins with the forward pass, or `step`, which begins with both and ends "
                "with AdamW",
            ),
            Field("batch", "sequences", unit="1"),
            Field("layers", "blocks of attention and MLP", unit="1"),
            Field("width", "columns of its activations", unit="1"),
            Field("weight_bytes", "all weights", "bytes", "weights", "bytes"),
            Field("gradient_bytes", "those of all gradients", "bytes", "gradients", "bytes"),
            Field("optimizer_bytes", "what AdamW keeps", "bytes", "optimizer", "bytes"),
            SAVED,
            FORMULA,
            PEAK,
            Field(
                "tokens_per_s",
                "tokens of the batch over `time_s`",
                "1/s",
                "tokens/s",
                "number4",
                of=lambda measured: measured.shape.facts["m"] / measured.time.value,
            ),
            Field(
                "compile_s",
                "forward and backward of what is compiled, for the first time, in the worker that checks: shorter "
                "where the compiler's cache on disk had the kernels",
                "s",
                "first call",
                "time",
            ),
        ),
        tables=(
            Table(
                "Training steps",
                of="tokens_per_s",
                columns=("shape", "contender", "tokens_per_s", "compile_s"),
                about="Tokens of the batch over the time of a call. Contenders of a mode take turns; between two modes "
                "lie minutes.",
                long=True,
            ),
            kept("Memory of training steps", "weight_bytes", "gradient_bytes", "optimizer_bytes"),
        ),
        figures={"step_memory": "kernels.step.figure:step_memory"},
        visits=(
            {
                "name": "training-steps",
                "seconds": 120,
                "limit": 300,
                "archive": "training",
                "needs": "compile",
                "selects": "test_transformer_step and l12",
                "before": "fp8",
            },
        ),
    )
)
