"""Verdicts on small kernels, each with a mistake of one kind; what bad calls are told."""

import contextlib
import gc
import io
import os
import re
import resource
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import triton

from kernels.machine import check, processes
from kernels.machine.command import main
from kernels.machine.tests.subjects import (
    DOUBLED,
    LINE,
    STORE,
    Like,
    N,
    asserts,
    forget,
    in_place,
    judge,
    lowest,
    misspelt,
    odd_instruction,
    of_add,
    of_both,
    of_box,
    of_configurations,
    of_copy,
    of_empty,
    of_empty_box,
    of_hand_over,
    of_inner_addresses,
    of_labels,
    of_like,
    of_mailbox,
    of_meeting,
    of_place,
    of_pruned,
    of_ring,
    of_shift,
    of_square,
    of_sum,
    of_table,
    of_turns,
    of_view,
    shift,
    shift_row,
    store_again,
    store_back,
    tickets,
)
from kernels.machine.trial import Outcome, Trial

SUBJECTS = {
    "exact, of whole blocks": (
        lambda: of_add(64), "exact: as expected under 8 orders of events\n  config  1 of 2: B: 32, num_warps: 1, .*$",
    ),
    "exact, the second": (lambda: (*of_add(64), dict(configs=2)), "exact: as expected.*  config  2 of 2: B: 1, "),
    "wrong, the second": (lambda: of_configurations("all"), r"wrong: out\[64\] is 0, .*  config  2 of 3: B: 64, "),
    "exact, all": (lambda: (*of_add(64), dict(configs="all")), "exact: as expected.*  config  2 of 2: B: 1, "),
    "exact, of ragged ones": (lambda: of_add(50, bias=1), "wrong: .*differ, by up to 0.5"),
    "exact for Ampere": (lambda: of_shift(3, "sm_80"), "exact"),
    "exact, TMA": (lambda: of_box(WAITS=True, ENDS=True), "exact"),
    "exact, nothing expected": (
        lambda: (shift, (0,), (torch.ones(N), torch.ones(N), 0, N)), "exact: no fault, and the same results",
    ),
    "exact, of negative numbers": (of_labels, "exact"),
    "wrong": (
        of_square,
        r"wrong: out\[15, 15\] is 0, expected 1; 1 of 256 elements differ.*"
        r"written subjects.py:\d+  tl.store\(out \+ at.*CTA 0, warp 3, lane 31 \(thread 127\)",
    ),
    "exact, rounded": (lambda: of_copy(5e-5), "exact: "),
    "exact, rounded to 16 bits": (lambda: of_copy(0.01, torch.float16), "exact: "),
    "exact, copies of 64": (lambda: of_place(64, 64), "exact: "),
    "exact, copies of 10": (lambda: of_place(10, 16), "exact: "),
    "exact, copies of 1": (lambda: of_place(1, 32), "exact: "),
    "race of a scalar": (lambda: of_place(1, 1), r"race: x\[0\] is written and read"),
    "exact, by addresses": (lambda: of_table(N), "exact: "),
    "above, by addresses": (lambda: of_table(N - 1), r"bounds: the element 1 behind the last of table\[0\] \(127,\)"),
    "exact, by unsigned addresses": (lambda: of_table(N, torch.uint64), "exact: "),
    "exact, by inner addresses": (lambda: of_inner_addresses(N), "exact: "),
    "above, by inner addresses": (lambda: of_inner_addresses(N + 1), r"bounds: the element 1 behind .* table\[0\]"),
    "exact, of what is like a tensor": (of_like, "exact: "),
    "exact, of what is like a tensor and goes backwards": (lambda: of_like(-1), "exact: "),
    "exact, of equal values": (
        of_both,
        rf"exact: .*\n  note    race of equal values at subjects.py:{LINE}: \d+ races, with no order between"
        rf"\n  note    race of equal values at subjects.py:{LINE + 1}: ",
    ),
    "exact, of equal values of lanes": (
        lambda: (store_again, (1,), dict(x=torch.arange(200.0), n=100, N=256, num_warps=1)), "exact: .*equal values",
    ),
    "race of equal values": (lambda: of_both(strict=True), r"race: first\[0\] is written twice"),
    "race of unequal values": (lambda: of_both(1), r"race: first\[0\] is written twice"),
    "race of a scalar that stays": (lambda: (store_back, (2,), (torch.ones(1),)), r"race: x\[0\] is written and read"),
    "race behind an accepted one": (
        lambda: of_both(1, accept=f"tests/subjects.py:{LINE}"),
        rf"race: second\[0\] is .*\n  accept  subjects.py:{LINE}: \d races? .*\n  behind  an accepted race at subj",
    ),
    "order behind accepted ones": (
        lambda: of_both(1, accept=[f"subjects.py:{LINE}", f"subjects.py:{LINE + 1}"]),
        r"order: .*\n  accept  .*\n  accept  .*\n  behind  an accepted race at .*: it may be a consequence of that",
    ),
    "exact, of 8 bits": (lambda: of_copy(0, torch.float8_e4m3fn), "exact: "),
    "exact, by its tolerance": (lambda: of_copy(0.5, tolerance=0.5), "exact: "),
    "wrong, by its tolerance": (lambda: of_copy(3e-5, tolerance=0), "wrong: "),
    "wrong, more than rounding": (lambda: of_copy(0.05), r"wrong: out\[0\] is 0.25, expected 0.3"),
    "wrong, whole numbers": (lambda: of_copy(1, torch.float16, whole=True, tolerance=None), r"wrong: out\[0\] is 0, "),
    "wrong, not carried": (
        lambda: (forget, (1,), (torch.zeros(1, dtype=torch.int32), 5), dict(out=torch.full((1,), 4))),
        r"wrong: out\[0\] is 0, expected 4; .*perhaps the loop at subjects.py:\d+ does not carry before",
    ),
    "by order": (
        lambda: (tickets, (4,), (torch.zeros(1, dtype=torch.int32), torch.zeros(4, dtype=torch.int32))),
        r"order: out\[\d\] is .*depend on the order of events",
    ),
    "race of partitions": (
        lambda: of_ring("mbarrier.wait(empty, step & 1 ^ 1)"),
        r"race: byte \d+ of the shared memory of CTA 0 .* is written and read.*"
        r"(?=.*writes  doubled.py:12  buffer.store\([^\n]*\n *CTA 0, warp [0-3] \(thread \d+-)"
        r"(?=.*reads   doubled.py:21  doubles = ).*missing a barrier of the CTA.* an mbarrier",
    ),
    "race of CTAs": (
        lambda: of_hand_over("relaxed", "gpu"),
        r"race: box\[\d+\] is .*writes  subjects.py:\d+  tl.store\(box.*CTA 0, warp \d, lane 0 \(thread \d+\).*"
        r"reads   subjects.py:\d+  .*tl.load\(box.*CTA 1.*missing a release by CTA 0 .* acquire by CTA 1.*"
        r"or the other way round, if CTA 1 is to come first",
    ),
    "scope": (lambda: of_hand_over("release", "cta"), r"race: flag\[0\] is .*missing a scope that reaches both: \.gpu"),
    "race, async": (
        lambda: of_box(WAITS=False, ENDS=True), "tma: .*ends while a TMA load is on its way",
    ),
    "hang": (
        lambda: of_ring("mbarrier.arrive(empty)"),
        r"hang: nobody can go on.*waits   doubled.py:11 .*CTA 0, warp 0-3\n.*for the mbarrier at \d+: phase 0, "
        r"1 of 1 arrivals pending\n *the mbarrier is that of doubled.py:32\n.*doubled.py:20 .*CTA 0, warp 4-7\n",
    ),
    "hang, spinning": (
        lambda: of_turns(last=0),
        r"hang: all that can go on repeat themselves.*spins   subjects.py:\d+  while .*CTA 1, CTA 2, warp 0.*"
        r"looks at counter\[0\], which holds 0",
    ),
    "wrong, by a statement of several lines": (
        lambda: (lowest, (1,), (torch.ones(N), torch.zeros(1), N), dict(out=torch.zeros(1))),
        rf"wrong: .*written subjects.py:{STORE}  tl.store\(out, tl.min\(tl.load\(x \+ tl.arange\(0, N\)\)\)\)\n",
    ),
    "exact, spinning": (
        lambda: of_turns(last=3), "exact",
    ),
    "uninitialised": (
        lambda: of_mailbox(FILLS=False),
        r"uninitialised: byte 0 of the shared memory of CTA 0.*reads   subjects.py:.*missing a write: there is none",
    ),
    "uninitialised, too early": (
        lambda: of_ring("mbarrier.wait(full, step & 1)", steps=1),
        r"(uninitialised|race): (?=.*reads   doubled.py:21 ).*writes  doubled.py:12",
    ),
    "uninitialised, as torch.empty": (
        lambda: of_empty("x"),
        r"uninitialised: x\[\d+\] is read, and nobody has written it\n  reads   subjects.py:\d+  tl.store.*"
        r"missing a write: there is none in the whole run",
    ),
    "uninitialised, by TMA": (of_empty_box, r"uninitialised: x_desc\[\d+, \d+\] is read"),
    "uninitialised, by an atomic": (
        lambda: (*of_sum(), None, dict(empty=["out"])),
        r"uninitialised: out\[\d+\] is read.*reads .*tl.atomic_add\(out.*missing a write before it",
    ),
    "exact, all of torch.empty written": (lambda: of_empty("out"), "exact"),
    "exact, beside what is empty": (lambda: of_empty("x", -N), "exact"),
    "wrong, as a check before left it": (
        in_place, r"wrong: .*\n  note    about this check, not your kernel:\n .*out began as an earlier check left it:",
    ),
    "exact, as pruning completes it": (lambda: of_pruned(1), "exact"),
    "above": (
        lambda: of_shift(N + 1),
        r"bounds: the element 1 behind the last of x \(256,\).*reads   subjects.py:.*warp 3, lane 31 \(thread 127\)",
    ),
    "below": (lambda: of_shift(-2), r"bounds: the element 2 before the first of x \(256,\).*lane 0 \(thread 0\)"),
    "above, of a part": (
        lambda: (shift, (1,), (torch.ones(2 * N)[N:], torch.zeros(N), 1, N)),
        r"bounds: the element 1 behind the last of x \(128,\)",
    ),
    "beside": (
        lambda: of_view(2, covered=False),
        r"bounds: byte 4 of the memory of out \(128,\), beside its elements: it is written, and no argument covers it\n"
        r"  writes  subjects.py:\d+  tl.store\(out \+ i.*lane 1 \(thread 1\)",
    ),
    "exact, beside, of another argument": (lambda: of_view(2, covered=True), "exact"),
    "exact, a halo": (
        lambda: (shift, (1,), (torch.ones(4 * N)[N : 2 * N : 2], torch.zeros(N), -3, N), torch.ones(N)),
        "exact: as expected",
    ),
    "exact, up to rounding": (of_sum, r"exact: .*note    about this check, not your kernel:\n *sums in out are r"),
    "exact, a barrier of the grid": (lambda: of_meeting(None), "exact"),
    "hang, a crowded GPU": (
        lambda: of_meeting(4),
        r"hang: all that[^\n]*\n  spins [^\n]*(\n {10}[^\n]*)*\n  perhaps 2 of 6 CTAs have not begun: the GPU holds 4",
    ),
    "barrier": (
        lambda: of_mailbox(ARRIVALS=2),
        r"barrier: 2 arrivals at .*at      subjects.py.*lane 0 .*the mbarrier is that of subj",
    ),
    "misuse": (lambda: of_box(WAITS=True, ENDS=False), r"misuse: ends while its bulk stores are not waited for"),
    "assert": (lambda: (asserts, (1,), dict(x=torch.ones(N), N=N, debug=True)), r"assert: .*x is below one"),
    "unknown": (
        lambda: (odd_instruction, (1,), (torch.ones(N, dtype=torch.int32), N)),
        r"unknown: PTX line \d+ \(subjects.py:\d+\): vset4.*--coverage$",
    ),
}  # fmt: skip


