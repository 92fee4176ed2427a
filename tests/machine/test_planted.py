"""Mistakes in the source of a kernel, compiled as they stand: the machine catches each. By default it is one of each
subject, picked by the hash of the commit; with `-m slow` all of them, and each subject as it is.

All of it runs in one process beside this one, which may be interpreting.
"""

import importlib.util
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import links
import pytest
import waiting
from cases import matmul, run

from kernels import decode, flagged, flagged_spills, ring, signals, stream_k, warpgroup, wgmma
from kernels.experiments import decode_ring
from kernels.tiles import triton_release
from kernels.warpgroup import Config

W_BLOCK = "[n0 + part * w_rows, k0]"
FEWER, PEERS = "for peer in range(peers - 1):\n", "for peer in range(peers):\n"
FLAGS = "            for who in gl.static_range(CONSUMERS):\n                self.take_down"
TOLD = 'gl.atomic_add(self.flag(place), 1, sem="release", scope="gpu")'
RELEASE = "release(smem, ring.before(), "
RAISED, LOOK = 'by, sem="release", scope="sys")', '"ld.acquire.sys.global.b32 $0, [$1];"'
W_FREE = "mbarrier.wait(smem.w_free.index(ring.stage), ring.phase ^ 1)\n            #"
COUNTED = "wait_value(self._route.counters[index:], self._route.wanted)"
WAIT = "ready = wait(flags, chunk, wanted, lost_ptr, first_flag + chunk, patience, RANKS)"
TELLS, BEFORE = "        work.tell(tile)\n", "        m0, n0 = work.corner(tile, member)\n"
FREED = "mbarrier.wait(smem.freed.index(place), PART // buffers % 2 ^ 1)"
UNORDERED, EARLY = "no order between", "before they were due"
UNFENCED = "no fence.proxy.async after it"
BEGINS = "if (is_first | (step % steps == 0)) & (chunk > 0):"
DUE = "            device.wait_value(route.let_go[number - 1, 1:], route.runs)\n"
COPY = "                self.copy(*ends)\n"
TOLD_BY_STREAM = f"{DUE}            device.write_value(route.flags[index:], route.runs)\n"
COPIED_LATE = f"{TOLD_BY_STREAM}            for ends in route.copies[index]:\n{COPY}"
# The case that is run. By mistake: what is replaced in its file, and by what; and what the machine says of it.
MISTAKES = {
    "warpgroup": {
        "as it is": ({}, "exact"),
        "as in commit 13c912d": (  # both names begin with one value: Triton does not see that the loop changes `before`
            {
                "        acc = no_sums(": "        before = ring.stage\n        acc = no_sums(",
                f"{RELEASE}step > first)": "release(smem, before, step > first)\n            before = ring.stage",
                f"{RELEASE}True)": "release(smem, before, True)",
            },
            r"does not carry before: Triton keeps the value .*; Stuck",
        ),
        "w arrives at another stage": (
            {f"{W_BLOCK}, full": f"{W_BLOCK}, smem.full.index(ring.stage ^ 1)"},
            "reads",
        ),
        "a release with nothing read": ({f"{RELEASE}step > first)": f"{RELEASE}True)"}, "overwrites"),
        "a consumer multiplies x of the stage before": (
            {"x.index(ring.stage * (": "x.index(ring.before() * ("},
            "reads",
        ),
        "both consumers multiply the same rows": ({"slice(WHO * rows": "slice(0 * rows"}, "out are wrong"),
    },
    "ring": {
        "parity never flips": ({"wraps, self.phase ^ 1, self.phase": "wraps, self.phase, self.phase"}, "arrivals at"),
        "the ring wraps late": ({"stage == self.STAGES - 1": "stage == self.STAGES"}, "no mbarrier was initialised"),
    },
    "store": {"both consumers share a buffer": ({"WHO * buffers + PART": "PART"}, "overwrites")},
    "shared": {
        "as it is": ({}, "exact"),
        "no barrier before the flag": ({"gl.barrier()  # the flag": "pass  # the flag"}, UNORDERED),
        "looks without acquire": ({'sem="acquire"': 'sem="relaxed"'}, UNORDERED),
        "a flag stays up": ({"        gl.store(flag, 0)\n": ""}, "counters are not zero again"),
        "no proxy fence": ({"        fence_proxy()": "        pass"}, UNFENCED),
        "a flag never comes": ({TOLD: "pass", "60_000_000_000": "9_000"}, "the kernel traps"),
        "one peer is not waited for": ({f"{PEERS}{FLAGS}": f"{FEWER}{FLAGS}"}, UNORDERED),
        "the other consumer's sums": ({"if who == WHO:": "if who != WHO:"}, "out are wrong"),
    },
    "odd": {
        "as it is": ({}, "exact"),
        "the rest of w is not expected": ({"(x_rows + work.block_n))": "(x_rows + work.block_n - rest))"}, "Stuck"),
        "a stage is released while it is read": ({"acc = wait(1, acc)": "acc = wait(2, acc)"}, "overwrites"),
        "the rest shares a buffer": ({"scales, WHO, 3)": "scales, WHO, 2)"}, "overwrites"),
    },
    "wgmma": {
        "x stays at the first 16 along K": ({"add.u32 x, x, 2; ": ""}, "out are wrong"),
    },
    "pair": {
        "as it is": ({}, "exact"),
        "the other CTA is not waited for": ({W_FREE: "pass\n            #"}, "overwrites"),
        "two of four consumers are": ({"w_free.index(stage), count=CONSUMERS": "w_free.index(stage), 1"}, "overwrites"),
        "the first CTA is not told": ({"mbarrier.arrive(smem.w_free.index(stage), pred=pred)": "pass"}, "Stuck"),
        "the first CTA ends before the second": ({"gl.barrier(cluster=True)": "pass"}, "the CTA ends while CTA 1 may"),
        "both consumers of a CTA take the same rows": ({"+ WHO * rows // x_rows": ""}, "out are wrong"),
    },
    "shared pair": {
        "as it is": ({}, "exact"),
        "no barrier before the flag": ({"gl.barrier()  # the flag": "pass  # the flag"}, UNORDERED),
        "looks without acquire": ({"ld.acquire.gpu": "ld.relaxed.gpu"}, UNORDERED),
        "a flag stays up": ({"        gl.store(flag, 0)\n": ""}, "counters are not zero again"),
        "a flag never comes": ({TOLD: "pass", "60_000_000_000": "9_000"}, "the kernel traps"),
        "both CTAs look at one flag": (
            {"place * 2 + gl.arange(0, 2,": "place * 2 + 0 * gl.arange(0, 2,"},
            "reads global memory",
        ),
        "each expects the sums of both": (
            {"desc.block_type.nbytes // gl.num_ctas()": "desc.block_type.nbytes"},
            "Stuck",
        ),
    },
    "decode_ring": {
        "as it is": ({}, "exact"),
        "w of the early stages comes twice": ({"nbytes, is_late)": "nbytes)"}, "arrivals at an mbarrier"),
        "x of the early stages is left out": (
            {"smem.x.index(ring.stage))\n": "smem.x.index(ring.stage), is_late)\n"},
            "Stuck",
        ),
        "a release with nothing read": ({"ring.before()), pred=step > first": "ring.before())"}, "Stuck"),
        "counts without acquire": ({'sem="acq_rel"': 'sem="release"'}, UNORDERED),
        "a counter stays": ({"gl.store(shares.counters_ptr + shared, 0)": "pass"}, "counters are not zero again"),
        "one share is not added": ({"range(head, tail + 1)": "range(head, tail)"}, "out are wrong"),
    },
    "flagged": {
        "as it is": ({}, "exact"),
        "chunks are not waited for": ({BEGINS: "if step < 0:"}, UNORDERED),
        "one look for two chunks": ({BEGINS: "if (step % steps == 0) & (chunk % 2 == 1):"}, UNORDERED),
        "chunks in the order of ranks": ({"(self.order >> (chunk * 4) & 15).to(gl.int32)": "chunk"}, UNORDERED),
    },
    "cut": {
        "as it is": ({}, "exact"),
        "no look where a piece begins inside a chunk": ({BEGINS: "if (step % steps == 0) & (chunk > 0):"}, UNORDERED),
        "all leave their sums in one slot": (
            {"acc, self.dealt.field(piece, 4)": "acc, 0 * self.dealt.field(piece, 4)"},
            "overwrites",
        ),
        "one peer is not waited for": (
            {"1, self.peers(piece, steps), smem": "1, self.peers(piece, steps) - 1, smem"},
            "Stuck",
        ),
        "the last piece alone is stored": (
            {"return (first > 0) & (last == steps)": "return last < 0"},
            "out are wrong",
        ),
    },
    "flags": {
        "looks without acquire": ({'flag_ptr, 0, sem="acquire"': 'flag_ptr, 0, sem="relaxed"'}, UNORDERED),
        "looks at the scope of a GPU": (
            {'flag_ptr, 0, sem="acquire", scope="sys"': 'flag_ptr, 0, sem="acquire", scope="gpu"'},
            "scopes does not reach",
        ),
        "no proxy fence": ({"fence.proxy.async.global; ": ""}, UNFENCED),
        "does not look again": ({"while (flag < wanted) & (lost == 0):": "if flag < wanted:"}, UNORDERED),
    },
    "spills": {
        "chunks are not waited for": ({WAIT: "ready = tl.full((), RANKS, dtype=tl.int32)"}, UNORDERED),
        "the first chunk that comes is": ({WAIT: f"{WAIT} * 0 + RANKS"}, UNORDERED),
    },
    "pieces": {
        "rows are not waited for": ({"is_first & (piece > 0)": "step < 0"}, UNORDERED),
        "rows of the second rank are not": ({"(piece > 0)": "(piece > 1)"}, UNORDERED),
    },
    "storer": {
        "as it is": ({}, "exact"),
        "raised before a tile lies in memory": ({"cp.async.bulk.wait_group 0; ": ""}, UNORDERED),
        "raised before it is stored": ({TELLS: "", BEFORE: f"{BEFORE}        work.tell(tile)\n"}, UNORDERED),
        "a buffer is freed early": ({"            tma.store_wait(0)  # both have been read\n": ""}, "overwrites"),
        "a buffer is stored early": ({"mbarrier.wait(smem.staged.index(place), part // buffers % 2)": "pass"}, "reads"),
        "a consumer does not wait for its buffer": ({FREED: "pass"}, "overwrites"),
    },
    "signals": {
        "raised without release": ({RAISED: RAISED.replace("release", "relaxed")}, UNORDERED),
        "raised at the scope of a GPU": ({RAISED: RAISED.replace("sys", "gpu")}, "scopes does not reach"),
    },
    "copier": {
        "looks without acquire": ({LOOK: LOOK.replace("acquire", "relaxed")}, UNORDERED),
        "takes its pace from the start": (
            {"tl.maximum(tl.load(free_ptr), tl.load(ready_ptr))": "tl.load(free_ptr)"},
            EARLY,
        ),
        "the wire is free at once": ({"free, mask=program == 0": "begin, mask=program == 0"}, EARLY),
    },
    "pacer": {
        "what is computed is not waited for": ({"_look(counters_ptr + index) < raised": "raised < 0"}, EARLY),
        "a slice is due at once": ({"        while globaltimer() < due:": "        while due < 0:"}, EARLY),
        "one transfer does not wait for the other": ({"tl.maximum(due, ready)": "ready"}, EARLY),
    },
    "engine": {  # the host's code
        "a flag is up before it is due": ({DUE: ""}, EARLY),
        "a flag is up before its rows are here": ({COPY: "", TOLD_BY_STREAM: COPIED_LATE}, UNORDERED),
    },
    "consumer": {
        "chunks are not waited for": ({BEGINS: "if step < 0:"}, UNORDERED),
    },
    "device": {  # the host's code
        "waits for the first alone": ({COUNTED: f"if index == self._ready: {COUNTED}"}, UNORDERED),
    },
}
WAITED_FOR = {
    "no barrier before the flag": (3, 9),
    "the first CTA ends before the second": (3, 9),
}
"""Harmless from these releases of Triton on: behind each store it waits by itself until it is done, at a barrier, and
at the end for the cluster."""

