"""Where chips and wires meet, against the figures of the sources and figures worked out by hand."""

import math
from dataclasses import replace

import pytest
from account_settings import EXERCISE, H100, D, F, h100, made_up, per_token, tokens_each, v5p
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account.communication_bound import Bound
from roofline.account.memory import Dtypes
from roofline.account.meshes import Sharding, Torus

quick = settings(deadline=None, derandomize=True, max_examples=80)

WEIGHTS = 4 * D * F
"""Bytes of a block's weights in bf16; also the FLOP of a token in it."""


EXACT = replace(EXERCISE, mesh=replace(EXERCISE.mesh, exact=True))


@pytest.mark.parametrize(
    ("setting", "each"),
    [
        (EXERCISE, 2750),
        (replace(EXERCISE, sharding=Sharding(fsdp=4096)), 2750),
        (EXACT, 2406.25),  # 7/8 of it
        (replace(EXERCISE, dtypes=Dtypes(gathers="fp8")), 2750 / 2),
        (replace(EXERCISE, dtypes=Dtypes(gathers="fp32")), 2750 * 2),
        # The source's 850 on three axes.
        (v5p(flops=4.59e14, degrees={"fsdp": 512}), 850),
        # Inside a node, over 1024 GPUs, and as the source counts these.
        (h100({"fsdp": 8}), 7 / 8 * H100 / 450e9),
        (h100({"fsdp": 1024}), H100 / 400e9 * 127 / 128),
        (h100({"fsdp": 1024}, exact=False, flops=9.9e14), 2475),
        # Data parallelism has no wire but in the backward pass: 8 B D F / C against 8 D F (P - 1) / P / W.
        (h100({"dp": 8}, step="training"), 7 / 8 * H100 / 450e9),
        (h100({"dp": 8}), 0),
    ],
)
def test_tokens_on_each_device_at_the_bound(setting, each):
    assert tokens_each(setting) == pytest.approx(each)


def test_without_a_bound():
    """Y = 32: activations need F above 32 * 2555.6, so each token takes longer on the wire than on the chip."""
    assert v5p(degrees={"fsdp": 2, "tp": 32}).bound() == Bound(math.inf, "forward", "tp axes")
    assert v5p(degrees={"tp": 4}).bound() == Bound(0, "forward", "tp axes")
    assert v5p(degrees={}).bound() == Bound(0, "forward", None)


@pytest.mark.parametrize(("setting", "most"), [(EXERCISE, 19), (EXACT, 20)])
def test_tensor_parallelism_crosses_2750(setting, most):
    """Between 19 and 20 chips, or between 20 and 21 where the gather is exact."""
    for chips, tokens in ((most, 0), (most + 1, math.inf)):
        assert replace(setting, sharding=Sharding(tp=chips)).bound().tokens == tokens


@pytest.mark.parametrize(("wires", "fabric"), [("separate", "node of tp"), ("fabric", "node"), ("shared", "wires")])
def test_the_bound_names_what_the_chips_wait_for(wires, fabric):
    # Inside a node 2 * 7/8 of the activations take longer than the matmuls of a chip that is so fast.
    assert h100({"tp": 8}, flops=1e16, wires=wires).bound() == Bound(math.inf, "forward", fabric)
    assert v5p(wires="separate").bound().fabric == "fsdp axes"


def test_more_steps_are_bound_by_the_slower_one():
    setting = h100({"fsdp": 64, "dp": 8}, step="training", recompute=True)
    both, forward, backward = (setting.bound(*steps).tokens for steps in ((), ("forward",), ("backward",)))
    assert both == max(forward, backward) > min(forward, backward)


def test_training_as_listed_by_hand():
    terms = h100({"fsdp": 128, "tp": 8, "dp": 2}, step="training").terms
    activations = 2 * D / 256
    assert [(term.step[0], term.name, term.op, term.kind, term.fixed_bytes, term.token_bytes) for term in terms] == [
        ("f", "gather weights", "all-gather", "fsdp", WEIGHTS / 8, 0),
        ("f", "gather activations", "all-gather", "tp", 0, activations),
        ("f", "scatter partial sums", "reduce-scatter", "tp", 0, activations),
        ("b", "gather weights", "all-gather", "fsdp", WEIGHTS / 8, 0),
        ("b", "scatter gradients", "reduce-scatter", "fsdp", WEIGHTS / 8, 0),
        ("b", "reduce gradients", "all-reduce", "dp", WEIGHTS / 8 / 128, 0),
        ("b", "gather activations", "all-gather", "tp", 0, activations),
        ("b", "scatter partial sums", "reduce-scatter", "tp", 0, activations),
        ("b", "gather inputs again", "all-gather", "tp", 0, activations),
    ]


def test_switches_that_reduce_keep_activations_whole():
    setting = h100({"fsdp": 16, "tp": 8}, step="training", sharp=True)
    own = [(term.step, term.op) for term in setting.terms if term.kind == "tp"]
    assert own == [("forward", "all-reduce"), ("backward", "all-reduce")]
    # V = 2 D / 16 a token, over 450 GB/s, in place of twice 7/8 of it.
    assert next(term for term in setting.terms if term.kind == "tp").seconds(1) == pytest.approx(2 * D / 16 / 450e9)
    plain = h100({"fsdp": 16, "tp": 8})
    assert sum(t.seconds(1) for t in plain.terms if t.kind == "tp") == pytest.approx(7 / 4 * 2 * D / 16 / 450e9)
    gradients = h100({"dp": 64}, step="training", sharp=True).bound().tokens
    assert gradients == pytest.approx(h100({"dp": 64}, step="training").bound().tokens / 2 * 8 / 7)