def crowd() -> tuple[float, int]:
    """Return the seconds and the MiB that 2048 programs of one line take."""
    x, begun = torch.arange(2048.0 * N), time.process_time()
    assert check(shift_row, (2048,), dict(x=x, out=torch.zeros_like(x), N=N), expected=dict(out=x + 1), seeds=1)
    return time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


@pytest.mark.slow
def test_many_programs_that_stand_at_once_take_little_each(elsewhere):
    """2.5 seconds on a crowded machine; 29 seconds and 8 GB by clocks of all agents."""
    seconds, mebibytes = elsewhere(crowd)
    assert seconds < 4
    assert mebibytes < 1024


def frozen_in_and_after_a_check() -> list[bool]:
    frozen = []

    def run(trial: Trial, seed: int) -> Outcome:
        frozen.append(gc.get_freeze_count() > 0)
        return Outcome("exact", "", seed, 0)

    with patch.object(Trial, "run", run):
        check(shift_row, (1,), dict(x=torch.arange(N).float(), out=torch.zeros(N), N=N), seeds=1)
    return [*frozen, gc.get_freeze_count() > 0]


def test_collector_leaves_alone_what_was_there_before_a_check(elsewhere):
    assert elsewhere(frozen_in_and_after_a_check) == [True, False]


def orders_of_a_hang() -> int:
    with patch.object(Trial, "run", autospec=True, side_effect=Trial.run) as run:
        check(*of_turns(last=0)[:3], seeds=8)
    return run.call_count


