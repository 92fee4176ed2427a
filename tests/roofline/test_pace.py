"""Where chips and wires meet, against the figures of the sources and figures worked out by hand."""

import math
from dataclasses import replace

import pytest
from account_settings import EXERCISE, H100, V5P_AXIS, D, F, h100, made_up, per_token, tokens_each, v5p
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account.communication_bound import Bound
from roofline.account.memory import Dtypes
from roofline.account.meshes import Sharding, Torus

quick = settings(deadline=None, derandomize=True, max_examples=80)

WEIGHTS = 4 * D * F
"""Bytes of a block's weights in bf16; also the FLOP of a token in it."""


def test_the_exercise_leads_to_2750():
    assert tokens_each(EXERCISE) == pytest.approx(2750)
    assert EXERCISE.bound() == Bound(pytest.approx(22_000), "forward", "fsdp axes")
    assert tokens_each(replace(EXERCISE, sharding=Sharding(fsdp=4096))) == pytest.approx(2750)


def test_the_exact_gather_of_eight_hides_from_2406_tokens():
    exact = replace(EXERCISE, mesh=replace(EXERCISE.mesh, exact=True))
    assert tokens_each(exact) == pytest.approx(2750 * 7 / 8) == pytest.approx(2406.25)


# TPU v5p, X = 16, Y = 4, M_X = 2, M_Y = 1


def test_terms_of_v5p():
    setting = v5p()
    gather, activations, sums = setting.terms
    assert (gather.fixed_bytes, gather.token_bytes) == (WEIGHTS / 4, 0)
    assert gather.seconds(1e6) == pytest.approx(4 * D * F / (4 * V5P_AXIS * 2))
    for term in (activations, sums):
        assert (term.fixed_bytes, term.token_bytes) == (0, 2 * D / 16)
    assert activations.seconds(131_072) + sums.seconds(131_072) == pytest.approx(4 * 131_072 * D / (16 * V5P_AXIS))
    assert setting.math_s("forward", 131_072) == pytest.approx(4 * 131_072 * D * F / (64 * 4.6e14))
    assert setting.wire_s("forward", 1000) == pytest.approx(gather.seconds(0))


@pytest.mark.parametrize(
    ("wires", "tokens", "each"),
    [("separate", 20_444, 319.4), ("fabric", 20_444, 319.4), ("shared", 25_302, 395.3)],
)
def test_bound_of_v5p_in_both_conventions(wires, tokens, each):
    setting = v5p(wires=wires)
    assert round(setting.bound().tokens) == tokens
    assert round(tokens_each(setting), 1) == each


def test_three_axes_bring_the_bound_of_the_source_to_850():
    assert tokens_each(v5p(flops=4.59e14, degrees={"fsdp": 512})) == pytest.approx(850)
    assert tokens_each(v5p({"fsdp": 1}, 4.59e14, degrees={"fsdp": 512})) == pytest.approx(2550)


def test_pods_over_the_network_need_71360_tokens_each():
    """Data parallel pods: C / W of the network, 4.46e14 / 6.25e9, counted on each chip."""
    torus = Torus(V5P_AXIS, {"dp": 0, "fsdp": 3}, network_bytes_per_s=6.25e9)
    setting = replace(v5p(flops=4.46e14), mesh=torus, sharding=Sharding(fsdp=64, dp=4), step="training")
    assert setting.bound().tokens / 4 == pytest.approx(71_360)
    assert (setting.bound().step, setting.bound().fabric) == ("backward", "network")


def test_without_a_bound():
    """Y = 32: activations need F above 32 * 2555.6, so each token takes longer on the wire than on the chip."""
    assert v5p(degrees={"fsdp": 2, "tp": 32}).bound() == Bound(math.inf, "forward", "tp axes")
    assert v5p(degrees={"tp": 4}).bound() == Bound(0, "forward", "tp axes")
    assert v5p(degrees={}).bound() == Bound(0, "forward", None)


@pytest.mark.parametrize(("chips", "holds"), [(19, True), (20, False)])
def test_whole_tensor_parallelism_crosses_2750_between_19_and_20(chips, holds):
    setting = replace(EXERCISE, sharding=Sharding(tp=chips))
    assert setting.bound().tokens == (0 if holds else math.inf)