def test_flop_of_the_passes():
    setting = h100({"fsdp": 8, "tp": 2}, step="training")
    assert setting.math_flop("forward") == WEIGHTS / 16
    assert setting.math_flop("backward") == 2 * WEIGHTS / 16
    assert replace(setting, recompute=True).math_flop("backward") == 2.5 * WEIGHTS / 16  # D -> F again
    assert replace(setting, recompute=True).math_flop("forward") == WEIGHTS / 16


def test_a_gate_is_half_as_much_again_to_gather_and_to_multiply():
    plain = h100({"fsdp": 8, "tp": 2}, step="training", recompute=True)
    gated = replace(plain, model=replace(plain.model, matrices=3))
    assert gated.math_flop("forward") == 1.5 * WEIGHTS / 16
    assert gated.math_flop("backward") == (2 * 1.5 + 1) * WEIGHTS / 16  # up and gate again
    assert gated.terms[0].fixed_bytes == 1.5 * plain.terms[0].fixed_bytes
    assert per_token(gated, "gather activations") == per_token(plain, "gather activations")


# Stages, dtypes, microbatches


def test_stages_divide_those_who_gather_and_send_once_each():
    before, after = h100({"fsdp": 1024}), h100({"fsdp": 256, "pp": 4})
    assert after.terms[0].fixed_bytes == before.terms[0].fixed_bytes
    send = after.terms[1]
    # 2 D bytes a token of each FSDP shard, once for the largest stage's blocks: 32 of 126, in four.
    assert (send.name, send.token_bytes) == ("send to next stage", pytest.approx(2 * D / 256 / 32))
    assert send.crossings[0].fabric == "network"
    alone = h100({"fsdp": 256}).bound().tokens
    assert replace(after, wires="separate").bound().tokens == pytest.approx(alone)


def test_dtype_of_the_wire_is_that_of_gradients_and_activations():
    setting = h100({"fsdp": 128, "tp": 8, "dp": 2}, step="training")
    other = replace(setting, dtypes=Dtypes(wire="fp32"))
    for term, longer in zip(setting.terms, other.terms, strict=True):
        factor = 1 if term.name == "gather weights" else 2
        assert (longer.fixed_bytes, longer.token_bytes) == (factor * term.fixed_bytes, factor * term.token_bytes)


def test_microbatches_gather_and_scatter_again_and_reduce_once():
    setting = h100({"fsdp": 64, "dp": 2}, step="training")
    again = replace(setting, gathers=4)
    for term, more in zip(setting.terms, again.terms, strict=True):
        assert more.fixed_bytes == term.fixed_bytes * (1 if term.kind == "dp" else 4)


# What holds for all


def at_most(left, right):
    return left <= right * (1 + 1e-9)


@quick
@given(made_up())
def test_max_is_at_most_fabric_and_that_at_most_sum(setting):
    kinds, fabric, all_ = (replace(setting, wires=wires).bound().tokens for wires in ("separate", "fabric", "shared"))
    assert at_most(kinds, fabric)
    assert at_most(fabric, all_)


@quick
@given(made_up(), st.floats(1.01, 100))
def test_faster_chips_raise_the_bound_and_faster_wires_lower_it(setting, factor):
    bound = setting.bound().tokens
    assert at_most(bound, replace(setting, flops=setting.flops * factor).bound().tokens)
    names = ("axis_bytes_per_s",) if isinstance(setting.mesh, Torus) else ("link_bytes_per_s", "network_bytes_per_s")
    faster = replace(setting.mesh, **{name: getattr(setting.mesh, name) * factor for name in names})
    assert at_most(replace(setting, mesh=faster).bound().tokens, bound)
    # Only the balance counts.
    same = replace(setting, mesh=faster, flops=setting.flops * factor).bound().tokens
    assert same == pytest.approx(bound, rel=1e-6)


@quick
@given(made_up(), st.integers(2, 8))
def test_more_gathers_raise_the_bound_and_smaller_ones_lower_it(setting, factor):
    bound = setting.bound().tokens
    assert at_most(bound, replace(setting, gathers=factor).bound().tokens)
    assert at_most(replace(setting, dtypes=Dtypes(gathers="fp8")).bound().tokens, bound)
    assert at_most(bound, replace(setting, dtypes=Dtypes(wire="fp32")).bound().tokens)


@quick
@given(made_up(kinds=("fsdp", "tp"), meshes=("torus",)), st.integers(1, 3))
def test_more_axes_and_exact_collectives_lower_the_bound(setting, own):
    def bound(axes, exact=False):
        mesh = replace(setting.mesh, all_axes=axes + 1, exact=exact)
        return replace(setting, mesh=mesh).bound().tokens

    assert at_most(bound(own + 1), bound(own))
    assert at_most(bound(own, exact=True), bound(own))


@quick
@given(made_up(), st.floats(1, 1e9))
def test_the_bound_is_where_the_times_cross(setting, tokens):
    bound = setting.bound().tokens
    for factor, faster in ((1.001, True), (0.999, False)):
        at = bound * factor if 0 < bound < math.inf else tokens
        times = [(setting.wire_s(step, at), setting.math_s(step, at)) for step in setting.steps]
        keep_up = all(wire <= math * (1 + 1e-9) for wire, math in times)
        assert keep_up == (bound < math.inf and (bound == 0 or faster))