def test_a_hang_is_told_after_two_orders(elsewhere):
    assert elsewhere(orders_of_a_hang) == 2


def verdicts() -> dict[str, str]:
    return {name: str(judge(*make())) for name, (make, _) in SUBJECTS.items()}


@pytest.fixture(scope="module")
def judged(elsewhere):
    return elsewhere(verdicts)


@pytest.mark.parametrize("name", SUBJECTS)
def test_verdict_says_what_to_act_on(judged, name):
    assert re.search(SUBJECTS[name][1], judged[name], re.DOTALL), judged[name]


BAD_CALLS = {
    "arch": (dict(arch="sm_70"), "arch 'sm_70': it is one of sm_80, sm_86, sm_89, sm_90, sm_90a"),
    "seeds": (dict(seeds=0), "seeds=0: it is a whole number from 1 on"),
    "a configuration": (
        dict(kernel=of_configurations(4)[0], args=of_configurations(4)[2], configs=4),
        "configs=4: .* has 3",
    ),
    "one that does not compile": (
        dict(kernel=of_configurations(3)[0], args=of_configurations(3)[2], configs=3),
        "copy_by_two, config 3 of 3: .*, does not compile .*",
    ),
    "accept": (dict(accept="sort.py"), "accept='sort.py': it is a line as a verdict names it, 'sort.py:214' or .*"),
    "grid is a number": (dict(grid=4), r"grid 4 is not one to three whole numbers from 0 on, as \(4,\) or \(4, 2\)"),
    "grid below 0": (dict(grid=lambda args: (args["N"], -1)), r"grid \(128, -1\) is not one to three"),
    "too many": (dict(args=(1, 2, 3, 4, 5)), "shift has 4 arguments, 5 are given; options go by name"),
    "missing": (dict(args=dict(x=torch.ones(N), N=N)), "shift needs out, by too; give it in args"),
    "unknown": (dict(args=dict(num_wraps=4)), "shift has no argument num_wraps; did you mean num_warps"),
    "no kernel": (dict(kernel=print), "print> is no kernel: it is a function under @triton.jit or @gluon.jit"),
    "memory that is not torch's": (
        dict(args=(Like(64, (N,), torch.int8), 0, 0, N)),
        "x is at 0x40, where no tensor .*",
    ),
    "device": (dict(args=(torch.ones(N, device="meta"), 0, 0, N)), r"x is a .* tensor on meta; .*: x.cpu\(\)"),
    "numpy": (dict(args=(torch.ones(N).numpy(), 0, 0, N)), r"x is of NumPy; torch.from_numpy\(x\)"),
    "expected of no tensor": (dict(expected=dict(y=1)), "expected has y, which is no tensor of args; those are x, out"),
    "expected of two": (
        dict(expected=[torch.ones(N)] * 2),
        r"2 tensors are expected, but the kernel writes (none|out); give them by",
    ),
    "expected shape": (
        dict(expected=dict(out=torch.ones(3))),
        r"expected\['out'\] is \(3,\), the argument is \(128,\)",
    ),
    "empty of no tensor": (dict(empty=["y"]), "empty has y, which is no tensor of args; those are x, out"),
    "pruned": (
        dict(kernel=of_pruned(0)[0], args=(torch.ones(N), torch.ones(N))),
        "shift_row: early_config_prune leaves none of its 1 configurations",
    ),
    "attribute": (
        dict(kernel=misspelt, args=(torch.ones(N),)),
        r"misspelt does not compile for sm_90a: mbarrier.initialise\(bar, count=1\): .*no attribute 'initialise'.*",
    ),
    "compiler": (dict(args=(torch.ones(N), torch.ones(N), 0, 3)), "shift does not compile for sm_90a: .*power of 2"),
}


