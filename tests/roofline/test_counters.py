"""Counters from Nsight Compute's CSV: sums over kernels, units, what is lacking, and what must not pass for a count."""

import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from ncu_sample import BF16, BUSY, DENIED, HEADER, MARKER, METRICS, NONE, NVJET, RAW, REDUCE, UNITS, quoted, row

from roofline.profile import ncu, parse

CALLS = parse.by_call(parse.parse(RAW))


def table(*rows, units=UNITS) -> str:
    return "\n".join([HEADER, units, *rows])


def test_kernels_of_each_call_by_the_markers_before_them():
    assert [[launch.kernel for launch in call] for call in CALLS] == [
        ["persistent_kernel"],
        [NVJET, REDUCE],
        ["tiled_kernel"],
    ]


def test_marker_is_whatever_came_first():
    rows = [row(i, kernel, *NONE) for i, kernel in enumerate(["later::name", "a", "spin_kernel", "later::name", "b"])]
    calls = parse.by_call(parse.parse(table(*rows)))
    assert [[launch.kernel for launch in call] for call in calls] == [["a", "spin_kernel"], ["b"]]


def test_counts_of_a_call_are_the_sums_over_its_kernels():
    one = parse.counts(CALLS[0], "bf16")
    assert one["dram_bytes"] == 352_321_536 + 54_525_952
    assert one["tensor_ops"] == 2 * 4096 * 6656 * 16384
    two = parse.counts(CALLS[1], "bf16")
    assert two["dram_bytes"] == 218_103_808 + 1024 + 65_536 + 13_312
    assert two["l2_bytes"] == 230_686_720 + 131_072
    assert two["metrics"]["tensor_ops"] == [f"{BF16}.sum"]


def test_parts_stand_in_for_a_metric_that_is_lacking_and_are_not_counted_twice():
    found = parse.counts(CALLS[2], "bf16")
    assert found["tensor_ops"] == 13_958_643_712
    assert found["metrics"]["tensor_ops"] == [f"{BF16}_sparsity_off.sum", f"{BF16}_sparsity_on.sum"]


def test_fp32_has_no_tensor_operations():
    found = parse.counts(CALLS[0], "fp32")
    assert found["tensor_ops"] is None
    assert found["metrics"].keys() == {"dram_bytes", "l2_bytes"}


def test_metric_that_one_kernel_lacks_is_unknown_not_smaller():
    text = table(row(0, MARKER, *NONE), row(1, "a", *["5"] * 6), row(2, "b", "n/a", *["5"] * 5))
    found = parse.counts(parse.by_call(parse.parse(text))[0], "bf16")
    assert found["dram_bytes"] is None
    assert found["l2_bytes"] == 10
    assert "dram_bytes" not in found["metrics"]


@pytest.mark.parametrize(
    ("unit", "scale"), [("byte", 1), ("Kbyte", 1e3), ("Mbyte", 1e6), ("Gbyte", 1e9), ("GB", 1e9), ("", 1)]
)
def test_units_are_those_of_the_row_below_the_names(unit, scale):
    units = UNITS.replace('"byte"', f'"{unit}"', 1)
    (launch,) = parse.parse(table(row(1, "a", "1,234.5", *["1"] * 5), units=units))
    assert launch.values["dram__bytes_read.sum"] == 1234.5 * scale
    assert launch.values["dram__bytes_write.sum"] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (table(row(1, "a", "12.345.678", *["1"] * 5)), "'12.345.678', which is no number"),
        (table(row(1, "a", "12,34", *["1"] * 5)), "'12,34', which is no number"),
        (table(row(1, "a", *["1"] * 6), units=UNITS.replace("byte", "sector")), "is in 'sector', a unit"),
        (table(row(1, "a", *["1"] * 6)[:-5] + '"'), "it was cut off"),
    ],
)
def test_what_cannot_be_read_is_an_error_not_a_count(text, said):
    with pytest.raises(ValueError, match=r"__|cells") as error:
        parse.parse(text)
    assert said in str(error.value)


def test_columns_that_nobody_asked_for_may_hold_anything():
    names = ("device__attribute_display_name", "launch__cluster_scheduling_policy", "gpu__time_duration.sum")
    lines = zip(
        (HEADER, UNITS, row(0, MARKER, *NONE), row(1, "a", *["5"] * 6)),
        (quoted(*names), quoted("", "", "ns"), *[quoted("NVIDIA H200", "PolicySpread", "12.5")] * 2),
        strict=True,
    )
    (call,) = parse.by_call(parse.parse("\n".join(",".join(line) for line in lines)))
    assert parse.counts(call, "bf16")["dram_bytes"] == 10


