"""CONTRIBUTING's walks from a launch to a figure: files that refer to one another, in that order."""

import re
from itertools import pairwise

import pytest
from test_imports import ROOT, imported

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def walk(title: str) -> list[tuple[list[str], str]]:
    """Return the files of each step below the heading `title`, with the name that it hands on."""
    section = PAGE.partition(f"### {title}\n")[2].partition("\n#")[0].partition("\nThese only pass it on")[0]
    steps = re.split(r"^\d+\. ", section, flags=re.MULTILINE)[1:]
    return [(re.findall(r"\]\(([^)]+\.py)\)", step), "".join(re.findall(r"-> `(\w+)`", step))) for step in steps]


def module_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def refers_to(path: str, other: str) -> bool:
    """Return whether `path` imports the module `other`, or holds its name as a `package.module:name`."""
    module, text = module_of(other), (ROOT / path).read_text(encoding="utf-8")
    return f'"{module}:' in text or any(f"{name}.".startswith(f"{module}.") for name in imported(ROOT / path))


def hold_field(paths: tuple[str, str], name: str) -> bool:
    """Return whether all `paths` hold `name` as a string, a field that one file writes and another reads."""
    return all(re.search(rf'["\']{name}["\']', (ROOT / path).read_text(encoding="utf-8")) for path in paths)


@pytest.mark.parametrize(
    ("title", "most_files"), [("The TFLOP/s of a case", 12), ("The hidden fraction of an arm", 13)]
)
def test_files_of_a_walk_hand_a_number_on(title, most_files):
    steps = walk(title)
    files = [path for paths, _ in steps for path in paths]
    assert 1 < len(files) <= most_files
    assert len(set(files)) == len(files)
    assert len(steps) <= 8  # seven hand-overs
    handed = {paths[-1]: name for paths, name in steps}
    for path, after in pairwise(files):
        name = handed.get(path, "")
        assert refers_to(path, after) or refers_to(after, path) or (name and hold_field((path, after), name)), after
        if path in handed:
            assert name, f"the step of {path} hands nothing on"
            assert all(name in (ROOT / part).read_text(encoding="utf-8") for part in (path, after)), (name, after)