ARM, OURS, device = links.on_device, SimpleNamespace(warpgroup=warpgroup, decode_ring=decode_ring), links.device_links

OF_STREAM_K = [(warpgroup, "Dealt", "Slots", "Work")]
USERS = {
    "signals": [(ARM.pieces, "raise_counter")],
    "flags": [(flagged, "wait_for")],
    "ring": [(warpgroup, "begin")],
    "store": [(warpgroup, "store")],
    "storer": [(warpgroup, "store", "store_and_tell"), (ARM.pieces, "run")],
    "wgmma": [(warpgroup, "multiply")],
    "shared": OF_STREAM_K,
    "shared pair": OF_STREAM_K,
}
"""{subject: the module of the kernel that takes things from it, and their names; then who takes of that}."""

SMALL = Config(128, 64, 32, num_warps=8, num_stages=2, subtile=4)
SHARED = replace(SMALL, block_n=32, block_k=64, subtile=2, shared_waves=1)
ODD = Config(128, 208, 64, num_warps=8, num_stages=2, subtile=4)
PAIR, SHARED_PAIR = replace(SMALL, cluster=2, gang_m=2), replace(SHARED, cluster=2, gang_m=2)
FEW_ROWS = decode.Config(16, 64, 64, num_warps=4, num_stages=4, split=2)
RELEASES = {"odd": (3, 9), "wgmma": (3, 9), "pair": (3, 8), "shared pair": (3, 8)}
"""Of Triton, which subjects need."""


