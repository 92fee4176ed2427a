"""How the operation `transformer_step` runs: one model, whose loss is computed eagerly or compiled, in turns.

Contenders share weights and optimizer, so that a model fits that takes more than half of the memory. Each is checked on
the same first weights.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from kernels import vendor
from kernels.bench import checks, costs, roof
from kernels.step.operation import MODES
from kernels.step.transformer import Decoder
from roofline.account.cases import VOCABULARY, TransformerStep
from roofline.host import device_errors
from roofline.host.machine import refuse_tf32, synchronize
from roofline.operations.contenders import reason
from roofline.worker.ceilings import Probe
from roofline.worker.clocks import Call
from roofline.worker.prepared import FAILED, SKIPPED, Entrant, Rejection, verdict

LEARNING_RATE = 1e-4
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 3e-2}
"""Largest relative Frobenius error of all gradients together, and of the loss, against float64, by mode."""
LEARNED = 1e-3
"""A first step lowers the loss by at least this fraction: on two small models it was 4e-3, and rounding 1e-5."""
FIRST_S: dict[TransformerStep, float] = {}
"""{step: seconds of the first call that any part of it made in this process}. The other parts find the kernels
compiled."""


@contextmanager
def multiplying(mode: str) -> Iterator[None]:
    """Let fp32 matmuls multiply in TF32 inside, in the mode `tf32`, and in fp32 in any other."""
    flags = torch.backends.cuda.matmul
    before = flags.allow_tf32
    flags.allow_tf32 = mode == "tf32"
    try:
        yield
    finally:
        flags.allow_tf32 = before


def loss_of(model: Decoder, tokens: Tensor, targets: Tensor) -> Tensor:
    """The loss. Compiled for one model it serves others of the same sizes: their weights are its inputs."""
    return model(tokens, targets)


def compiled_loss(*inputs) -> Tensor:
    return vendor.compiled(loss_of, fullgraph=True)(*inputs)


class Trainer:
    """A model, its optimizer and a batch of random tokens, the same for all contenders of a case."""

    def __init__(self, case: TransformerStep, options):
        self.case = case
        self.device = options.device
        self.seed = options.seed
        with torch.device(self.device):
            self.model = Decoder(case.layers, case.width, case.context)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE, fused=True)
        self.reset()

    def reset(self) -> None:
        """Begin anew, in place: the first weights and batch, no gradients, no moments."""
        generator = torch.Generator(self.device).manual_seed(self.seed)
        self.model.reset(generator)
        self.model.zero_grad(set_to_none=True)
        self.optimizer.state.clear()
        size = self.case.batch, self.case.context + 1
        text = torch.randint(VOCABULARY, size, generator=generator, device=self.device)
        self.batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()

    def reference(self) -> tuple[float, list[Tensor]]:
        """The loss and the gradients of the first weights in float64, summed up one sequence at a time."""
        model = deepcopy(self.model).double()
        loss = 0.0
        for tokens, targets in zip(*self.batch, strict=True):
            part = model(tokens[None], targets[None]) / self.case.batch
            part.backward()
            loss += part.item()
        return loss, [weight.grad for weight in model.parameters()]


class Step:
    """The call of a contender: its part of a training step, as often as it is called."""

    def __init__(self, trainer: Trainer, run: Callable[..., Tensor] = loss_of):
        self.trainer = trainer
        self.case = trainer.case
        self.run = run

    def __call__(self) -> None:
        for _ in self.phases():
            pass

    def loss(self) -> Tensor:
        with torch.autocast(self.trainer.device, torch.bfloat16, enabled=self.case.dtype == "bf16"):
            return self.run(self.trainer.model, *self.trainer.batch)

    def phases(self) -> Iterator[str]:
        """Make the call, and stop behind each phase, whose name is yielded: `start`, once gradients are let go of,
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

    def check(self, name: str, reference: tuple[float, list[Tensor]]) -> tuple[float, Rejection | None, float]:
        """The error of loss and gradients together on the first weights; why they are wrong, or the loss after a first
        call is; and the seconds of the first forward and backward pass, with all that it compiles.

        Every part is checked by all gradients: a loss near log(vocabulary) says little.
        """
        trainer = self.trainer
        trainer.reset()
        began = time.monotonic()
        with multiplying(self.case.dtype):
            loss = self.loss()
            loss.backward()
        synchronize(trainer.device)
        first_s = time.monotonic() - began
        right_loss, right = reference
        gradients = {}
        for parameter, weight in trainer.model.named_parameters():
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            gradients[f"the gradient of {parameter}"] = gradient
        differences = [gradient - exact for gradient, exact in zip(gradients.values(), right, strict=True)]
        error = float(get_total_norm(differences) / get_total_norm(right)) + abs(loss.item() / right_loss - 1)
        where = checks.first_nan(**gradients)
        refused = verdict(name, error, self.case.dtype, TOLERANCE[self.case.dtype], where)
        self()
        return error, refused or self.check_again(name, right_loss), first_s

    def check_again(self, name: str, right_loss: float) -> Rejection | None:
        """Why the loss is not that of the first weights, or after a step not below it; None if it is."""
        with multiplying(self.case.dtype):
            loss = self.loss().item()
        if self.case.part == "step":
            wanted = "well below"
            is_right = loss < right_loss * (1 - LEARNED)
        else:
            wanted = "again"
            is_right = abs(loss / right_loss - 1) <= TOLERANCE[self.case.dtype]
        if is_right:
            return None
        return Rejection(FAILED, f"{name}: after its calls the loss is {loss:.5g}, and not {wanted} {right_loss:.5g}")


