"""Case ids, read back: what `Matmul.id` and its kin write, with or without a contender behind it."""

import difflib
import re

from roofline.theory.work import AllGatherMatmul, Matmul, WeightPrefetch

OPS = {case.op: case for case in (Matmul, AllGatherMatmul, WeightPrefetch)}
EXAMPLES = {
    "matmul": "matmul-xxl-up-tp8-m4096-bf16-persistent",
    "all_gather_matmul": "all_gather_matmul-xxl-up-p8-tp8-m8192-bf16-balance2750-row_block",
    "weight_prefetch": "weight_prefetch-xxl-up-p8-tp1-m2750-bf16-balance2750-overlapped",
}
# A model's name has dashes of its own, so all that follows it is read from the right.
PLAIN = re.compile(r"(?P<model>.+)-(?P<layer>\w+)-tp(?P<tp>\d+)-m(?P<m>\d+)-(?P<dtype>\w+?)(?:-(?P<contender>\w+))?")
GATHERING = re.compile(
    r"(?P<model>.+)-(?P<layer>\w+)-p(?P<ranks>\d+)-tp(?P<tp>\d+)-m(?P<m>\d+)-(?P<dtype>\w+?)-(?P<wire>[\w.+]+)"
    r"(?:-(?P<contender>\w+))?"
)


def parse(text: str) -> tuple[Matmul, str | None]:
    """The case that `text` names, and its contender or arm; None where it names a shape.

    >>> parse("matmul-llama-3-70b-up-tp8-m16-bf16-tiled")[1], parse("matmul-xxl/16-down-tp1-m1-fp32")[0].k
    ('tiled', 3328)
    >>> parse("weight_prefetch-xxl-up-p8-tp1-m2750-bf16-ridge1.4-serial")[0].wire
    'ridge1.4'

    Raises ValueError for anything else, with an example, and for sizes that do not fit one another.
    """
    op, _, rest = text.partition("-")
    if op not in OPS:
        near = difflib.get_close_matches(op, OPS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f"case {text!r} begins with no operation: {hint}known are {', '.join(OPS)}")
    found = (PLAIN if op == "matmul" else GATHERING).fullmatch(rest)
    if not found:
        raise ValueError(f"case {text!r} is not written as cases are: {EXAMPLES[op]}")
    words = {key: value for key, value in found.groupdict().items() if key not in ("tp", "m", "ranks")}
    counts = {key: int(found[key]) for key in ("tp", "m", "ranks") if key in found.groupdict()}
    contender = words.pop("contender")
    try:
        return OPS[op](**words, **counts), contender
    except ValueError as error:
        raise ValueError(f"case {text!r}: {error}") from None