def subjects() -> dict[str, tuple]:
    """By subject: the module that mistakes are planted in, who holds what the case takes of it, its name there, and the
    case."""
    kernel, ring_kernel = (
        SimpleNamespace(
            name=name, by_block=False, prepare=lambda *given, name=name: getattr(OURS, name).matmul.prepare(*given)
        )
        for name in ("warpgroup", "decode_ring")
    )
    layer = links.layer("layer_signalled", "bf16", devices=2)
    counted = links.copier("bf16", 2, 3e7, (9, 1032), (37, 72))
    by_engine = links.copier("bf16", 0, 5e7, (9, 1032), (37, 72))
    small = matmul(kernel, SMALL, "bf16", (120, 120, 136), programs=1)
    odd = matmul(kernel, ODD, "bf16", (120, 400, 200), programs=1)
    pair = matmul(kernel, PAIR, "bf16", (200, 120, 136), programs=2)
    shared = matmul(kernel, SHARED, "bf16", (120, 24, 272), programs=3)
    shared_pair = matmul(kernel, SHARED_PAIR, "bf16", (200, 24, 272), programs=6)
    late = waiting.for_chunks("whole", "bf16")
    cut = waiting.for_chunks("row_blocks", "bf16", entry=("flagged", 1), ranks=5, steps=2)
    few = matmul(ring_kernel, FEW_ROWS, "bf16", (13, 112, 400), programs=3)
    return {
        "warpgroup": (warpgroup, OURS, "warpgroup", small),
        "ring": (ring, OURS, "warpgroup", small),
        "store": (wgmma, OURS, "warpgroup", small),
        "odd": (warpgroup, OURS, "warpgroup", odd),
        "wgmma": (wgmma, OURS, "warpgroup", odd),
        "pair": (warpgroup, OURS, "warpgroup", pair),
        "shared pair": (stream_k, OURS, "warpgroup", shared_pair),
        "shared": (stream_k, OURS, "warpgroup", shared),
        "decode_ring": (decode_ring, OURS, "decode_ring", few),
        "flagged": (flagged, waiting, "flagged", late),
        "cut": (flagged, waiting, "flagged", cut),
        "flags": (signals, waiting, "flagged", late),
        "spills": (flagged_spills, waiting, "flagged_spills", waiting.for_chunks("spill_once", "bf16")),
        "pieces": (ARM.pieces, ARM, "pieces", layer),
        "storer": (wgmma, ARM, "pieces", layer),
        "signals": (signals, ARM, "pieces", layer),
        "copier": (device.copier, device, "copier", counted),
        "pacer": (device.copier, links.engines, "copier", by_engine),
        "engine": (links.engines, links, "Engine", by_engine),
        "consumer": (flagged, ARM, "flagged", links.arm("row_block", "bf16", 0)),
        "device": (device, links, "Wire", counted),
    }