def answers() -> dict[str, str]:
    said = {}
    for name, (call, _) in BAD_CALLS.items():
        try:
            check(**dict(kernel=shift, grid=(1,), args=(torch.ones(N), torch.ones(N), 0, N)) | call)
        except ValueError as error:
            said[name] = str(error)
    return said


@pytest.fixture(scope="module")
def answered(elsewhere):
    return elsewhere(answers)


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_bad_call_is_told_in_one_line(answered, name):
    assert re.fullmatch(f".*{BAD_CALLS[name][1]}.*", answered[name]), answered[name]


def test_interpreted_kernels_are_refused(monkeypatch):
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    with pytest.raises(ValueError, match="TRITON_INTERPRET is set"):
        check(shift, (1,), (torch.ones(N), torch.ones(N), 0, N))


def refused() -> list[str]:
    """Return what the command says to words that are wrong."""
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "doubled.py").write_text(DOUBLED)
        (Path(folder) / "broken.py").write_text("import nothing_at_all")
        for words in (
            "nowhere.py::f",
            "broken.py::f",
            "doubled.py::cases",
            "doubled.py::doubled --gpu",
            "doubled.py",
            "",
            "doubled",
            "--triton 3.x",
            "--triton 3.4",
        ):
            with contextlib.redirect_stderr(io.StringIO()) as out, contextlib.suppress(SystemExit):
                main([f"{folder}/{word}" if ".py" in word else word for word in words.split()])
            texts.append(out.getvalue())
    return texts


