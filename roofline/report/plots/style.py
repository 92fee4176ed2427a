"""The common parts of gathering operations' figures: columns derived from a frame, looks of arms, words for a link."""

from roofline.report.format import rate_text
from roofline.report.plots import theme
from roofline.report.tables import named
from roofline.theory.arms import ARMS, PERSISTENT
from roofline.theory.wires import PACED, PCIE

PERSISTENT_LOOK = {"fillstyle": "left", "markerfacecoloralt": "white"}
"""Half of a marker: the same arm by our persistent matmul."""


def prepared(frame):
    """The rows of `frame` over a wire, in the order of `styles`, with more columns.

    `timed`: both the unsplit matmul and the link alone were measured. `void`: the link was off its pace. `over`,
    `over_low`, `over_high`: an arm's time over `ideal_s` and its interval, by the hidden fraction, which is formed
    within each round, so that what all met alike cancels. A case that is void has none, nor has an arm over a fabric
    of its own: its time stands over the medians. `share`, `share_low`, `share_high`: T_gemm over an arm's time,
    likewise.
    """
    frame = frame[frame["analysis"] == "overlap"].copy()
    frame.attrs = {}  # which each selection would copy
    order = list(styles(frame["contender"]))
    frame = frame.sort_values("contender", key=lambda arms: arms.map(order.index), kind="stable")
    ideal_s = frame["ideal_s"]
    shorter_s = frame[["t_gemm_s", "t_comm_s"]].min(axis=1, skipna=False)

    def over(hidden: str, time: str):
        paid = (1 - frame[hidden]) * shorter_s / ideal_s
        return (1 + paid).fillna(frame[time] / ideal_s)

    frame["timed"] = ideal_s.notna()
    frame["void"] = frame["link_off_pace"].notna()
    frame["over"] = over("hidden_fraction", "time_s")
    frame["over_low"] = over("hidden_high", "time_low_s")
    frame["over_high"] = over("hidden_low", "time_high_s")
    best = frame["ratio"].clip(upper=1)
    frame["share"] = best / frame["over"]
    frame["share_low"] = (best / frame["over_high"]).fillna(frame["share"])
    frame["share_high"] = (best / frame["over_low"]).fillna(frame["share"])
    return frame


def styles(arms) -> dict[str, dict]:
    """{arm: how its points are drawn} of `arms`, in the order of `ARMS`; those that are not there come last.

    The colour-blind can tell the colours apart. Serial is grey: it is what the others are measured against.
    """
    arms = list(dict.fromkeys(arms))
    looks: dict[str, dict] = {}
    for name, arm in ARMS.items():
        look = dict(zip(("color", "marker"), arm.look, strict=True))
        looks |= {name: look, name + PERSISTENT: look | PERSISTENT_LOOK}
    looks |= theme.looks([arm for arm in arms if arm not in looks])
    return {arm: look for arm, look in looks.items() if arm in arms}


def interval(frame, name: str) -> list:
    """Error bars of the column `name`, whose interval is in `name`_low and `name`_high."""
    below = frame[name] - frame[f"{name}_low"]
    above = frame[f"{name}_high"] - frame[name]
    return [below.clip(lower=0), above.clip(lower=0)]


def label(row, among) -> str:
    """The words that tell a row's shape from others of its operation in `among`: `tp=16`, `M=172`, `tp=16, P=4`."""
    others = among[among["op"] == row.op]
    first = "m" if row.op == "weight_prefetch" else "tp"
    words = {"tp": f"tp={row.tp}", "m": f"M={row.m}", "ranks": f"P={row.ranks}", "dtype": row.dtype}
    return ", ".join(text for key, text in words.items() if key == first or others[key].nunique() > 1)


def link_text(frame) -> str:
    """Kind, bandwidth and ranks of the links: `paced (emulated) link, 1.05 GB/s reached of 1.07 asked, P = 8 ranks`."""
    parts = []
    for kind, rows in frame.groupby("link", sort=False):
        text = kind
        if kind == PCIE:
            text += ", emulated ranks"
        elif kind.startswith(PACED):
            text += " (emulated)"
        text += " link"
        reached = range_of(rows["link_bytes_per_s"] / 1e9)
        asked = range_of(rows["link_bytes_per_s_requested"] / 1e9)
        if reached:
            text += f", {reached} GB/s reached"
        if asked:
            text += f" of {asked} asked" if reached else f", {asked} GB/s asked"
        ranks = map(str, sorted(rows["ranks"].unique()))
        parts.append(f"{text}, P = {' or '.join(ranks)} ranks")
    return "; ".join(parts)


def range_of(values) -> str:
    """The least and the greatest, or the one that both read as; no text of none."""
    ends = values.dropna().agg(["min", "max"]).dropna()
    return " to ".join(dict.fromkeys(map(rate_text, ends)))


def left_out(frame, *, void: bool) -> list[str]:
    """A line for each reason why shapes are not drawn; those whose link was off its pace only if `void`."""
    firsts = frame.drop_duplicates("shape")
    rows_of = {"T_gemm or T_comm was not measured": firsts[~firsts["timed"]]}
    if void:
        rows_of["link off its pace"] = firsts[firsts["timed"] & firsts["void"]]
    lines = []
    for reason, rows in rows_of.items():
        names = [f"{row.op} {label(row, frame)} {row.wire}" for row in rows.itertuples()]
        if names:
            lines.append(f"left out, {reason}: {named(names)}")
    return lines


def void_text(row) -> str:
    return f"void: link off its pace ({100 * row.link_off_pace:+.0f} %)"
