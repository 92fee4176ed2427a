"""Each field of a record has a value in a run that is committed, or that is made here or in the tests of its feature.

A journal that is written by hand fills none.
"""

from pathlib import Path

import pytest
from features import CPU, FEATURES, GPU, LINK, OF_TABLE, unfilled, with_ends

from conftest import ROOT
from roofline.analysis.fields import FIELDS, GROUPS, joined
from roofline.store import journal

ALL = FEATURES | OF_TABLE


def test_each_field_is_filled_by_one_feature():
    for declared, features in ((FIELDS, FEATURES), (GROUPS["tokens"], OF_TABLE)):
        names = [name for _, fields in features.values() for name in with_ends(declared, fields)]
        assert sorted(names) == sorted(declared)


def test_a_field_is_of_one_part_of_a_record():
    assert joined({"time_s": 1.0}, {"rounds": 30}) == {"time_s": 1.0, "rounds": 30}
    with pytest.raises(AssertionError, match="rounds"):
        joined({"time_s": 1.0, "rounds": 30}, {"rounds": 30})


@pytest.mark.parametrize("name", [CPU, GPU, LINK])
def test_a_committed_run_fills_the_fields_of_its_features(name):
    features = [feature for feature, (source, _) in ALL.items() if source == name]
    assert unfilled(journal.load(ROOT / "results" / "reference" / name), *features) == []


def test_a_run_of_every_other_feature_is_looked_at():
    for feature, (source, _) in ALL.items():
        if source not in (CPU, GPU, LINK):
            assert f'"{feature}"' in Path(__file__).with_name(source).read_text()


@pytest.mark.parametrize(
    ("feature", "cases"),
    [
        ("attention", "test_attention and causal-forward and not compiled"),
        pytest.param("training step", "test_transformer_step and step-fp32", marks=pytest.mark.slow),
    ],
)
def test_a_run_of_the_cpu_fills_the_fields_of_its_feature(feature, cases, zygote, environment, tmp_path):
    small = "--ffn-quick", "--ffn-device=cpu", "--ffn-tokens=64", "--ffn-max-seconds=0.1"
    words = ["--benchmark-only", "tests/benchmarks", "-k", cases, *small, f"--ffn-results={tmp_path}"]
    _, text = zygote.run(["-p", "no:cacheprovider", *words], cwd=str(ROOT), env=environment())
    print(text)
    (folder,) = tmp_path.iterdir()
    assert unfilled(journal.load(folder), feature) == []