@pytest.mark.parametrize(("chips", "holds"), [(20, True), (21, False)])
def test_exact_tensor_parallelism_crosses_2750_between_20_and_21(chips, holds):
    setting = replace(EXERCISE, sharding=Sharding(tp=chips), mesh=replace(EXERCISE.mesh, exact=True))
    assert setting.bound().tokens == (0 if holds else math.inf)


@pytest.mark.parametrize(("wires", "fabric"), [("separate", "node of tp"), ("fabric", "node"), ("shared", "wires")])
def test_the_bound_names_what_the_chips_wait_for(wires, fabric):
    # Inside a node 2 * 7/8 of the activations take longer than the matmuls of a chip that is so fast.
    assert h100({"tp": 8}, flops=1e16, wires=wires).bound() == Bound(math.inf, "forward", fabric)
    assert v5p(wires="separate").bound().fabric == "fsdp axes"


def test_more_steps_are_bound_by_the_slower_one():
    setting = h100({"fsdp": 64, "dp": 8}, step="training", recompute=True)
    both, forward, backward = (setting.bound(*steps).tokens for steps in ((), ("forward",), ("backward",)))
    assert both == max(forward, backward) > min(forward, backward)


# H100


def test_fsdp_inside_a_node_and_over_1024_h100():
    assert tokens_each(h100({"fsdp": 8})) == pytest.approx(7 / 8 * H100 / 450e9)
    assert tokens_each(h100({"fsdp": 1024})) == pytest.approx(2454.2, abs=0.05)
    assert tokens_each(h100({"fsdp": 1024})) == pytest.approx(H100 / 400e9 * 127 / 128)
    assert tokens_each(h100({"fsdp": 1024}, exact=False, flops=9.9e14)) == pytest.approx(2475)


def test_data_parallelism_has_no_wire_but_in_the_backward_pass():
    setting = h100({"dp": 8}, step="training")
    assert [(term.step, term.op, term.fixed_bytes) for term in setting.terms] == [("backward", "all-reduce", WEIGHTS)]
    assert tokens_each(setting) == pytest.approx(7 / 8 * H100 / 450e9)  # 8 B D F / C against 8 D F (P - 1) / P / W
    assert h100({"dp": 8}).bound().tokens == 0


