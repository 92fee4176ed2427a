"""A counter that is raised before its stores are visible, or looked at carelessly: planted in the source of the kernels
that compute and send at once, compiled as it stands, and caught by the machine. In a process beside this one.
"""

import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import links
import pytest
import triton
from cases import run

from kernels import signals

STORE = "        store_tile(out_desc, acc, m0, n0, BLOCK_M, BLOCK_N, SUBTILE)\n"
TELL = "        if piece < (ranks - 1) * blocks:\n"
RAISE = "            raise_counter(counters_ptr + piece, times_ptr + piece, 1, TIMED)\n"
RELEASE, LOOK = 'by, sem="release", scope="sys")', '"ld.acquire.sys.global.b32 $0, [$1];"'
COMPUTED = "            free = _computed(counters_ptr + following, wanted, lost_ptr, following + 1, patience, TIMED)\n"
WAITS = "        if place >= known:\n"
FILES = {
    "signalled": links.signalled_arm.signalled.__file__,
    "signals": signals.__file__,
    "flagged_rows": links.signalled_arm.flagged_rows.__file__,
    "copier": links.device_links.copier.__file__,
}
# By mistake: the file it is planted in, what is replaced there, and by what; and what the machine says of it.
CASES = {
    "as it is": ("signalled", {}, "exact"),
    "the counter is raised before the store": (
        "signalled",
        {RAISE: "            pass\n", STORE: TELL + RAISE + STORE},
        "no order between",
    ),
    "the store is not waited for": ("signalled", {"cp.async.bulk.wait_group 0; ": ""}, "no order between"),
    "only its reads are waited for": ("signalled", {"wait_group 0;": "wait_group.read 0;"}, "no order between"),
    "no barrier": ("signalled", {"            tl.debug_barrier()\n": ""}, "no order between"),
    "raised without release": ("signals", {RELEASE: RELEASE.replace("release", "relaxed")}, "no order between"),
    "raised at the scope of a GPU": ("signals", {RELEASE: RELEASE.replace("sys", "gpu")}, "scopes does not reach"),
    "rows are waited for": ("flagged_rows", {}, "exact"),
    "rows are not waited for": ("flagged_rows", {WAITS: "        if place > RANKS:\n"}, "no order between"),
    "rows of the second rank are": ("flagged_rows", {WAITS: "        if place > known:\n"}, "no order between"),
    "the copier is as it is": ("copier", {}, "exact"),
    "the copier looks without acquire": ("copier", {LOOK: LOOK.replace("acquire", "relaxed")}, "no order between"),
    "the copier waits for the first alone": ("copier", {COMPUTED: "            free = 0\n"}, "no order between"),
}
WAITED_FOR = {"the store is not waited for", "only its reads are waited for", "no barrier"}
"""Harmless from Triton 3.8 on: behind each store it waits by itself until it is done, and at a barrier."""


def planted(name: str, changes: dict[str, str], folder: Path) -> ModuleType:
    text = Path(FILES[name]).read_text().partition("\nregister(")[0]
    for right, wrong in changes.items():
        assert text.count(right) == 1, f"{right!r} stands nowhere, or in two places"
        text = text.replace(right, wrong)
    path = folder / f"{name}_{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def main() -> dict[str, str]:
    found, arm = {}, links.signalled_arm
    plain = arm.signalled, arm.flagged_rows
    cases = {
        "signalled": links.scatter("signalled", "bf16", links.Enqueued, devices=2),
        "flagged_rows": links.layer("layer_signalled", "bf16", links.Enqueued, devices=2),
        "copier": links.copier("bf16", 2, 1e9, (37, 72), (9, 1032), counted=True),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (file, changes, _) in CASES.items():
            module = planted(file, changes, Path(folder))
            arm.signalled, arm.flagged_rows = plain
            if file == "signals":  # as the kernel that raises them has it
                raises, file, module = module.raise_counter, "signalled", planted("signalled", {}, Path(folder))
                module.raise_counter = raises
            setattr(links.device_links if file == "copier" else arm, file, module)
            wrong = (run(cases[file], seed, budget=1_000_000).wrong for seed in range(1 if "as it is" in name else 3))
            found[name] = next(filter(None, wrong), "exact")
    return found


@pytest.fixture(scope="module")
def found(printed_elsewhere) -> dict[str, str]:
    return printed_elsewhere('import runpy; runpy.run_path("tests/machine/test_signalled.py", run_name="__main__")')


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, (*_, said) in CASES.items()])
def test_what_is_planted_is_caught(name, said, found):
    waits_itself = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8)
    assert ("exact" if waits_itself and name in WAITED_FOR else said) in found[name]


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
