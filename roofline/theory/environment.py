"""Environment variables by which one contender of a run may compute otherwise than the others: `environment.toml`."""

import re

from roofline.theory.data import beside

VARIABLES = beside(__file__, "environment.toml")
"""{"threads": {variable: who computes on so many threads}, "cpu" and "gpu": {variable: what it does}}."""


def told(machine: dict) -> list[str]:
    """A line for each variable that is set on a `machine`, as its run's metadata have it: first those that leave a
    library fewer threads than there are cores."""
    variables = machine.get("environment", {})
    if machine["source"] == "gpu":
        return _lines(variables, VARIABLES["gpu"])
    cores = machine.get("cores", machine.get("threads", 1))
    lines = []
    for name, who in VARIABLES["threads"].items():
        counts = re.findall(r"\d+", variables.get(name, ""))
        if counts and min(map(int, counts)) < cores:
            lines.append(f"{name}={variables[name]}: fewer threads than the {cores} cores for {who}; unset it")
    return lines + _lines(variables, VARIABLES["cpu"])


def _lines(variables: dict[str, str], meanings: dict[str, str]) -> list[str]:
    return [f"{name}={variables[name]} {words}" for name, words in meanings.items() if name in variables]
