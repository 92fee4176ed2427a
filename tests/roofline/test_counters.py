"""Counters from Nsight Compute's CSV: sums over kernels, units, what is lacking, and what must not pass for a count."""

from itertools import pairwise
from pathlib import Path

import pytest
from ncu_sample import BF16, BUSY, DENIED, HEADER, MARKER, METRICS, NONE, NVJET, RAW, REDUCE, UNITS, quoted, row

from roofline.profile import ncu, parse

CALLS = parse.by_call(parse.parse(RAW))


def table(*rows, units=UNITS) -> str:
    return "\n".join([HEADER, units, *rows])


def test_kernels_of_each_call_by_the_markers_before_them():
    def kernels(calls):
        return [[launch.kernel for launch in call] for call in calls]

    assert kernels(CALLS) == [["persistent_kernel"], [NVJET, REDUCE], ["tiled_kernel"]]
    rows = [row(i, kernel, *NONE) for i, kernel in enumerate(["later::name", "a", "spin_kernel", "later::name", "b"])]
    assert kernels(parse.by_call(parse.parse(table(*rows)))) == [["a", "spin_kernel"], ["b"]]  # whatever came first


def test_counts_of_a_call_are_the_sums_over_its_kernels():
    counts = parse.counts(CALLS[0], "bf16")
    assert counts["dram_bytes"] == 352_321_536 + 54_525_952
    assert counts["tensor_ops"] == 2 * 4096 * 6656 * 16384
    two = parse.counts(CALLS[1], "bf16")
    assert two["dram_bytes"] == 218_103_808 + 1024 + 65_536 + 13_312
    assert two["l2_bytes"] == 230_686_720 + 131_072
    assert two["metrics"]["tensor_ops"] == [f"{BF16}.sum"]
    three = parse.counts(CALLS[2], "bf16")  # parts stand in for a metric that is lacking, and are not counted twice
    assert three["tensor_ops"] == 13_958_643_712
    assert three["metrics"]["tensor_ops"] == [f"{BF16}_sparsity_off.sum", f"{BF16}_sparsity_on.sum"]
    fp32 = parse.counts(CALLS[0], "fp32")  # which has no tensor operations
    assert fp32["tensor_ops"] is None
    assert fp32["metrics"].keys() == {"dram_bytes", "l2_bytes"}


def test_metric_that_one_kernel_lacks_is_unknown_not_smaller():
    text = table(row(0, MARKER, *NONE), row(1, "a", *["5"] * 6), row(2, "b", "n/a", *["5"] * 5))
    counts = parse.counts(parse.by_call(parse.parse(text))[0], "bf16")
    assert (counts["dram_bytes"], counts["l2_bytes"]) == (None, 10)
    assert "dram_bytes" not in counts["metrics"]


@pytest.mark.parametrize(
    ("unit", "cell", "count"),
    [
        *((unit, "1,234.5", 1234.5) for unit in ("byte", "")),
        *(("Kbyte", "1,234.5", 1234.5e3), ("Mbyte", "1", 1e6), ("Gbyte", "1", 1e9), ("GB", "1", 1e9)),
        *(("byte", absent, None) for absent in ("n/a", "(!) n/a", "(!) nan", "")),
    ],
)
def test_units_are_those_of_the_row_below_the_names_and_what_is_absent_is_none(unit, cell, count):
    units = UNITS.replace('"byte"', f'"{unit}"', 1)
    (launch,) = parse.parse(table(row(1, "a", cell, *["1"] * 5), units=units))
    assert launch.values["dram__bytes_read.sum"] == count
    assert launch.values["dram__bytes_write.sum"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (table(row(1, "a", "12.345.678", *["1"] * 5)), "'12.345.678', which is no number"),
        (table(row(1, "a", "12,34", *["1"] * 5)), "'12,34', which is no number"),
        (table(row(1, "a", *["1"] * 6), units=UNITS.replace("byte", "sector")), "is in 'sector', a unit"),
        (table(row(1, "a", *["1"] * 6)[:-5] + '"'), "it was cut off"),
        (table(row(0, MARKER, *NONE)), "no kernel of it was seen"),
        (table(row(0, MARKER, *NONE), row(1, "a", *["n/a"] * 6)), "every counter of it is n/a"),
    ],
)
def test_what_cannot_be_read_is_an_error_not_a_count(text, message):
    with pytest.raises(ValueError, match=r"__|cells|of it") as error:
        parse.counts(parse.by_call(parse.parse(text))[0], "bf16")
    assert message in str(error.value)


