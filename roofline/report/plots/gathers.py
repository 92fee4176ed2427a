"""The common parts of gathering operations' figures, which have a panel for each operation: columns derived from a
frame, looks of arms, words for a shape and its link."""

from roofline.report.findings import WORDS, in_words
from roofline.report.format import rate_text
from roofline.report.plots import theme
from roofline.report.tables import named
from roofline.theory.arms import ARMS, PERSISTENT
from roofline.theory.wires import HOW, PACED

PERSISTENT_LOOK = {"fillstyle": "left", "markerfacecoloralt": "white"}
"""Half of a marker: the same arm by our persistent matmul."""


def prepared(frame):
    """The rows of `frame` over a wire, with more columns. Left out, and told of in the footer, are shapes whose unsplit
    matmul or link was not measured alone, or whose link was off its pace.

    `over`: an arm's time over `ideal_s`. `share`: T_gemm over an arm's time. Both have an interval, `_low` and `_high`:
    that of `of_roof`, or where there is none, as over a fabric of its own, of the time. `name`: what tells the shape
    from others of its operation. `look`: colour and marker of the arm.
    """
    cases = frame[frame["analysis"] == "overlap"]
    is_left_out = cases["ideal_s"].isna() | cases["link_off_pace"].notna()
    left_out = cases["shape"][is_left_out].unique()
    cases = cases[~cases["shape"].isin(left_out)].copy()
    if len(left_out):
        footer = cases.attrs.get("footer", "")
        cases.attrs["footer"] = (
            f"{footer}\nleft out, as T_gemm or T_comm is void or was not measured: {named(left_out)}"
        )
    for end, of_time in (("", ""), ("_low", "_high"), ("_high", "_low")):
        of_ideal = cases[f"of_roof{end}"].fillna(cases["ideal_s"] / cases[f"time{of_time}_s"])
        cases[f"over{of_time}"] = 1 / of_ideal
        cases[f"share{end}"] = of_ideal * cases["ratio"].clip(upper=1)
    for _, rows in cases.groupby("op"):
        cases.loc[rows.index, "name"] = _names(rows[[*WORDS]])
    return cases.assign(look=cases["contender"].map(styles(cases["contender"])))


def _names(fields):
    """In words, the `fields` of each shape that are not as in most: `tp 26`, `M 172`, `P 4, wire ridge`; or where all
    are, that of which there are most."""
    unusual = fields.where(fields.ne(fields.mode().iloc[0]))
    is_usual = unusual.isna().all(axis=1)
    most = fields.nunique().idxmax()
    unusual.loc[is_usual, most] = fields[most]
    return unusual.apply(in_words, axis=1)


def panels(cases, finding: str, heights_in, **shared) -> tuple:
    """A figure that says what is found, and (axes, rows of `cases`) of the panel of each operation, which is headed by
    the links."""
    figure = theme.new(11, sum(heights_in) + 2.2, cases, finding)
    grid = figure.subplots(len(heights_in), squeeze=False, height_ratios=heights_in, **shared)
    by_op = cases.groupby("op", sort=False)
    of_ops = []
    for axes, (op, rows) in zip(grid[:, 0], by_op, strict=True):
        axes.set_title(f"{op}, {link_text(rows)}")
        of_ops.append((axes, rows))
    return figure, of_ops


def styles(arms) -> dict[str, dict]:
    """{arm: colour and marker} of `ARMS`, and of those of `arms` that are not there.

    The colour-blind can tell the colours apart. Serial is grey: it is what the others are measured against.
    """
    looks: dict[str, dict] = {}
    for name, arm in ARMS.items():
        look = dict(zip(("color", "marker"), arm.look, strict=True))
        looks |= {name: look, name + PERSISTENT: look | PERSISTENT_LOOK}
    return looks | theme.looks([arm for arm in arms.unique() if arm not in looks])


def points(axes, rows, x: str, y: str, measured: str) -> None:
    """The points of each arm, with the intervals of the one that is `measured`."""
    for arm, of_arm in rows.groupby("contender", sort=False):
        label = arm
        if of_arm["own_fabric"].any():
            label += f", over {of_arm['link'].iloc[0]}"
        errors = {"xerr" if measured == x else "yerr": theme.interval(of_arm, measured)}
        look = theme.BARS | theme.POINTS | of_arm["look"].iloc[0]
        axes.errorbar(of_arm[x], of_arm[y], **errors, **look, label=label)


def link_text(rows) -> str:
    """Kind, bandwidth and ranks of the links: `paced (emulated) link, 1.05 to 1.07 GB/s, P = 8 ranks`."""
    parts = []
    for kind, of_kind in rows.groupby("link", sort=False):
        text = "paced (emulated)" if kind == PACED else HOW.get(kind, kind)
        text += " link"
        reached = of_kind["link_bytes_per_s"].dropna() / 1e9
        if len(reached):
            ends = dict.fromkeys([rate_text(reached.min()), rate_text(reached.max())])
            text += f", {' to '.join(ends)} GB/s"
        ranks = map(str, sorted(of_kind["ranks"].unique()))
        parts.append(f"{text}, P = {' or '.join(ranks)} ranks")
    return "; ".join(parts)
