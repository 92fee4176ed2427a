"""Collectives on a torus and on nodes of GPUs, against figures worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account.meshes import KINDS, Crossing, Nodes, Sharding, Torus

AXIS = 180e9  # TPU v5p, both ways
PORT, LINK = 50e9, 450e9  # H100 SXM
GATHERS = ("all-gather", "reduce-scatter")

quick = settings(deadline=None, derandomize=True, max_examples=60)


def h100(**changes):
    return Nodes(**({"size": 8, "link_bytes_per_s": LINK, "network_bytes_per_s": PORT} | changes))


def test_degrees_multiply_and_the_first_kinds_are_neighbours():
    sharding = Sharding(tp=2, ep=3, fsdp=5, dp=7, pp=11)
    assert sharding.devices == 2 * 3 * 5 * 7 * 11
    assert sharding.batch_parts == 3 * 5 * 7
    assert [sharding.inside(kind) for kind in KINDS] == [1, 2, 6, 30, 210]
    assert (sharding.used, Sharding(dp=2).used) == (list(KINDS), ["dp"])


# Torus


@pytest.mark.parametrize(
    ("op", "seconds"),
    [("all-gather", 1 / AXIS), ("reduce-scatter", 1 / AXIS), ("all-reduce", 2 / AXIS), ("all-to-all", 1 / (4 * AXIS))],
)
def test_torus_of_one_axis_both_ways(op, seconds):
    (crossing,) = Torus(AXIS, {"fsdp": 1}).crossings("fsdp", op, Sharding(fsdp=16))
    assert crossing.seconds == pytest.approx(seconds)
    assert crossing.fabric == "fsdp axes"


def test_torus_exact_leaves_out_what_is_at_home():
    def received(op):
        return Torus(AXIS, exact=True).crossings("fsdp", op, Sharding(fsdp=16))[0].amount

    assert [received(op) for op in ("all-gather", "reduce-scatter", "all-reduce")] == [15 / 16, 15 / 16, 30 / 16]


def test_axes_add_bandwidth_and_shorten_the_rings_of_an_all_to_all():
    """An all-to-all over n axes of P^(1/n) chips takes a quarter of V / P * P^(1/n) over one axis, or half one way."""
    torus, sharding = Torus(AXIS, {"fsdp": 3}), Sharding(fsdp=64)
    assert torus.crossings("fsdp", "all-gather", sharding) == (Crossing("fsdp axes", 1, 3 * AXIS),)
    assert torus.crossings("fsdp", "all-to-all", sharding)[0].seconds == pytest.approx(4 / 64 / 4 / AXIS)
    one_way = Torus(AXIS / 2, {"fsdp": 1}, ways=1).crossings("fsdp", "all-to-all", sharding)[0]
    assert one_way.seconds == pytest.approx(1 / 2 / (AXIS / 2))


def test_a_send_takes_one_link():
    assert Torus(AXIS, {"pp": 2}).crossings("pp", "send", Sharding(pp=4)) == (Crossing("pp axes", 1, AXIS / 2),)
    assert Torus(AXIS, ways=1).crossings("pp", "send", Sharding(pp=4))[0].bytes_per_s == AXIS


@pytest.mark.parametrize(
    ("degrees", "axes"),
    [
        ({"fsdp": 64}, {"fsdp": 3}),
        ({"fsdp": 16, "tp": 4}, {"fsdp": 2, "tp": 1}),
        ({"fsdp": 4, "tp": 4, "pp": 4}, {"fsdp": 1, "tp": 1, "pp": 1}),
        ({"tp": 4}, {"tp": 3}),
        ({"tp": 4, "dp": 4}, {"tp": 2, "dp": 1}),
        ({}, {}),
    ],
)
def test_axes_are_dealt_out_to_the_kinds_in_use(degrees, axes):
    torus, sharding = Torus(AXIS), Sharding(**degrees)
    assert {kind: torus.axes_of(kind, sharding) for kind in sharding.used} == axes
    assert torus.taken(sharding) == sum(axes.values()) <= 3


def test_kinds_with_too_many_axes_together_share_them():
    sharding = Sharding(tp=2, ep=2, fsdp=2, pp=2)
    crossings = [Torus(AXIS).crossings(kind, "all-gather", sharding) for kind in sharding.used]
    assert {crossing.fabric for (crossing,) in crossings} == {"axes"}
    enough = Torus(AXIS, all_axes=4).crossings("ep", "all-gather", sharding)
    assert enough[0].fabric == "ep axes"


def test_a_kind_without_an_axis_is_on_the_network():
    sharding = Sharding(fsdp=16, dp=4)
    torus = Torus(AXIS, {"dp": 0, "fsdp": 3}, network_bytes_per_s=6.25e9)
    assert torus.crossings("dp", "all-reduce", sharding) == (Crossing("network", 2, 6.25e9),)
    assert torus.crossings("fsdp", "all-gather", sharding)[0].fabric == "fsdp axes"
    with pytest.raises(ValueError, match="axes dp=0: the chip's network is not known; give --network"):
        Torus(AXIS, {"dp": 0}).crossings("dp", "all-reduce", sharding)


# Nodes


@pytest.mark.parametrize(
    ("op", "node", "network"),
    [
        ("all-gather", 7 / 8, 127 / 128 / 8),
        ("reduce-scatter", 7 / 8, 127 / 128 / 8),
        ("all-reduce", 14 / 8, 254 / 128 / 8),
        ("all-to-all", 7 / 8 / 1024, 1016 / 1024**2),
    ],
)
def test_collectives_of_1024_h100(op, node, network):
    inside, between = h100().crossings("fsdp", op, Sharding(fsdp=1024))
    assert inside == Crossing("node", pytest.approx(node), LINK)
    assert between == Crossing("network", pytest.approx(network), PORT)


def test_a_token_crosses_to_a_node_once_however_many_experts_it_has_there():
    """16 devices in 2 nodes: of 8 copies, one for each device, one crosses to the other node and 7/8 go by NVLink."""
    for top_k, copies, nodes in ((1, 1, 1), (2, 2, 2), (8, 8, 2), (64, 16, 2)):
        inside, between = h100().crossings("ep", "all-to-all", Sharding(ep=16), top_k)
        assert between.amount * 16 * copies == pytest.approx(nodes / 2)
        assert inside.amount * 16 == pytest.approx(7 / 8)
    alone = h100().crossings("ep", "all-to-all", Sharding(ep=8), 8)
    assert alone == h100().crossings("ep", "all-to-all", Sharding(ep=8))


def test_inside_a_node_there_is_no_network():
    nodes = h100(network_bytes_per_s=None)
    assert nodes.crossings("tp", "all-gather", Sharding(tp=8)) == (Crossing("node", 7 / 8, LINK),)
    assert nodes.crossings("tp", "all-gather", Sharding(tp=8))[0].seconds == pytest.approx(7 / 8 / 450e9)
    assert nodes.crossings("ep", "all-to-all", Sharding(ep=8)) == (Crossing("node", 7 / 64, LINK),)
    with pytest.raises(ValueError, match=r"tp=16 spans 2 nodes of 8, .* give --network BYTES/s, or larger nodes"):
        nodes.crossings("tp", "all-gather", Sharding(tp=16))


def test_devices_of_the_same_rank_in_each_node_use_their_own_port():
    """With tp = 8 in the node, the 128 devices of an FSDP group are each in a node of its own."""
    between = h100().crossings("fsdp", "all-gather", Sharding(tp=8, fsdp=128))
    assert between == (Crossing("network", 127 / 128, PORT),)
    # Two of them share a node when tp = 4: half is gathered by each, over its own port.
    inside, between = h100().crossings("fsdp", "all-gather", Sharding(tp=4, fsdp=128))
    assert (inside.amount, between.amount) == (1 / 2, 63 / 64 / 2)


def test_whole_collectives_leave_out_the_shares():
    inside, between = h100(exact=False).crossings("fsdp", "all-reduce", Sharding(fsdp=64))
    assert (inside.amount, between.amount) == (2, 2 / 8)


def test_switches_reduce_an_all_reduce_and_nothing_else():
    for op in (*GATHERS, "all-to-all", "send"):
        assert h100(sharp=True).crossings("dp", op, Sharding(dp=64)) == h100().crossings("dp", op, Sharding(dp=64))
    inside, between = h100(sharp=True).crossings("dp", "all-reduce", Sharding(dp=64))
    assert (inside.amount, between.amount) == (1, 1 / 8)
    assert h100(sharp=True).crossings("dp", "all-reduce", Sharding(dp=8)) == (Crossing("node", 1, LINK),)


def test_a_send_crosses_to_another_node_where_a_stage_fills_one():
    assert h100().crossings("pp", "send", Sharding(tp=2, pp=4)) == (Crossing("node", 1, LINK),)
    assert h100().crossings("pp", "send", Sharding(tp=4, pp=4)) == (Crossing("network", 1, PORT),)


@pytest.mark.parametrize(
    ("degrees", "kind"),
    [
        ({"tp": 8, "fsdp": 128}, None),
        ({"tp": 16, "fsdp": 3}, None),
        ({"tp": 3}, "tp"),
        ({"fsdp": 12}, "fsdp"),
        ({"tp": 2, "ep": 3, "fsdp": 8}, "ep"),
        ({"fsdp": 4, "dp": 3}, "dp"),
        ({"fsdp": 4, "dp": 2, "pp": 3}, None),
        ({}, None),
    ],
)
def test_groups_that_do_not_pack_into_nodes(degrees, kind):
    assert h100().misfit(Sharding(**degrees)) == kind


@quick
@given(
    st.sampled_from(KINDS[:4]),
    st.sampled_from((*GATHERS, "all-reduce", "all-to-all")),
    st.integers(1, 10),
    st.sampled_from([1, 2, 4, 8, 64]),
    st.booleans(),
)
def test_larger_nodes_take_traffic_off_the_network(kind, op, power, size, sharp):
    sharding = Sharding(**{kind: 2**power})

    def seconds(**changes):
        crossings = h100(**({"size": size, "sharp": sharp} | changes)).crossings(kind, op, sharding)
        return {"node": 0, "network": 0} | {crossing.fabric: crossing.seconds for crossing in crossings}

    before, larger = seconds(), seconds(size=2 * size)
    assert max(before.values()) > 0
    assert larger["network"] <= before["network"]
    assert larger["node"] >= before["node"]
    for fabric in before:
        assert seconds(sharp=True)[fabric] <= seconds(sharp=False)[fabric] * (1 + 1e-9)
        assert seconds(sharp=False)[fabric] <= seconds(sharp=False, exact=False)[fabric] * (1 + 1e-9)


@quick
@given(st.sampled_from((*GATHERS, "all-reduce")), st.integers(2, 2**12), st.integers(1, 3), st.booleans())
def test_a_collective_on_a_torus_goes_over_its_axes(op, parts, axes, exact):
    def seconds(count):
        torus = Torus(AXIS, {"fsdp": count}, exact=exact)
        return torus.crossings("fsdp", op, Sharding(fsdp=parts))[0].seconds

    assert seconds(axes) == pytest.approx(seconds(1) / axes)
    passes = 2 if op == "all-reduce" else 1
    assert seconds(1) == pytest.approx(passes * ((parts - 1) / parts if exact else 1) / AXIS)