def test_columns_that_nobody_asked_for_may_hold_anything():
    names = ("device__attribute_display_name", "launch__cluster_scheduling_policy", "gpu__time_duration.sum")
    lines = zip(
        (HEADER, UNITS, row(0, MARKER, *NONE), row(1, "a", *["5"] * 6)),
        (quoted(*names), quoted("", "", "ns"), *[quoted("NVIDIA H200", "PolicySpread", "12.5")] * 2),
        strict=True,
    )
    (call,) = parse.by_call(parse.parse("\n".join(",".join(line) for line in lines)))
    assert parse.counts(call, "bf16")["dram_bytes"] == 10


@pytest.mark.parametrize("text", ["", DENIED, "garbage\x00\n==PROF== nothing", HEADER, f"{HEADER}\n{UNITS}\n"])
def test_output_without_a_kernel_has_none(text):
    assert parse.by_call(parse.parse(text)) == []


def test_both_forms_are_asked_for_and_what_the_tool_does_not_list_is_left_out():
    wanted = parse.metrics(["bf16", "fp32"])
    assert set(wanted) == set(METRICS)
    bases = [name.partition(".")[0] for name in METRICS]
    assert parse.available(wanted, "\n".join(f"{name}  Counter" for name in bases[:4])) == wanted[:4]
    assert parse.available(wanted, "\n".join(bases[:3])) == wanted  # no tensor counter: the list is not to be relied on
    assert parse.available(wanted[:3], "\n".join(bases)) == wanted[:3]


def program(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_tool_is_found_where_installers_put_it_the_newest_first(monkeypatch, tmp_path):
    _, newer = (program(tmp_path / version / "ncu", "") for version in ("2024.3.2", "2025.1.0"))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(ncu, "PLACES", (str(tmp_path / "bin" / "ncu"), str(tmp_path / "*" / "ncu")))
    assert ncu.find() == newer


def test_why_nothing_can_be_counted(monkeypatch, tmp_path):
    assert "this run measured the CPU" in ncu.why_not("cpu")
    monkeypatch.setattr(ncu, "PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "ncu is not on PATH" in ncu.why_not("cuda")
    program(tmp_path / "ncu", "")
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
    ("printed", "of_program", "how", "complaint"),
    [
        (DENIED, "1 passed", "exit code 1: 1 passed", ncu.FORBIDDEN),
        (BUSY, "1 passed\n", "", "Profiling failed because a driver resource was unavailable. Ensure"),
        (
            "==ERROR== The application returned an error code (1).\n",
            'Traceback (most recent call last):\n  File "a.py", line 1\nImportError: no module named x\nand so on\n',
            "exit code 1: and so on",
            "ImportError: no module named x (exit code 1)",
        ),
        ("==ERROR== The application returned an error code (11).\n", "some\n", "", "The application returned an err"),
        ("", "no tests ran\n\n", "exit code 1: no tests ran", "no tests ran (exit code 1)"),
        ("", "", "", "it printed nothing"),
        ("==ERROR== a", "", "hung", "hung"),
        ("\x00\x07" * 300, "", "", "?" * 200),
    ],
)
def test_complaint_is_one_line(printed, of_program, how, complaint):
    line = ncu.complaint(printed, of_program, how)
    assert line.startswith(complaint)
    assert len(line.splitlines()) == 1


def test_tool_is_asked_to_leave_clocks_alone_to_flush_caches_and_to_print_whole_numbers(tmp_path):
    flags = ncu.command("/opt/ncu", ["a", "b"], tmp_path / "log")
    assert flags[:3] == ["env", "LC_ALL=C", "/opt/ncu"]
    given = dict(pairwise(flags))
    expected = {"--clock-control": "none", "--cache-control": "all", "--print-units": "base", "--page": "raw"}
    expected |= {"--profile-from-start": "off", "--metrics": "a,b", "--target-processes": "application-only"}
    assert {name: given[name] for name in expected} == expected
    assert flags[-2:] == ["--log-file", str(tmp_path / "log")]


def test_version_and_silence_of_a_tool(tmp_path):
    assert ncu.version(program(tmp_path / "a", "echo Version 2025.1.1.0 '(build 1)'")) == "2025.1.1.0"
    assert ncu.version(program(tmp_path / "b", "exit 1")) == "of unknown version"
    assert ncu.ask(str(tmp_path / "none"), "--version") == ""
