"""How the operation `transformer_step` runs: one model, whose loss is computed eagerly or compiled, in turns.

Contenders share weights and optimizer, so that a model has room that takes more than half of the memory. Each is
checked on the same first weights.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kernels.bench import costs, matmul
from kernels.contract import reason
from kernels.transformer import Decoder
from roofline.measure import device_errors
from roofline.measure.ceilings import Probe
from roofline.measure.machine import refuse_tf32
from roofline.measure.prepared import FAILED, SKIPPED, Entrant, PreparedCase, Rejection, unwatched, verdict
from roofline.measure.share import synchronize
from roofline.operations.transformer_step import CONTENDERS, MODES, TransformerStep

LEARNING_RATE, WEIGHT_DECAY, EPS = 1e-4, 0.1, 1e-8

TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 3e-2}
"""Largest relative Frobenius error of all gradients together, and of the loss, against float64, by mode."""
UPDATE_TOLERANCE = 1e-2
"""The same of AdamW's first change of the weights, which rounding of the weights to fp32 blurs."""

FIRST_S: dict[TransformerStep, float] = {}
"""Step -> seconds of the first call that any part of it made in this process: the others find the kernels compiled."""

FIRST_CALL_S = 900.0
"""Longest that compiling may take, of 36 layers forward and backward."""


@contextmanager
def multiplying(mode: str) -> Iterator[None]:
    """Let fp32 matmuls be multiplied by TF32 inside in the mode `tf32`, and as fp32 in any other."""
    flags, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.allow_tf32
    flags.allow_tf32 = mode == "tf32"
    try:
        yield
    finally:
        flags.allow_tf32 = before


