"""Collectives on a torus and on nodes of GPUs, against figures worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account.meshes import KINDS, Crossing, Nodes, Sharding, Torus

AXIS = 180e9  # TPU v5p, both ways
PORT, LINK = 50e9, 450e9  # H100 SXM

quick = settings(deadline=None, derandomize=True, max_examples=60)


@pytest.mark.parametrize(
    ("kind", "degrees", "torus", "amount", "axes"),
    [
        ("fsdp", {"fsdp": 16}, {"all_axes": 1}, 1, 1),
        ("fsdp", {"fsdp": 16}, {}, 1, 3),
        ("fsdp", {"fsdp": 16}, {"exact": True}, 15 / 16, 3),
        ("fsdp", {"fsdp": 16, "tp": 4}, {}, 1, 2),
        ("tp", {"fsdp": 16, "tp": 4}, {}, 1, 1),
        ("tp", {"tp": 4}, {"exact": True}, 3 / 4, 3),
    ],
)
def test_what_a_device_receives_on_a_torus(kind, degrees, torus, amount, axes):
    crossings = Torus(AXIS, **torus).crossings(kind, Sharding(**degrees))
    assert crossings == (Crossing(f"{kind} axes", pytest.approx(amount), axes * AXIS),)


@pytest.mark.parametrize(
    ("kind", "degrees", "nodes", "node", "network"),
    [
        ("fsdp", {"fsdp": 1024}, {}, 7 / 8, 127 / 128 / 8),
        ("fsdp", {"fsdp": 64}, {"exact": False}, 1, 1 / 8),
        # Inside a node there is no network.
        ("tp", {"tp": 8}, {"network_bytes_per_s": None}, 7 / 8, 0),
        # With tp = 8 the devices of an FSDP group are each in a node of its own. Two of them share a node when tp = 4:
        # half is gathered by each, over its own port.
        ("fsdp", {"tp": 8, "fsdp": 128}, {}, 0, 127 / 128),
        ("fsdp", {"tp": 4, "fsdp": 128}, {}, 1 / 2, 63 / 64 / 2),
    ],
)
def test_what_a_device_receives_on_nodes(kind, degrees, nodes, node, network):
    mesh = Nodes(**({"size": 8, "link_bytes_per_s": LINK, "network_bytes_per_s": PORT} | nodes))
    expected = [Crossing("node", pytest.approx(node), LINK), Crossing("network", pytest.approx(network), PORT)]
    crossings = mesh.crossings(kind, Sharding(**degrees))
    assert list(crossings) == [crossing for crossing in expected if crossing.amount != 0]


@pytest.mark.parametrize(
    ("degrees", "kind"),
    [
        ({"tp": 8, "fsdp": 128}, None),
        ({"tp": 16, "fsdp": 3}, None),
        ({"tp": 3}, "tp"),
        ({"tp": 4, "fsdp": 3}, "fsdp"),
        ({}, None),
    ],
)
def test_groups_that_do_not_pack_into_nodes(degrees, kind):
    assert Nodes(8, LINK, PORT).misfit(Sharding(**degrees)) == kind


@quick
@given(st.sampled_from(KINDS), st.integers(1, 10), st.sampled_from([1, 2, 4, 8, 64]))
def test_larger_nodes_take_traffic_off_the_network(kind, power, size):
    def seconds(size, exact=True):
        crossings = Nodes(size, LINK, PORT, exact).crossings(kind, Sharding(**{kind: 2**power}))
        return {"node": 0, "network": 0} | {crossing.fabric: crossing.seconds for crossing in crossings}

    before, larger, whole = seconds(size), seconds(2 * size), seconds(size, exact=False)
    assert max(before.values()) > 0
    assert larger["network"] <= before["network"]
    assert larger["node"] >= before["node"]
    assert all(before[fabric] <= whole[fabric] * (1 + 1e-9) for fabric in before)
