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
    sharding = Sharding(tp=2, fsdp=5, dp=7, pp=11)
    assert sharding.devices == 2 * 5 * 7 * 11
    assert sharding.batch_parts == 5 * 7
    assert [sharding.inside(kind) for kind in KINDS] == [1, 2, 10, 70]
    assert (sharding.used, Sharding(dp=2).used) == (list(KINDS), ["dp"])


@pytest.mark.parametrize(
    ("op", "degrees", "torus", "fabric", "amount", "rate"),
    [
        ("fsdp all-gather", {"fsdp": 16}, {"all_axes": 1}, "fsdp axes", 1, AXIS),
        ("fsdp reduce-scatter", {"fsdp": 16}, {"all_axes": 1}, "fsdp axes", 1, AXIS),
        ("fsdp all-reduce", {"fsdp": 16}, {"all_axes": 1}, "fsdp axes", 2, AXIS),
        # What is at home is left out where collectives are exact; axes add bandwidth.
        ("fsdp all-gather", {"fsdp": 16}, {"exact": True}, "fsdp axes", 15 / 16, 3 * AXIS),
        ("fsdp all-reduce", {"fsdp": 16}, {"exact": True}, "fsdp axes", 30 / 16, 3 * AXIS),
        # A send takes one link.
        ("pp send", {"pp": 4}, {}, "pp axes", 1, AXIS / 2),
        ("pp send", {"pp": 4}, {"ways": 1}, "pp axes", 1, AXIS),
    ],
)
def test_what_a_device_receives_on_a_torus(op, degrees, torus, fabric, amount, rate):
    (crossing,) = Torus(AXIS, **torus).crossings(*op.split(), Sharding(**degrees))
    assert crossing == Crossing(fabric, pytest.approx(amount), rate)


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
    assert torus.misfit(sharding) is None


@pytest.mark.parametrize(
    ("op", "degrees", "nodes", "node", "network"),
    [
        ("fsdp all-gather", {"fsdp": 1024}, {}, 7 / 8, 127 / 128 / 8),
        ("fsdp reduce-scatter", {"fsdp": 1024}, {}, 7 / 8, 127 / 128 / 8),
        ("fsdp all-reduce", {"fsdp": 1024}, {}, 14 / 8, 254 / 128 / 8),
        ("fsdp all-reduce", {"fsdp": 64}, {"exact": False}, 2, 2 / 8),
        # Inside a node there is no network.
        ("tp all-gather", {"tp": 8}, {"network_bytes_per_s": None}, 7 / 8, 0),
        # With tp = 8 the devices of an FSDP group are each in a node of its own. Two of them share a node when tp = 4:
        # half is gathered by each, over its own port.
        ("fsdp all-gather", {"tp": 8, "fsdp": 128}, {}, 0, 127 / 128),
        ("fsdp all-gather", {"tp": 4, "fsdp": 128}, {}, 1 / 2, 63 / 64 / 2),
        # Switches reduce an all-reduce and nothing else.
        ("dp all-reduce", {"dp": 64}, {"sharp": True}, 1, 1 / 8),
        ("dp all-reduce", {"dp": 8}, {"sharp": True}, 1, 0),
        ("dp reduce-scatter", {"dp": 64}, {"sharp": True}, 7 / 8, 7 / 8 / 8),
        # A send crosses to another node where a stage fills one.
        ("pp send", {"tp": 2, "pp": 4}, {}, 1, 0),
        ("pp send", {"tp": 4, "pp": 4}, {}, 0, 1),
    ],
)
def test_what_a_device_receives_on_nodes(op, degrees, nodes, node, network):
    found = h100(**nodes).crossings(*op.split(), Sharding(**degrees))
    expected = [Crossing("node", pytest.approx(node), LINK), Crossing("network", pytest.approx(network), PORT)]
    assert list(found) == [crossing for crossing in expected if crossing.amount != 0]


@pytest.mark.parametrize(
    ("degrees", "kind"),
    [
        ({"tp": 8, "fsdp": 128}, None),
        ({"tp": 16, "fsdp": 3}, None),
        ({"tp": 3}, "tp"),
        ({"fsdp": 12}, "fsdp"),
        ({"fsdp": 4, "dp": 3}, "dp"),
        ({"fsdp": 4, "dp": 2, "pp": 3}, None),
        ({}, None),
    ],
)
def test_groups_that_do_not_pack_into_nodes(degrees, kind):
    assert h100().misfit(Sharding(**degrees)) == kind


@quick
@given(
    st.sampled_from(KINDS[:3]),
    st.sampled_from((*GATHERS, "all-reduce")),
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
        torus = Torus(AXIS, exact=exact, all_axes=count)
        return torus.crossings("fsdp", op, Sharding(fsdp=parts))[0].seconds

    assert seconds(axes) == pytest.approx(seconds(1) / axes)
    passes = 2 if op == "all-reduce" else 1
    assert seconds(1) == pytest.approx(passes * ((parts - 1) / parts if exact else 1) / AXIS)