class Runner(roof.Runner):
    """Runs transformer steps. Probes of the roof are the matmuls', in each mode."""

    def operands(self, prepared):
        """None where it does not fit."""
        prepared.is_guarded = False  # a mode sets the precision of all its calls
        prepared.facts = {"has_costs": True}
        prepared.cache = "as the call before left it; on a GPU a sample begins on an idle device, with its host's time"
        # Inputs stay: a step changes the weights itself.
        _, fits = memory_of(prepared.case, self.options)
        return Trainer(prepared.case, self.options) if fits else None

    def reference(self, case, trainer):
        return trainer and trainer.reference()

    def candidate(self, contender, prepared, trainer, reference):
        name = contender.name
        case = prepared.case
        step = Step(trainer, contender.load())
        try:
            error, refused, first_s = step.check(name, reference)
        except Exception as error:
            if device_errors.lack(error) != "out of memory":
                raise
            memory, _ = memory_of(case, self.options)
            return Rejection(SKIPPED, f"{name}: out of memory: {memory}")
        facts = {"saved_formula_bytes": case.memory["activations"]}
        if contender.first_call:
            earlier = self.earlier.get(case.id, {}).get("facts", {}).get("first_call_s")
            first_s = earlier or FIRST_S.setdefault(replace(case, part="step"), first_s)
            facts["compile_s"] = first_s
            prepared.facts["first_call_s"] = first_s
        return refused or Entrant(
            name,
            Call(step, is_long=True, is_held=False),  # the time of a step includes that of its host
            config=f"{contender.config()}, fused AdamW{', autocast' * (case.dtype == 'bf16')}",
            relative_error=error,
            facts=facts,
            recheck=partial(step.check_again, name, reference[0]),
            costs=partial(costs.of_call, step),
        )

    def problem(self) -> str:
        return reason(lambda: refuse_tf32(self.options.device, ("fp32",))) or ""

    def probes(self) -> list[Probe]:
        """The probes of matmuls in fp32 and bf16. Those in fp32 are there once more in TF32, which has another roof."""
        probes = roof.probes(replace(self.options, dtypes=("fp32", "bf16")))
        if "tf32" in MODES[self.options.device]:
            for probe in [probe for probe in probes if probe.dtype == "fp32"]:
                call = multiplying("tf32")(probe.call)
                probes.append(replace(probe, dtype="tf32", call=call, why_not=lambda: None))
        return probes


def memory_of(case: TransformerStep, options) -> tuple[str, bool]:
    """What a case needs and what is there, in words, and whether that is enough."""
    needs = sum(case.memory.values())
    there = roof.machine(options.device)["memory_bytes"]
    return f"needs {needs / 1e9:.1f} GB by formula, {there / 1e9:.1f} there", needs <= there


def require_memory(case: TransformerStep, options, trainer: Trainer | None) -> None:
    memory, fits = memory_of(case, options)
    if not fits:
        raise ValueError(memory)
