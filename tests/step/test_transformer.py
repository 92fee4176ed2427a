"""A transformer's training step: weights, FLOP and memory by formula, what is refused, what a call keeps in memory."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from kernels.bench import costs
from kernels.step.bench import Runner, Step, Trainer, compiled_loss, loss_of, multiplying
from kernels.step.transformer import Decoder
from roofline.account.cases import TransformerStep

OPTIONS = SimpleNamespace(device="cpu", seed=0, timed=True)


@pytest.fixture
def make():
    """`make(part, dtype, run)`: a step of a small model."""

    def step(part="step", dtype="fp32", run=loss_of):
        return Step(Trainer(TransformerStep(2, 64, 2, 32, part, dtype), OPTIONS), run)

    return step


@pytest.mark.parametrize("size", [(1, 64, 2, 16), (2, 128, 1, 32)])
def test_weights_and_flop_are_those_of_the_model(size):
    case = TransformerStep(*size, "step", "fp32")
    with torch.device("meta"):
        model = Decoder(*size[:2], case.context)
        tokens = torch.zeros(case.batch, case.context, dtype=torch.int64)
    assert sum(weight.numel() for weight in model.parameters()) == case.parameters
    counted = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counted:  # a fused kernel computes scores again in its backward pass
        loss = model(tokens, tokens)
        assert counted.get_total_flops() == TransformerStep(*size, "forward", "fp32").work.flop
        loss.backward()
    assert counted.get_total_flops() == case.work.flop


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("part", ["forward", "backward", "step"])
def test_memory_is_what_the_formula_says_and_calls_do_not_add_to_it(make, part, dtype):
    step = make(part, dtype)
    step()
    fields = costs.of_call(step)
    names = {"weights": "weight", "gradients": "gradient", "optimizer": "optimizer", "activations": "saved"}
    kinds = {kind: fields[f"{name}_bytes"] for kind, name in names.items()}
    assert kinds == pytest.approx(step.case.memory, rel=0.05)
    assert fields["peak_bytes"] > kinds["activations"]
    timeline = fields["memory_timeline"]
    assert [*timeline] == ["forward", "backward", "optimizer"][: 1 + ["forward", "backward", "step"].index(part)]
    assert part != "step" or max(timeline["backward"]) > timeline["optimizer"][-1] > 0  # gradients stay
    _, _, points = costs.profiled(lambda: [step() for _ in range(4)])
    assert points[-1] == 0  # gradients take the place of those of the call before


def test_what_is_right_is_taken(make):
    for part in ("forward", "step"):
        for dtype, limit in (("fp32", 1e-5), ("bf16", 2e-2)):
            step = make(part, dtype)
            reference = step.trainer.reference()
            error, refused, _ = step.check("it", reference)
            assert 0 < error < limit
            assert refused is None
            step()
            assert step.check_again("it", reference[0]) is None


def refusal(step):
    _, refused, _ = step.check("it", step.trainer.reference())
    return refused


def forgets_a_block(model, tokens, targets):
    blocks = model.blocks
    model.blocks = blocks[:1]
    try:
        return loss_of(model, tokens, targets)
    finally:
        model.blocks = blocks


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (forgets_a_block, "relative error"),  # whose weights get no gradient
        (lambda *given: loss_of(*given) * 1.001 - 0.001 * 9.2, "relative error"),
        (lambda *given: loss_of(*given) * torch.nan, "holds NaN: .*; the first is in row 0 of the gradient"),
    ],
)
def test_a_wrong_loss_or_gradient_is_refused(make, wrong, words):
    step = make("forward")
    step.run = wrong
    refused = refusal(step)
    assert refused.outcome == "failed"
    assert re.search(words, refused.reason)


def test_a_step_that_did_not_learn_is_refused(make):
    step = make()
    right_loss, _ = step.trainer.reference()
    assert "not well below" in step.check_again("it", right_loss - 0.1).reason
    assert "not again" in make("forward").check_again("it", right_loss - 0.1).reason
    step.trainer.optimizer.step = lambda: None
    assert "not well below 9.2" in refusal(step).reason


def test_what_does_not_fit_has_both_sizes_for_a_reason(machine_of):
    machine_of(memory_bytes=20 * 10**9)
    case = TransformerStep(36, 1280, 16, 256, "step", "fp32")
    prepared = Runner(OPTIONS).prepare(case, ["compiled"])
    reasons = {name: rejected.reason for name, rejected in prepared.rejected.items()}
    assert reasons == {name: f"{name}: needs 23.8 GB by formula, 20.0 there" for name in ("eager", "compiled")}


def test_tf32_is_for_its_own_calls_alone(make):
    flags, step = torch.backends.cuda.matmul, make("step", "tf32")
    assert [flags.allow_tf32 for _ in step.phases()] == [True] * 4
    assert not flags.allow_tf32
    with pytest.raises(ZeroDivisionError), multiplying("tf32"):
        1 / 0  # noqa: B018
    assert not flags.allow_tf32


def test_on_a_gpu_the_history_of_the_allocator_is_cut_at_the_phases(make, monkeypatch):
    step, history = make("backward"), [("free_completed", 100)]  # the gradients of the call before
    of_phase = {
        "forward": [("alloc", 300), ("segment_alloc", 2**20), ("free_requested", 50)],
        "backward": [("alloc", 70)],
    }
    step.trainer.device, recorded = "cuda", []

    def phases():
        yield "start"
        for phase, events in of_phase.items():
            history.extend(events)
            yield phase

    step.phases = phases
    entries = lambda: [{"action": action, "size": size} for action, size in history]  # noqa: E731
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *words, **more: recorded.append(words))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"device_traces": [[], entries()]})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert costs.memory(step) == {"forward": [300, 300, 300], "backward": [370]}
    assert recorded == [("all",), (None,)]


@pytest.mark.slow
def test_parts_of_a_step_share_what_was_compiled(make):
    from torch._dynamo.utils import counters  # here, since it takes a second

    counters.clear()
    compiled = []
    for part in ("step", "forward", "backward"):
        step = make(part, run=compiled_loss)
        assert refusal(step) is None
        compiled.append(counters["stats"]["unique_graphs"])
    assert compiled[0] > 0
    assert compiled == compiled[:1] * 3
    fields = costs.of_call(step)
    assert fields["saved_bytes"] == pytest.approx(step.case.memory["activations"], rel=0.05)
    assert fields["peak_bytes"] > fields["saved_bytes"]