def loss_of(model: Decoder, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return the loss. Compiled for one model it serves others of the same sizes, whose weights are its inputs."""
    return model(tokens, targets)


def compiled():
    """Return `loss_of`, compiled as a whole for fixed sizes: for each size and mode once in a process."""
    torch._dynamo.config.recompile_limit = 64  # further sizes raise, since it has to be a full graph
    return torch.compile(loss_of, dynamic=False, fullgraph=True)


class Trainer:
    """A model, its optimizer and a batch of random tokens, the same for all contenders of a case."""

    def __init__(self, case: TransformerStep, options):
        self.case, self.device, self.seed = case, options.device, options.seed
        with torch.device(self.device):
            self.model = Decoder(case.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, eps=EPS, fused=True
        )
        self.reset()

    def reset(self) -> None:
        """Begin anew, in place: the first weights and batch, no gradients, no moments."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        self.model.reset(generator)
        self.model.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        size, vocabulary = (self.case.batch, self.case.context + 1), self.case.model.vocabulary
        text = torch.randint(vocabulary, size, generator=generator, device=self.device)
        self.batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def reference(self) -> tuple[float, list[Tensor]]:
        """Return the loss and the gradients of the first weights in float64, summed up one sequence at a time."""
        model, loss = deepcopy(self.model).double(), 0.0
        for tokens, targets in zip(*self.batch, strict=True):
            part = model(tokens[None], targets[None]) / self.case.batch
            part.backward()
            loss += part.item()
        return loss, [weight.grad for weight in model.parameters()]


class Step:
    """The call of a contender: its part of a training step, as often as it is called."""

    long = True
    unheld = True
    """Hundreds of launches would fill a stream that is held, and wait for it; and a step takes what its host takes."""

    def __init__(self, trainer: Trainer, *, is_compiled: bool):
        self.trainer, self.case, self.is_compiled = trainer, trainer.case, is_compiled
        self.run = compiled() if is_compiled else loss_of
        self.first_s = 0.0
        """Of the first forward and backward pass by `check`, with all that it compiles."""

    def __call__(self) -> None:
        for _ in self.phases():
            pass

    def loss(self) -> Tensor:
        lower = torch.autocast(self.trainer.device, torch.bfloat16) if self.case.dtype == "bf16" else nullcontext()
        with lower:
            return self.run(self.trainer.model, *self.trainer.batch)

    def phases(self) -> Iterator[str]:
        """Make the call, and stop behind each phase, which is named: `start`, before which gradients are let go of,
        `forward`, `backward`, `optimizer`."""
        with multiplying(self.case.dtype):
            self.trainer.model.zero_grad(set_to_none=True)
            yield "start"
            loss = self.loss()
            yield "forward"
            if self.case.part != "forward":
                loss.backward()
                yield "backward"
            if self.case.part == "step":
                self.trainer.optimizer.step()
                yield "optimizer"

    def check(self, name: str, reference: tuple[float, list[Tensor]]) -> tuple[float, Rejection | None]:
        """Return the error of loss and gradients together on the first weights, and why they or a step's new weights
        are wrong, or None. Every part is checked by all gradients: a loss near log(vocabulary) says little."""
        self.trainer.reset()
        weights, (right_loss, right) = list(self.trainer.model.parameters()), reference
        began = time.monotonic()
        with multiplying(self.case.dtype):
            loss = self.loss()
            loss.backward()
        synchronize(self.trainer.device)
        self.first_s = time.monotonic() - began
        gradients = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        error = relative(gradients, right) + abs(loss.item() / right_loss - 1)  # where either is NaN, so is the sum
        if (refused := verdict(name, error, self.case.dtype, TOLERANCE[self.case.dtype])) or self.case.part != "step":
            return error, refused
        before = [weight.detach().clone() for weight in weights]
        self()
        changes = [weight.detach() - old for weight, old in zip(weights, before, strict=True)]
        expected = [first_change(old, w.grad) for old, w in zip(before, weights, strict=True)]
        if not (off := relative(changes, expected)) <= UPDATE_TOLERANCE:
            problem = f"the weights' first change is off AdamW's by {off:.1e}, above {UPDATE_TOLERANCE:.0e}"
            refused = Rejection(FAILED, f"{name}: {problem}")
        return error, refused

    def check_again(self, name: str, right_loss: float) -> Rejection | None:
        """Return why the loss is not that of the first weights, or of a step not below it; None if it is."""
        with multiplying(self.case.dtype):
            loss = self.loss().item()
        is_step, is_same = self.case.part == "step", abs(loss / right_loss - 1) <= TOLERANCE[self.case.dtype]
        if loss < right_loss if is_step else is_same:
            return None
        wanted = "below" if is_step else "again"
        return Rejection(FAILED, f"{name}: after all calls its loss is {loss:.4g}, and not {wanted} {right_loss:.4g}")


def relative(values: list[Tensor], right: list[Tensor]) -> float:
    """Return the relative Frobenius error of all `values` together; `right` is float64."""
    off = sum((value - exact).square().sum() for value, exact in zip(values, right, strict=True))
    return float((off / sum(exact.square().sum() for exact in right)).sqrt())


def first_change(weight: Tensor, gradient: Tensor) -> Tensor:
    """Return by how much AdamW changes `weight` in its first step, whose moments are the gradient and its square."""
    weight, gradient = weight.double(), gradient.double()
    return -LEARNING_RATE * (WEIGHT_DECAY * weight + gradient / (gradient.abs() + EPS))


class Runner(matmul.Runner):
    """Runs transformer steps. Probes of the roof are the matmuls', in each mode."""

    def prepare(self, case: TransformerStep, names: list[str], first_call=unwatched) -> PreparedCase:
        options, baseline = self.options, CONTENDERS[0]
        prepared = PreparedCase(case, baseline, options.device, first_call=first_call)
        names = dict.fromkeys([baseline, *names] if options.timed else names)
        needs, there = sum(case.memory.values()), matmul.machine(options.device)["memory_bytes"]
        memory = f"needs {needs / 1e9:.1f} GB by formula, {there / 1e9:.1f} there"
        earlier = self.earlier.get(case.id, {}).get("facts", {})
        prepared.facts = {"has_costs": True}
        prepared.cache = (
            "as the call before left it; on a GPU a sample begins on an idle device and has its host's time in it"
        )
        if needs > there:
            prepared.rejected = {name: Rejection(SKIPPED, f"{name}: {memory}") for name in names}
            return prepared
        trainer = Trainer(case, options)

        def entrant(name: str, reference: tuple[float, list[Tensor]]) -> Entrant | Rejection:
            step = Step(trainer, is_compiled=name == "compiled")
            try:
                error, refused = step.check(name, reference)
                facts = costs.memory(step) | {"saved_formula_bytes": case.memory["activations"]}
            except Exception as error:
                if device_errors.lack(error) != "out of memory":
                    raise
                return Rejection(SKIPPED, f"{name}: out of memory: {memory}")
            if step.is_compiled:
                key = replace(case, part="step")
                first_s = earlier.get("first_call_s") or FIRST_S.setdefault(key, step.first_s)
                facts["compile_s"] = prepared.facts["first_call_s"] = first_s
            config = f"torch {torch.__version__}{', autocast' * (case.dtype == 'bf16')}"
            config += ", fused AdamW" * (case.part == "step")
            recheck = partial(step.check_again, name, reference[0])
            return refused or Entrant(name, step, "", config, error, facts, recheck, partial(costs.of_call, step))

        reference = trainer.reference()
        for name in names:
            prepared.enter(name, partial(entrant, name, reference), FIRST_CALL_S if name == "compiled" else None)
        return prepared

    def problem(self) -> str:
        return reason(lambda: refuse_tf32(self.options.device, ("fp32",))) or ""

    def probes(self) -> list[Probe]:
        """Return the probes of matmuls in fp32 and bf16; those of fp32 once more by TF32, which reach for a roof of
        their own."""
        modes = MODES[self.options.device]
        probes = matmul.probes(replace(self.options, dtypes=tuple(mode for mode in modes if mode != "tf32")))

        def by_tf32(probe: Probe) -> Probe:
            def call():
                with multiplying("tf32"):
                    return probe.call()

            return replace(probe, dtype="tf32", call=call, why_not=lambda: None)

        return probes + [by_tf32(probe) for probe in probes if probe.dtype == "fp32" and "tf32" in modes]