def planted_in(subject: str, seed: int | None) -> dict[str, tuple]:
    """The mistakes of a subject: one by the seed, or all, and it as it is, where that is None. None where Triton lacks
    what the subject needs."""
    if triton_release() < RELEASES.get(subject, (0, 0)):
        return {}
    mistakes = MISTAKES[subject]
    if seed is None:
        return mistakes
    names = [name for name in mistakes if name != "as it is"]
    name = names[seed % len(names)]
    return {name: mistakes[name]}


def planted(plain: ModuleType, changes: dict[str, str], folder: Path) -> ModuleType:
    """A module made of a file with something replaced in one place each."""
    text = Path(plain.__file__).read_text()
    for right, wrong in changes.items():
        text = text.replace(right, wrong)
    path = folder / f"{Path(plain.__file__).stem}_{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def taken(subject: str, module: ModuleType, folder: Path) -> object:
    """Return what a case takes of a module with a mistake."""
    if subject in USERS:
        for plain, *names in USERS[subject]:
            user = planted(plain, {}, folder)
            for name in names:
                setattr(user, name, getattr(module, name))
            module = user
        return module
    if subject == "device":  # the host's code: its link, on the machine
        module.wait_value = links.wait_value
        return type("Wire", (links.OnMachine, module.PacedCopier), {})
    if subject == "engine":
        vars(module).update(links.ENGINES)
        return type("Engine", (links.OnMachine, module.PacedEngine), {})
    return module