def test_the_command_says_in_one_line_what_is_wrong(elsewhere):
    texts = elsewhere(refused)
    which = "it takes FILE::NAME of a kernel; see --help"
    ends = [
        "there is no file .*nowhere.py",
        "broken.py failed: .*nothing_at_all'",
        "no kernel cases; it has .*doubled",
        "unrecognized arguments: --gpu",
        which,
        which,
        which,
        "--triton 3.x is no version.*",
        "the machine takes 3.5 .*",
    ]
    for text, end in zip(texts, ends, strict=True):
        assert re.fullmatch(f"python -m kernels.machine: .*{end}\\n", text), text


CRASHES = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, ASM: tl.constexpr):
    value = tl.inline_asm_elementwise(ASM, "=r,r", [tl.load(x)], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(x + 1, value)

def cases():
    for asm in ("mov.u32 $0, $7;", "nonsense $0, $1;", "mov.u32 $0, $1;"):
        yield (1,), dict(x=torch.zeros(2, dtype=torch.int32), ASM=asm)
"""


def crashed() -> str:
    """What the command says where the compiler ends its process, and raises; the third case is well, but that it reads
    what nobody wrote."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as out:
        (Path(folder) / "crashes.py").write_text(CRASHES)
        main([f"{folder}/crashes.py::kernel", "--seeds", "1", "--empty", "x"])
    return out.getvalue()


def test_a_compilers_crash_is_one_line_and_other_cases_go_on(elsewhere):
    text = elsewhere(crashed)
    assert re.search(r"case 1\n    kernel is not judged: the compiler of triton .* LLVM ERROR: Invalid .*\n", text)
    assert re.search(r"case 2\n    kernel is not judged: the compiler of triton .* error +: .*\nkernel  case 3", text)
    assert re.search(r"case 3 .*\n    uninitialised: x\[0\]", text)
    assert text.endswith("3 cases under 1 order of events, 3 bad\n")


def abandoned() -> list[list]:
    """What comes of orders in forked processes, of which one dies and one sleeps."""

    def run(trial: Trial, seed: int):
        if seed in (1, 2):
            os._exit(9) if seed == 1 else time.sleep(600)
        return Outcome("exact", "", seed, 0)

    with patch.object(Trial, "run", run), patch.object(processes, "IDLE_S", 0.2):
        outcomes = Trial._forked(Trial.__new__(Trial), range(4), 2)
        return [[outcome.kind, outcome.text] for outcome in outcomes]


def test_a_process_that_dies_or_sleeps_is_told_and_others_go_on(elsewhere):
    first, dead, asleep, last = elsewhere(abandoned)
    assert first == last == ["exact", ""]
    assert dead == ["unknown", "the process that ran this order of events died with exit code 9; others went on"]
    assert asleep[1].endswith(" did nothing for 0.2 s; others went on")