@pytest.mark.parametrize("absent", ["n/a", "(!) n/a", "(!) nan", ""])
def test_count_that_is_absent_is_none(absent):
    (launch,) = parse.parse(table(row(1, "a", absent, *["1"] * 5)))
    assert launch.values["dram__bytes_read.sum"] is None


@pytest.mark.parametrize("text", ["", DENIED, "garbage\x00\n==PROF== nothing", HEADER, f"{HEADER}\n{UNITS}\n"])
def test_output_without_a_kernel_has_none(text):
    assert parse.parse(text) == []
    assert parse.by_call([]) == []


def test_call_without_a_kernel_or_a_counter_is_an_error():
    only, nothing = table(row(0, MARKER, *NONE)), table(row(0, MARKER, *NONE), row(1, "a", *["n/a"] * 6))
    with pytest.raises(ValueError, match="no kernel of it was seen"):
        parse.counts(parse.by_call(parse.parse(only))[0], "bf16")
    with pytest.raises(ValueError, match="every counter of it is n/a"):
        parse.counts(parse.by_call(parse.parse(nothing))[0], "bf16")


def test_both_forms_are_asked_for_and_what_the_tool_does_not_list_is_left_out():
    wanted = parse.metrics(["bf16", "fp32"])
    assert set(wanted) == set(METRICS)
    bases = [name.partition(".")[0] for name in METRICS]
    assert parse.known(wanted, "\n".join(f"{name}  Counter" for name in bases[:4])) == wanted[:4]
    assert parse.known(wanted, "\n".join(bases[:3])) == wanted  # no tensor counter: the list is not to be relied on
    assert parse.known(wanted, "usage: ncu") == wanted
    assert parse.known(wanted[:3], "\n".join(bases)) == wanted[:3]


def test_metrics_that_the_tool_refuses_are_found_in_its_error():
    wanted = parse.metrics(["bf16"])
    regex = f"==ERROR== Failed to find metric regex:^{BF16}(\\.sum|\\.avg)$"
    assert parse.refused(wanted, regex) == [f"{BF16}.sum"]
    access = f"==ERROR== Failed to access the following 2 metrics: {BF16}_sparsity_on.sum, lts__t_bytes.sum"
    assert parse.refused(wanted, access) == ["lts__t_bytes.sum", f"{BF16}_sparsity_on.sum"]
    assert parse.refused(wanted, DENIED + f"{BF16}.sum") == []