def outcomes(seed: int | None) -> dict[str, str]:
    """What the machine says of each mistake that is planted: called where Triton compiles."""
    told = {}
    with tempfile.TemporaryDirectory() as folder:
        for subject, (plain, holder, name, case) in subjects().items():
            text = Path(plain.__file__).read_text()
            places = [place for changes, _ in MISTAKES[subject].values() for place in changes]
            unclear = [place for place in places if text.count(place) != 1]
            assert not unclear, f"{unclear} stand nowhere in {plain.__name__}, or in two places"
            for mistake, (changes, _) in planted_in(subject, seed).items():
                module = planted(plain, changes, Path(folder))
                budget = 3_000_000 if mistake in WAITED_FOR else 500_000  # what may be harmless comes to its end
                with patch.object(holder, name, taken(subject, module, Path(folder))):
                    wrong = (run(case, seed, budget=budget).wrong for seed in range(3 if changes else 1))
                    told[f"{subject}, {mistake}"] = next(filter(None, wrong), "exact")
    return told


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_planted_is_caught(elsewhere, commit_seed, every):
    """This is one test, since each process of pytest would run them all."""
    seed = None if every else commit_seed
    told = elsewhere(outcomes, seed)
    is_harmless = {name for name, release in WAITED_FOR.items() if triton_release() >= release}
    wrong = []
    for subject in MISTAKES:
        for name, (_, text) in planted_in(subject, seed).items():
            said = told[f"{subject}, {name}"]
            if not re.search("exact" if name in is_harmless else text, said):
                wrong.append((subject, name, said))
    assert wrong == []
