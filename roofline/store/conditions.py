"""The conditions of a run that decide whether two can be compared, or one gone on with."""

import re

NUMBERS = ("chip", "driver", "method")
"""Where these differ, so do the numbers, whatever the code under test."""

ALL = (*NUMBERS, "torch", "triton", "ptxas", "commit", "length", "contenders")
"""The last is that of some runs alone: from a user's file."""

NOT_RECORDED = "not recorded"
"""The ptxas of a run that does not name it, as an older one or one of a CPU. It is taken to be like any other."""


def conditions(metadata: dict) -> dict[str, str]:
    """The conditions in a run's first line, as text; `none` where it has no such thing (a CPU has no driver)."""
    machine = metadata["machine"]
    options = metadata.get("options", {})
    versions = machine.get("versions", {})
    chip = machine["chip"]
    if "threads" in machine:
        chip += f", {threads_text(machine['threads'])}"
    if ranks := metadata.get("ranks"):
        nodes = f"{ranks['nodes']} node{'s' * (ranks['nodes'] != 1)}"
        chip += f", {ranks['world']} ranks on {nodes} over {ranks['backend']}"
    values = {
        "chip": chip,
        "driver": machine.get("driver"),
        "method": metadata["method_version"],
        "torch": versions.get("torch"),
        "triton": versions.get("triton"),
        "commit": metadata.get("commit"),
        "length": "quick" if options.get("quick") else "whole",
    }
    if ptxas := machine.get("ptxas"):
        values["ptxas"] = ptxas
    if users := options.get("users"):
        values["contenders"] = ", ".join(short(*user) for user in users)
    return {name: "none" if value is None else str(value) for name, value in values.items()}


def short(place: str, version: str) -> str:
    """A contender's source as tables and conditions name it, without its folder."""
    return f"{place.rpartition('/')[2]} {version}".strip()


def threads_text(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def slug(chip: str) -> str:
    """A chip's name for a folder: `NVIDIA H200` is `nvidia-h200`."""
    return re.sub(r"[\W_]+", "-", chip.lower()).strip("-")


def differences(base: list[dict], new: list[dict]) -> dict[str, tuple[str, str]]:
    """{condition: (of `base`, of `new`)} of those that differ, as far as the runs on both sides know them, by their
    metadata. What a run lacks is `none`, but for its ptxas."""
    differences = {}
    for name in ALL:
        lacking = NOT_RECORDED if name == "ptxas" else "none"
        of_base = dict.fromkeys(conditions(metadata).get(name, lacking) for metadata in base)
        of_new = dict.fromkeys(conditions(metadata).get(name, lacking) for metadata in new)
        if len({*of_base, *of_new} - {NOT_RECORDED}) > 1:
            differences[name] = " and ".join(of_base), " and ".join(of_new)
    return differences


def changes_text(metadata: dict, now: dict) -> str:
    """The differences between `now` and `metadata`, in words; empty where there are none."""
    changed = differences([metadata], [now]).items()
    return "; ".join(f"{name} was {then}, is {this}" for name, (then, this) in changed)
