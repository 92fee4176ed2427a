"""What the model of waves predicts: how far it is from calls that it has not seen; docs show what it prints."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import pandas
import pytest

import roofline
from kernels.bench.predictions import RUN, calls_of, fit, main
from kernels.warpgroup import Config
from kernels.waves import GpuSpec
from roofline.analysis.memory_roof import roof_of
from roofline.theory.chips import find

PAGE = (Path(__file__).parents[2] / "docs/kernel.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^ +python3 -m kernels\.waves --model (\S+)\n((?:    .*\n)+)", PAGE, re.MULTILINE))


def test_it_foresees_calls_that_it_has_not_seen_by_a_tile_that_it_chooses():
    run, chip = roofline.load(RUN), find("H100 SXM")
    gpu = GpuSpec(chip.sms, *roof_of(run, "bf16"), chip.cache_bytes)
    for contender, calls in calls_of(run).items():
        missed = []
        for (case, tile), time_s in calls.items():
            _, predict = fit({call: calls[call] for call in calls if call != (case, tile)}, gpu)
            tiles = [other for _, other in calls] if contender == "cublas" else [tile]
            missed.append(abs(min(predict(case, choice) for choice in tiles) / time_s - 1))
        assert len(missed) >= 20
        assert median(missed) < 0.03


def test_tiles_gangs_and_clusters_are_read_from_what_a_run_says_of_its_configurations():
    tile = Config(128, 256, 64, 8, 4, subtile=4)
    configs = [replace(tile, gang_m=4, gang_n=3, shared_waves=2, raster="n"), replace(tile, cluster=2, gang_m=2)]
    rows = []
    for m, config in zip((128, 256), configs, strict=True):
        row = dict(model="xxl", layer="up", tp=8, m=m, dtype="bf16", contender="warpgroup", time_s=1.0)
        rows.append(row | {"config": str(config), "kernel_name": "warpgroup_kernel"})
    run = SimpleNamespace(frame=lambda: pandas.DataFrame(rows))
    read = [config for _, config in calls_of(run)["warpgroup"]]
    assert read == [replace(config, subtile=1, raster="m") for config in configs]


@pytest.mark.parametrize("model", ["llama-3-70b", "qwen3-32b"])
def test_the_page_shows_what_is_printed(model, capsys):
    assert main(["--model", model]) == 0
    printed = capsys.readouterr().out
    lines = [line.split() for line in SHOWN[model].splitlines()]
    assert len(lines) > 10
    assert [line for line in lines if line not in [*map(str.split, printed.splitlines()), ["..."]]] == []
