"""`warpgroup` in a project of its own: the files that docs/your-kernel.md names are all that it imports."""

import os
import re
import subprocess
import sys

from conftest import ROOT

CALLS = """
import torch
from kernels.tiles import choose
from kernels.warpgroup import Config, matmul
tile = choose("warpgroup", "sm90", 4096, 6656, 16384, torch.bfloat16)
launches = [matmul.example(config, torch.bfloat16) for config in (tile, {config})]
print([launch.args["SHARED"] for launch in launches])
"""


def test_the_files_that_the_page_copies_are_enough(tmp_path):
    page = (ROOT / "docs" / "your-kernel.md").read_text(encoding="utf-8").partition("## Take `warpgroup` along")[2]
    (commands,) = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    (config,) = re.findall(r"config=(Config\(.*?\))\)", page)
    subprocess.run(["bash", "-ec", commands.replace("app/", f"{tmp_path}/")], cwd=ROOT, check=True)
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    call = [sys.executable, "-P", "-c", CALLS.format(config=config)]
    done = subprocess.run(call, cwd=tmp_path, env=env | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout == "[True, True]\n", done.stderr
