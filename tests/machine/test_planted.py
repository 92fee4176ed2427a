"""Mistakes in the source of a kernel, none of them one instruction: compiled as they stand, the machine catches each.

Mistakes of one instruction are those of test_mutants.py. All of it runs in one process beside this one, which may be
interpreting.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import links
import triton
import waiting
from cases import matmul, run

from kernels import flagged, signals, warpgroup
from kernels.tiles import Config

RELEASE = "preceding(stage, full.shape[0])"
STORE = "        store_tile(out_desc, acc, m0, n0, BLOCK_M, BLOCK_N, SUBTILE)\n"
TELL = "            if piece < counted:\n"
RAISE = "                raise_counter(counters_ptr + piece, times_ptr + piece, 1)\n"
RAISED, LOOK = 'by, sem="release", scope="sys")', '"ld.acquire.sys.global.b32 $0, [$1];"'
COUNTED = "wait_value(self._route.counters[index:], self._route.wanted)"
PLACE = "            if piece >= ready:\n"
WAIT = "ready = wait(flags, chunk, wanted, lost_ptr, first_flag + chunk, patience, RANKS)"
UNORDERED = "no order between"
# By mistake: the file it is planted in, what is replaced there, and by what; and what the machine says of it.
MISTAKES = {
    "warpgroup, as it is": ("warpgroup", {}, "exact"),
    "warpgroup, as in commit 13c912d": (  # see `preceding`
        "warpgroup",
        {
            "        acc = gl.zeros(": "        before = stage\n        acc = gl.zeros(",
            f"{RELEASE}), pred=k0 > 0)": "before), pred=k0 > 0)\n            before = stage",
            f"{RELEASE}))\n": "before))\n",
        },
        "Stuck",
    ),
    "parity never flips": ("warpgroup", {"wraps, phase ^ 1, phase": "wraps, phase, phase"}, "arrivals at an mbarrier"),
    "the ring wraps late": ("warpgroup", {"stage == STAGES - 1": "stage == STAGES"}, "no mbarrier was initialised"),
    "w arrives at another stage": (
        "warpgroup",
        {"[n0, k0], full.index(stage)": "[n0, k0], full.index(stage ^ 1)"},
        "reads",
    ),
    "a release with nothing read": ("warpgroup", {", pred=k0 > 0": ""}, "overwrites"),
    "both consumers multiply the same rows": ("warpgroup", {"slice(WHO * rows": "slice(0 * rows"}, "out are wrong"),
    "both consumers share a buffer": ("warpgroup", {"WHO * buffers + PART": "PART"}, "overwrites"),
    "chunks are not waited for": ("flagged", {WAIT: "ready = tl.full((), RANKS, dtype=tl.int32)"}, UNORDERED),
    "the first chunk that comes is": ("flagged", {WAIT: f"{WAIT} * 0 + RANKS"}, UNORDERED),
    "the counter is raised before the store": (
        "pieces",
        {RAISE: "                pass\n", STORE: f"        if counters_ptr is not None:\n{TELL}{RAISE}{STORE}"},
        UNORDERED,
    ),
    "the store is not waited for": ("pieces", {"cp.async.bulk.wait_group 0; ": ""}, UNORDERED),
    "only its reads are waited for": ("pieces", {"wait_group 0;": "wait_group.read 0;"}, UNORDERED),
    "no barrier": ("pieces", {"                tl.debug_barrier()\n": ""}, UNORDERED),
    "raised without release": ("signals", {RAISED: RAISED.replace("release", "relaxed")}, UNORDERED),
    "raised at the scope of a GPU": ("signals", {RAISED: RAISED.replace("sys", "gpu")}, "scopes does not reach"),
    "rows are not waited for": ("pieces", {PLACE: "            if piece > pieces:\n"}, UNORDERED),
    "rows of the second rank are": ("pieces", {PLACE: "            if piece > ready:\n"}, UNORDERED),
    "the copier looks without acquire": ("copier", {LOOK: LOOK.replace("acquire", "relaxed")}, UNORDERED),
    "the copier takes its pace from the start": (
        "copier",
        {"tl.maximum(tl.load(free_ptr), tl.load(ready_ptr))": "tl.load(free_ptr)"},
        "before they were due",
    ),
    "the wire is free at once": (
        "copier",
        {"free, mask=program == 0": "begin, mask=program == 0"},
        "before they were due",
    ),
    "the copier waits for the first alone": ("device", {COUNTED: f"if index == self._ready: {COUNTED}"}, UNORDERED),
}
WAITED_FOR = {"the store is not waited for", "only its reads are waited for", "no barrier"}
"""Harmless from Triton 3.8 on: behind each store it waits by itself until it is done, and at a barrier."""

ARM, OURS = links.on_device, SimpleNamespace(warpgroup=warpgroup)
# By file: who holds the module that the case takes, and what is replaced.
HOLDERS = {
    "warpgroup": (OURS, warpgroup),
    "flagged": (waiting, flagged),
    "pieces": (ARM, ARM.pieces),
    "copier": (links.device_links, links.device_links.copier),
    "device": (links, links.device_links),
}


def cases() -> dict:
    """By file, what runs it."""
    kernel = SimpleNamespace(name="warpgroup", prepare=lambda *given: OURS.warpgroup.prepare(*given))
    config = Config(128, 64, 32, num_warps=8, num_stages=2, subtile=4)
    return {
        "warpgroup": matmul(kernel, config, "bf16", (120, 120, 136), programs=1),
        "flagged": waiting.for_chunks("tile_outer", "bf16"),
        "pieces": links.layer("layer_signalled", "bf16", devices=2),
        **dict.fromkeys(("copier", "device"), links.copier("bf16", 2, 3e7, (9, 1032), (37, 72), counted=True)),
    }


def planted(plain: ModuleType, changes: dict[str, str], folder: Path) -> ModuleType:
    """A module made of a file with something replaced in one place each."""
    text = Path(plain.__file__).read_text()
    for right, wrong in changes.items():
        assert text.count(right) == 1, f"{right!r} stands nowhere, or in two places"
        text = text.replace(right, wrong)
    path = folder / f"{Path(plain.__file__).stem}_{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> dict[str, str]:
    outcomes, runs = {}, cases()
    with tempfile.TemporaryDirectory() as folder:
        for name, (file, changes, _) in MISTAKES.items():
            if file == "signals":  # as the kernel that raises them has it
                file, module = "pieces", planted(ARM.pieces, {}, Path(folder))
                module.raise_counter = planted(signals, changes, Path(folder)).raise_counter
            else:
                module = planted(HOLDERS[file][1], changes, Path(folder))
            (holder, plain), attribute = HOLDERS[file], file
            if file == "device":  # the host's code, of which the case has a class
                module.wait_value = links.wait_value
                attribute, plain, module = "Wire", links.Wire, type("Wire", (links.OnMachine, module.PacedCopier), {})
            setattr(holder, attribute, module)
            budget = 3_000_000 if name in WAITED_FOR else 500_000  # what may be harmless comes to its end
            wrong = (run(runs[file], seed, budget=budget).wrong for seed in range(3 if changes else 1))
            outcomes[name] = next(filter(None, wrong), "exact")
            setattr(holder, attribute, plain)
    return outcomes


def test_what_is_planted_is_caught(printed_elsewhere):
    """This is one test, since each process of pytest would run them all."""
    outcomes = printed_elsewhere("import json; from test_planted import main; print(json.dumps(main()))")
    expected = {name: text for name, (*_, text) in MISTAKES.items()}
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 8):
        expected |= dict.fromkeys(WAITED_FOR, "exact")
    assert [(name, outcomes[name], text) for name, text in expected.items() if text not in outcomes[name]] == []
