"""Environment variables by which one contender of a run may compute otherwise than the others: `environment.toml`."""

import re

from roofline.theory.data import tables_of

VARIABLES = tables_of(__file__, "environment.toml")
"""{"threads": {variable: who computes on so many threads}, "cpu" and "gpu": {variable: what it does}}."""


def told(machine: dict) -> list[str]:
    """A line for each variable that is set on a `machine`, as its run's metadata have it: first those that leave a
    library fewer threads than there are cores."""
    variables = machine.get("environment", {})
    cores = machine.get("cores", machine.get("threads", 1))
    device = machine["source"]
    lines = []
    for name, who in VARIABLES["threads"].items() if device == "cpu" else ():
        counts = re.findall(r"\d+", variables.get(name, ""))
        if counts and min(map(int, counts)) < cores:
            lines.append(f"{name}={variables[name]}: fewer threads than the {cores} cores for {who}; unset it")
    for name, effect in VARIABLES[device].items():
        if name in variables:
            lines.append(f"{name}={variables[name]} {effect}")
    return lines