def test_training_of_fsdp_and_tp_as_listed_by_hand():
    terms = h100({"fsdp": 128, "tp": 8}, step="training").terms
    activations = 2 * D / 128
    assert [(term.step[0], term.name, term.op, term.kind, term.fixed_bytes, term.token_bytes) for term in terms] == [
        ("f", "gather weights", "all-gather", "fsdp", WEIGHTS / 8, 0),
        ("f", "gather activations", "all-gather", "tp", 0, activations),
        ("f", "scatter partial sums", "reduce-scatter", "tp", 0, activations),
        ("b", "gather weights", "all-gather", "fsdp", WEIGHTS / 8, 0),
        ("b", "scatter gradients", "reduce-scatter", "fsdp", WEIGHTS / 8, 0),
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


def test_replicas_reduce_what_a_shard_of_them_holds():
    terms = h100({"fsdp": 8, "dp": 16, "tp": 2}, step="training").terms
    assert [term.fixed_bytes for term in terms if term.kind == "dp"] == [WEIGHTS / 2 / 8]


def test_flop_of_the_passes():
    setting = h100({"fsdp": 8, "tp": 2}, step="training")
    assert setting.math_flop("forward") == WEIGHTS / 16
    assert setting.math_flop("backward") == 2 * WEIGHTS / 16
    assert replace(setting, recompute=True).math_flop("backward") == 2.5 * WEIGHTS / 16  # D -> F again
    assert replace(setting, recompute=True).math_flop("forward") == WEIGHTS / 16


# Experts, stages, dtypes, microbatches


@pytest.mark.parametrize(("experts", "top_k"), [(8, 2), (16, 1), (4, 4)])
def test_experts_multiply_the_bound_by_those_unused(experts, top_k):
    setting = replace(EXERCISE, experts=experts, top_k=top_k)
    assert tokens_each(setting) == pytest.approx(2750 * experts / top_k)


def test_experts_dealt_out():
    """4 groups of 2 experts: each gathers a quarter of all; a token is sent to its 2 experts, and comes back."""
    setting = h100({"ep": 4, "fsdp": 16, "tp": 2}, experts=8, top_k=2, step="training")
    assert setting.terms[0].fixed_bytes == WEIGHTS * 8 / (2 * 4)
    own = 2 * D / (4 * 16)  # a token's activations, over those who share the batch
    assert per_token(setting, "gather activations") == 2 * own
    assert per_token(setting, "dispatch to experts") == per_token(setting, "combine from experts") == 4 * own / 2 * 2
    dispatch = next(term for term in setting.terms if term.name == "dispatch to experts")
    assert dispatch.crossings[0].amount == 3 / 16
    assert setting.math_flop("forward") == 2 * WEIGHTS / (4 * 16 * 2)


def test_experts_on_the_same_devices_share_a_copy_of_a_token():
    alone = h100({"fsdp": 16, "tp": 2}, experts=8, top_k=4)
    assert per_token(alone, "gather activations") == 2 * D / 16
    two = h100({"fsdp": 16, "tp": 2, "ep": 2}, experts=8, top_k=4)
    assert per_token(two, "gather activations") == 2 * 2 * D / 32
    assert per_token(two, "dispatch to experts") == 2 * 2 * D / 32 * 2 / 2


def test_checkpoints_of_experts_are_dispatched_again():
    setting = h100({"fsdp": 16, "ep": 4}, experts=8, step="training", recompute=True)
    names = [term.name for term in setting.terms if term.kind == "ep" and term.step == "backward"]
    assert names == ["dispatch to experts", "combine from experts", "dispatch again"]
    assert not any(term.name == "dispatch again" and term.step == "forward" for term in setting.terms)
    plain = replace(setting, recompute=False)
    assert not any(term.name == "dispatch again" for term in plain.terms)


def test_stages_divide_those_who_gather_and_send_once_each():
    before, after = h100({"fsdp": 1024}), h100({"fsdp": 256, "pp": 4})
    assert after.terms[0].fixed_bytes == before.terms[0].fixed_bytes
    send = after.terms[1]
    # 2 D bytes a token of each FSDP shard, once for the largest stage's blocks: 32 of 126, in four.
    assert (send.name, send.token_bytes) == ("send to next stage", pytest.approx(2 * D / 256 / 32))
    assert send.crossings[0].fabric == "network"
    alone = h100({"fsdp": 256}).bound().tokens
    assert replace(after, wires="separate").bound().tokens == pytest.approx(alone)


@pytest.mark.parametrize(("gathers", "share"), [("fp8", 0.5), ("fp32", 2), ("bf16", 1)])
def test_dtype_of_gathers_moves_the_bound(gathers, share):
    assert tokens_each(replace(EXERCISE, dtypes=Dtypes(gathers=gathers))) == pytest.approx(2750 * share)


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


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"top_k": 2}, "top-k 2: a token cannot go to more than its 1 experts"),
    ],
)
def test_bad_settings_are_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        replace(EXERCISE, **wrong)


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
def test_more_experts_raise_the_bound_and_smaller_gathers_lower_it(setting, factor):
    bound = setting.bound().tokens
    assert at_most(bound, replace(setting, experts=setting.experts * factor).bound().tokens)
    assert at_most(bound, replace(setting, gathers=factor).bound().tokens)
    assert at_most(replace(setting, dtypes=Dtypes(gathers="fp8")).bound().tokens, bound)
    assert at_most(bound, replace(setting, dtypes=Dtypes(wire="fp32")).bound().tokens)


@quick
@given(made_up(kinds=("fsdp", "tp"), meshes=("torus",)), st.integers(1, 3))
def test_more_axes_and_exact_collectives_lower_the_bound(setting, own):
    def bound(axes, exact=False):
        mesh = replace(setting.mesh, axes={"fsdp": axes, "tp": 1}, all_axes=9, exact=exact)
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
