"""The fields of an operation that has a backward pass, and their table: what a forward pass keeps for it."""

from roofline.operations.shown import Field, Table

SAVED = Field(
    "saved_bytes",
    "of tensors that a forward pass keeps for the backward one, its inputs among them, each memory once",
    unit="bytes",
    header="saved",
    format="bytes",
)
FORMULA = Field(
    "saved_formula_bytes", "the same by the operation's formula", unit="bytes", header="by formula", format="bytes"
)
PEAK = Field(
    "peak_bytes",
    "the most that one call had allocated at a time, beside what was there before",
    unit="bytes",
    header="peak",
    format="bytes",
)


def kept(title: str, *more: str) -> Table:
    """A table of these, and before them of `more` fields."""
    return Table(
        title,
        of=PEAK.name,
        columns=("shape", "contender", *more, SAVED.name, FORMULA.name, PEAK.name),
        about="What a forward pass keeps for the backward one, beside the formula, and the most that a call had "
        "allocated.",
        long=True,
    )
