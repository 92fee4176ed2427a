"""Settings that several tests of the accounting ask about, and strategies that make them up."""

from hypothesis import strategies as st

from roofline.account.communication_bound import Setting
from roofline.account.meshes import Nodes, Sharding, Torus
from roofline.theory.chips import find
from roofline.theory.models import Model, parse

XXL = parse("xxl")
D, F, BLOCKS = 16384, 53248, 126

V5P_AXIS = 2 * 9e10
H100 = find("H100 SXM").flops["bf16"]
EXERCISE = Setting(XXL, 275e12, Torus(100e9, all_axes=1), Sharding(fsdp=8))


def v5p(flops=4.6e14, degrees=None, **more) -> Setting:
    """TPU v5p as the sources round it: 16 x 4 chips, two axes to FSDP and one to tensor parallelism."""
    sharding = Sharding(**({"fsdp": 16, "tp": 4} if degrees is None else degrees))
    return Setting(XXL, flops, Torus(V5P_AXIS), sharding, **more)


def h100(degrees, flops=H100, exact=True, **more) -> Setting:
    return Setting(XXL, flops, Nodes(8, 450e9, 50e9, exact), Sharding(**degrees), **more)


def tokens_each(setting: Setting) -> float:
    """Tokens of the bound, on each device."""
    return setting.bound().tokens / setting.sharding.devices


powers = st.integers(0, 5).map(lambda power: 2**power)


@st.composite
def made_up(draw, meshes=("torus", "nodes")):
    """Any setting whose degrees are powers of two."""
    model = Model(
        "any",
        draw(st.integers(64, 2**15)),
        2**5 * draw(st.integers(1, 2**12)),
        draw(st.integers(1, 200)),
        draw(st.integers(2, 3)),
    )
    sharding = Sharding(draw(powers), draw(powers))
    exact, flops = draw(st.booleans()), draw(st.floats(1e12, 1e16))
    if draw(st.sampled_from(meshes)) == "torus":
        axes = max(len(sharding.used), draw(st.integers(1, 3)))
        mesh = Torus(draw(st.floats(1e9, 1e12)), exact, axes)
    else:
        node = 2 ** draw(st.integers(0, 6))
        mesh = Nodes(node, draw(st.floats(1e11, 1e12)), draw(st.floats(1e9, 1e11)), exact)
    return Setting(model, flops, mesh, sharding)
