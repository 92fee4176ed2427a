"""What a run was measured under, as far as it decides whether two runs can be compared, or one gone on with."""

from roofline.contenders import short

NUMBERS = ("chip", "driver", "method")
"""Where these differ, so do the numbers, whatever the code under test."""

ALL = (*NUMBERS, "torch", "triton", "commit", "length", "contenders", "against")
"""The last two are those of some runs alone: from a user's file, and of another checkout."""


def conditions(metadata: dict) -> dict[str, str]:
    """Return the conditions in a run's first line, as text; `none` where it has no such thing (a CPU has no driver)."""
    machine, options = metadata["machine"], metadata.get("options", {})
    versions = machine.get("versions", {})
    width = f", {threads_text(machine['threads'])}" if "threads" in machine else ""
    if ranks := metadata.get("ranks"):
        nodes = f"{ranks['nodes']} node{'s' * (ranks['nodes'] != 1)}"
        width += f", {ranks['world']} ranks on {nodes} over {ranks['backend']}"
    values = {
        "chip": machine["chip"] + width,
        "driver": machine.get("driver"),
        "method": metadata["method_version"],
        "torch": versions.get("torch"),
        "triton": versions.get("triton"),
        "commit": metadata.get("commit"),
        "length": "quick" if options.get("quick") else "whole",
    }
    if users := options.get("users"):
        values["contenders"] = ", ".join(short(*user) for user in users)
    if "against" in metadata:
        values["against"] = metadata["against"]["commit"]
    return {name: "none" if value is None else str(value) for name, value in values.items()}


def threads_text(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"


def slug(chip: str) -> str:
    """Return a chip's name for a folder: `NVIDIA H200` is `nvidia-h200`."""
    return "-".join("".join(c if c.isalnum() else " " for c in chip.lower()).split())


def differences(metadata: dict, other: dict) -> dict[str, tuple[str, str]]:
    """Return {condition: (of `metadata`, of `other`)} of those that differ."""
    a, b = conditions(metadata), conditions(other)
    both = {name: (a.get(name, "none"), b.get(name, "none")) for name in ALL}
    return {name: pair for name, pair in both.items() if len({*pair}) > 1}
