"""A stand-in for ncu, whose launcher runs on the stand-in for CUDA."""

import os
import sys

import pytest
import stand_in
from zygote import environment

FAKE = f"""#!{sys.executable}
import csv, json, os, subprocess, sys

words = sys.argv[1:]
if words == ["--version"]:
    print("Version 2025.1.1.0 (build 35528883) (public-release)")
    sys.exit()
does, place = json.loads(os.environ["FAKE_NCU"]), words.index("--log-file")
log, launcher = open(words[place + 1], "w"), words[place + 2 :]
print("==PROF== Connected to process 4711", does.get("error", ""), sep="\\n", file=log)
size = int(launcher[4])
if does.get("told"):
    printed = "\\n".join(map(json.dumps, does["told"]))
else:
    launched = subprocess.run(launcher, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed = launched.stdout
print(printed)
if "error" in does or not does.get("told") and launched.returncode:
    sys.exit()
table = csv.writer(log, quoting=csv.QUOTE_ALL)
table.writerow(["ID", "Host Name", "Kernel Name", *words[words.index("--metrics") + 1].split(",")])
table.writerow(["", "", "", "byte", "byte", "byte", "cycle", "cycle"])
told = [json.loads(line) for line in printed.splitlines() if line.startswith("{{")]
for number, line in enumerate(line for line in told if "call" in line):
    table.writerow([0, "127.0.0.1", "spin_kernel(long)", *["1"] * 5])
    if line["call"] == "copy":
        half = size / 2 * does.get("copied", 1)
        table.writerow([0, "127.0.0.1", "copy", half, half, "n/a", "0", "9"])
    elif line["call"] not in does.get("unseen", ()):
        read = f"{{10**(5 + number % 3):,}}"
        table.writerow([0, "127.0.0.1", "split, of K", read, "20,000", "400,000.00", "2,400", "1,000"])
        table.writerow([0, "127.0.0.1", "reduce", "40", "2", "10", "0", "200"])
"""
"""It prints as `ncu --csv --page raw` does, of what the launcher called. FAKE_NCU in the environment says what it
`does`: `told` is what the launcher says, which is not run then."""

SITE = """
import sys
if sys.orig_argv[1:3] == ["-m", "roofline.commands.launcher"]:
    import stand_in
    stand_in.install()
"""


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """It stands in for ncu on PATH, and what it launches finds a GPU, which `stand_in` stands for."""
    tool = tmp_path / "bin" / "ncu"
    tool.parent.mkdir()
    tool.write_text(FAKE)
    tool.chmod(0o755)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", environment(tmp_path)["PYTHONPATH"])
    monkeypatch.setenv("FAKE_NCU", "{}")
    monkeypatch.setenv(stand_in.NAMED, "H100")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
