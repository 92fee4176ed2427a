"""Each field of a record has a value in a run that is committed, or that is made here or in the tests of its feature.

A journal that is written by hand fills none.
"""

from pathlib import Path

import pandas
import pytest
from features import COUNTED, CPU, FEATURES, FORMULAS, GPU, LINK, OF_TABLE, PAIRED, unfilled, with_ends

from conftest import ROOT
from roofline.analysis.fields import FIELDS, GROUPS, by_name, shown
from roofline.analysis.overlap import LOST
from roofline.analysis.records import frame
from roofline.operations import OPERATIONS
from roofline.report.overlap import ABOVE_IDEAL
from roofline.report.tables import TABLES
from roofline.store import journal
from roofline.store.lines import as_read

ALL = FEATURES | OF_TABLE
ENDS_OF_ONE_BLOCK = "steady_ratio_low steady_ratio_high sustained_low sustained_high"
"""The GPU ran each contender alone in one block, which does not say how far it is off."""


def test_each_field_is_filled_by_one_feature():
    for declared, features in ((FIELDS, FEATURES), (GROUPS["tokens"], OF_TABLE)):
        names = [name for _, fields in features.values() for name in with_ends(declared, fields)]
        assert sorted(names) == sorted(declared)


@pytest.mark.parametrize("name", [CPU, GPU, LINK])
def test_a_committed_run_fills_the_fields_of_its_features(name):
    features = [feature for feature, (source, _) in ALL.items() if source == name]
    lacking = ENDS_OF_ONE_BLOCK.split() if name == GPU else []
    assert unfilled(journal.load(ROOT / "results" / "reference" / name), *features) == lacking


def test_a_run_of_every_other_feature_is_looked_at():
    for feature, (source, _) in ALL.items():
        if source not in (CPU, GPU, LINK):
            assert f'"{feature}"' in Path(__file__).with_name(source).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "cases"),
    [
        ("attention", "test_attention and causal-forward and not compiled"),
        ("transformer_step", "test_transformer_step and step-fp32"),
    ],
)
def test_a_run_of_the_cpu_fills_the_fields_of_its_operation(op, cases, zygote, tmp_path):
    if op not in OPERATIONS:
        pytest.skip("its folder was taken out")
    small = "--ffn-quick", "--ffn-device=cpu", "--ffn-tokens=64", "--ffn-max-seconds=0.1"
    words = ["--benchmark-only", "tests/benchmarks", "-k", cases, *small, f"--ffn-results={tmp_path}"]
    _, text = zygote.run(*words)
    print(text)
    (folder,) = tmp_path.iterdir()
    run = journal.load(folder)
    columns = frame(run)[[*by_name(shown(run, op).fields)]]
    assert not columns.columns[columns.isna().all()].tolist()
    assert run.metadata["shown"][op] == as_read(OPERATIONS[op].plain)


BOUNDS = {
    "bytes": (2**20, 2**40), "bytes/s": (1e8, 1e14), "FLOP": (1e5, 1e16), "FLOP/byte": (0.1, 1e5), "MHz": (100, 4000),
    "1e12 FLOP/s": (1e-4, 1e4), "Hz": (1e8, 4e9), "J": (1e-3, 1e4), "W": (10, 2000), "C": (10, 110),
}  # fmt: skip
"""Unit -> what any case on the machines of the committed runs has."""


@pytest.fixture(scope="module")
def committed() -> pandas.DataFrame:
    """The records of three committed runs."""
    frames = [frame(journal.load(ROOT / "results" / "reference" / name)) for name in (CPU, GPU, LINK)]
    for one in frames:
        one.attrs = {}
    table = pandas.concat(frames, ignore_index=True)
    or_none = ["spilled_bytes", "lost_split_s", "lost_code_s", "lost_contention_s"]
    table[or_none] = table[or_none].astype(float).fillna(0.0)
    table["shorter_s"] = table[["t_gemm_s", "t_comm_s"]].astype(float).min(axis=1)
    return table


@pytest.mark.parametrize("name", FORMULAS)
def test_a_field_is_what_its_formula_says(committed, name):
    ratios = (committed[name].astype(float) / committed.eval(FORMULAS[name]).astype(float)).dropna()
    assert len(ratios) > 5
    assert ratios.to_numpy() == pytest.approx(1)


def test_each_ratio_has_a_formula_or_says_what_it_is_of(committed):
    ends = {end for field in FIELDS.values() for end in field.ends}
    ratios = set()
    for name, field in FIELDS.items():
        values = pandas.to_numeric(committed[name], errors="coerce").dropna()
        if field.unit == "1" and name not in ends and (values % 1 != 0).any():
            ratios.add(name)
    assert ratios - FORMULAS.keys() == {*PAIRED.split(), *COUNTED.split()}


def test_numbers_lie_where_their_unit_has_them(committed):
    outside = []
    for name, field in FIELDS.items():
        low, high = BOUNDS.get(field.unit, (0, 0))
        values = pandas.to_numeric(committed[name], errors="coerce").dropna()
        values = values[values != 0]
        if low and not values.between(low, high).all():
            outside.append((name, values.min(), values.max()))
    assert outside == []


def test_lists_of_fields_name_fields():
    assert {name for table in TABLES.values() for name in (table.of, *table.columns)} <= {*FIELDS, ABOVE_IDEAL.name}
    assert {*LOST} <= FIELDS.keys()