def test_tool_is_found_where_installers_put_it_the_newest_first(monkeypatch, tmp_path):
    for version in ("2024.3.2", "2025.1.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "ncu").write_text("#!/bin/sh\n")
        (tmp_path / version / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(ncu, "PLACES", (str(tmp_path / "bin" / "ncu"), str(tmp_path / "*" / "ncu")))
    assert ncu.find() == str(tmp_path / "2025.1.0" / "ncu")


def test_why_nothing_can_be_counted(monkeypatch, tmp_path):
    assert "this run measured the CPU" in ncu.why_not("cpu")
    monkeypatch.setattr(ncu, "PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ncu is not on PATH" in ncu.why_not("cuda")
    (tmp_path / "ncu").write_text("#!/bin/sh\n")
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setattr(ncu, "PARAMETERS", tmp_path / "params")
    assert ncu.why_not("cuda") is None  # the driver does not say
    (tmp_path / "params").write_text("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\n")
    monkeypatch.setattr(ncu, "STATUS", tmp_path / "status")
    for capability in (1 << 21, 1 << 38):
        (tmp_path / "status").write_text(f"Name:\tpython\nCapPrm:\t0\nCapEff:\t{capability:016x}\n")
        assert ncu.why_not("cuda") is None
    (tmp_path / "status").write_text("CapEff:\t00000000a80425fb\n")  # root in a container of Docker's
    assert "ERR_NVGPUCTRPERM" in ncu.why_not("cuda")
    (tmp_path / "params").write_text("RmProfilingAdminOnly: 0\n")
    assert ncu.why_not("cuda") is None


@pytest.mark.parametrize(
    ("printed", "said", "why", "complaint"),
    [
        (DENIED, "1 passed", None, ncu.FORBIDDEN),
        (
            "==ERROR== The application returned an error code (11).\n",
            "some\n",
            None,
            "The application returned an error",
        ),
        (BUSY, "1 passed\n", None, "Profiling failed because a driver resource was unavailable. Ensure"),
        (
            "==ERROR== The application returned an error code (1).\n",
            "E   ImportError: no module named x\n=== short summary ===\nERROR tests/a.py\n1 error in 0.2s\n",
            None,
            "E   ImportError: no module named x (exit code 1)",
        ),
        ("", "no tests ran\n\n", None, "no tests ran (exit code 1)"),
        ("", "", None, "it said nothing (exit code 1)"),
        ("==ERROR== a", "", "it hung", "it hung"),
        ("\x00\x07" * 300, "", None, "?" * 200),
    ],
)
def test_complaint_is_one_line(printed, said, why, complaint):
    found = ncu.Ended(printed, said, 1, why).complaint
    assert found.startswith(complaint)
    assert len(found.splitlines()) == 1


def test_all_that_a_program_began_ends_with_it(tmp_path, fake_time):
    tool = tmp_path / "ncu"
    tool.write_text(
        f"#!{sys.executable}\nimport pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(15, signal.SIG_IGN);"
        " time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'child')!r}).write_text(str(child.pid))\ntime.sleep(600)\n"
    )
    tool.chmod(0o755)
    own, pid = fake_time(ncu), tmp_path / "child"
    passes = own.sleep
    own.sleep = lambda seconds: (time.sleep(0.02), pid.exists() and pid.read_text() and passes(seconds))
    ended = ncu.run(
        str(tool), ["a"], ["b"], folder=tmp_path, progress=tmp_path / "none", cwd=tmp_path, stall_s=1.5, seconds=60,
    )  # fmt: skip
    assert ended.why == "it hung: nothing happened for 1.5 s"
    assert not ended.over
    child = Path("/proc") / pid.read_text()
    for _ in range(600):  # it was killed: who adopted it may be late to notice
        if gone := not child.exists() or "(zombie)" in (child / "status").read_text():
            break
        time.sleep(0.1)
    assert gone
    over = ncu.run(
        str(tool), ["a"], ["b"], folder=tmp_path, progress=tmp_path / "none", cwd=tmp_path, stall_s=60, seconds=0.3,
    )  # fmt: skip
    assert over.over


def test_program_that_goes_forward_is_not_taken_for_one_that_hangs(tmp_path, fake_time):
    tool, end, steps = tmp_path / "ncu", tmp_path / "end", []
    tool.write_text(f"#!/bin/sh\nuntil [ -e {end} ]; do sleep 0.02; done\n")
    tool.chmod(0o755)
    own = fake_time(ncu)
    passes = own.sleep

    def goes_forward(seconds):
        """Six steps, a second and a half between them; then time stands still until the program has ended."""
        if len(steps) < 6:
            steps.append("a step")
            (tmp_path / "progress").write_text("\n".join(steps))
            passes(1.5)
        else:
            end.touch()
            time.sleep(0.02)

    own.sleep = goes_forward
    ended = ncu.run(
        str(tool), ["a"], ["b"], folder=tmp_path, progress=tmp_path / "progress", cwd=tmp_path, stall_s=2, seconds=60,
    )  # fmt: skip
    assert (ended.why, ended.code) == (None, 0)


def test_tool_is_asked_to_leave_clocks_alone_to_flush_caches_and_to_print_whole_numbers(tmp_path):
    tool = tmp_path / "ncu"
    tool.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path / 'flags'}\n")
    tool.chmod(0o755)
    ncu.run(
        str(tool), ["a", "b"], ["program", "x"], folder=tmp_path, progress=tmp_path / "none", cwd=tmp_path, stall_s=60,
        seconds=60,
    )  # fmt: skip
    flags = (tmp_path / "flags").read_text().split()
    given = dict(pairwise(flags))
    expected = {"--clock-control": "none", "--cache-control": "all", "--print-units": "base", "--page": "raw"}
    expected |= {"--profile-from-start": "off", "--metrics": "a,b", "--target-processes": "application-only"}
    assert {name: given[name] for name in expected} == expected
    assert "--csv" in flags
    assert flags[-2:] == ["program", "x"]


def test_version_and_silence_of_a_tool(tmp_path):
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho Version 2025.1.1.0 '(build 1)'\n")
    tool.chmod(0o755)
    assert ncu.version(str(tool)) == "2025.1.1.0"
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert ncu.version(str(tool)) == "of unknown version"
    assert ncu.ask(str(tmp_path / "none"), "--version") == ""
