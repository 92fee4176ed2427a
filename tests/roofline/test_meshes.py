"""Collectives on a torus and on nodes of GPUs, against figures worked out by hand."""

from dataclasses import replace

import pytest
from account_settings import ask
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.account.meshes import Crossing, crossings
from roofline.theory.chips import find

AXIS = 180e9  # TPU v5p, both ways
PORT, LINK = 50e9, 450e9  # H100 SXM
H100, V5P, RING = find("H100 SXM"), find("TPU v5p"), replace(find("TPU v5p"), links=2, torus_axes=1)


@pytest.mark.parametrize(
    ("kind", "degrees", "chip", "exact", "share", "axes"),
    [
        ("fsdp", {"fsdp": 16}, RING, False, 1, 1),
        ("fsdp", {"fsdp": 16}, V5P, False, 1, 3),
        ("fsdp", {"fsdp": 16}, V5P, True, 15 / 16, 3),
        ("fsdp", {"fsdp": 16, "tp": 4}, V5P, False, 1, 2),
        ("tp", {"fsdp": 16, "tp": 4}, V5P, False, 1, 1),
        ("tp", {"tp": 4}, V5P, True, 3 / 4, 3),
    ],
)
def test_what_a_device_receives_on_a_torus(kind, degrees, chip, exact, share, axes):
    expected = [Crossing(f"{kind} axes", pytest.approx(share), axes * AXIS)]
    assert crossings(ask(chip, degrees, exact=exact), kind) == expected


@pytest.mark.parametrize(
    ("kind", "degrees", "exact", "port", "node", "network"),
    [
        ("fsdp", {"fsdp": 1024}, True, PORT, 7 / 8, 127 / 128 / 8),
        ("fsdp", {"fsdp": 64}, False, PORT, 1, 1 / 8),
        # Inside a node there is no network.
        ("tp", {"tp": 8}, True, None, 7 / 8, 0),
        # With tp = 8 the devices of an FSDP group are each in a node of its own. Two of them share a node when tp = 4:
        # half is gathered by each, over its own port.
        ("fsdp", {"tp": 8, "fsdp": 128}, True, PORT, 0, 127 / 128),
        ("fsdp", {"tp": 4, "fsdp": 128}, True, PORT, 1 / 2, 63 / 64 / 2),
    ],
)
def test_what_a_device_receives_on_nodes(kind, degrees, exact, port, node, network):
    expected = [Crossing("node", pytest.approx(node), LINK), Crossing("network", pytest.approx(network), PORT)]
    rows = crossings(ask(replace(H100, port_bytes_per_s=port), degrees, exact=exact), kind)
    assert rows == [crossing for crossing in expected if crossing.received_share != 0]


@pytest.mark.parametrize(
    ("chip", "degrees", "problem"),
    [
        (H100, {"tp": 8, "fsdp": 128}, None),
        (H100, {"tp": 16, "fsdp": 3}, None),
        (H100, {"tp": 3}, "tp=3: groups of 3 devices do not pack into nodes of 8: let them divide it"),
        (H100, {"tp": 4, "fsdp": 3}, "fsdp=3: groups of 12 devices do not pack"),
        (H100, {}, None),
        (find("H100 PCIe"), {"tp": 2}, None),
        (find("H100 PCIe"), {"fsdp": 4}, "4 devices span nodes of 2, and the chip's network is not known"),
        (V5P, {"tp": 4, "fsdp": 3}, None),
        (RING, {"tp": 4, "fsdp": 3}, "tp=4, fsdp=3: each needs an axis of its own, and the torus has 1: leave one out"),
    ],
)
def test_what_does_not_fit(chip, degrees, problem):
    sentence = ask(chip, degrees).misfit()
    assert sentence is None if problem is None else problem in sentence


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from(["tp", "fsdp"]), st.integers(1, 10), st.sampled_from([1, 2, 4, 8, 64]))
def test_larger_nodes_take_traffic_off_the_network(kind, power, size):
    def seconds(size, exact=True):
        rows = crossings(ask(replace(H100, node_size=size), {kind: 2**power}, exact=exact), kind)
        return {"node": 0, "network": 0} | {row.fabric: row.received_share / row.bytes_per_s for row in rows}

    before, larger, whole = seconds(size), seconds(2 * size), seconds(size, exact=False)
    assert max(before.values()) > 0
    assert larger["network"] <= before["network"]
    assert larger["node"] >= before["node"]
    assert all(before[fabric] <= whole[fabric] * (1 + 1e-9) for fabric in before)
