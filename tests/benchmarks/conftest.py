"""Fixtures of the benchmarks: which cases there are, and which line-up prepares one."""

import difflib
from importlib.util import find_spec

import pytest
from link_clock import link_clocks  # noqa: F401 a fixture

from collectives.bench import gather, symm_mem
from kernels.bench import matmul, tune
from roofline import operations
from roofline.measure.prepared import untold
from roofline.pytest_plugin.hooks import STATE, refuse

OPS = ("matmul", *gather.SETTINGS)
TUNE = "tune"
"""The test of what --ffn-tune measures, in place of all `OPS`."""


def _cases(options, op: str) -> list:
    if options.tune_s or op == TUNE:
        return tune.cases(options) if op == TUNE else []
    return operations.find(op).sweep(options)


def _names(options, op: str) -> list[str]:
    return matmul.names_of(options) if op == "matmul" else gather.names_of(options, op)


def pytest_generate_tests(metafunc):
    if {"shape", "contender"} <= set(metafunc.fixturenames):
        options, op = metafunc.config.stash[STATE].options, metafunc.function.__name__.removeprefix("test_")
        if op == TUNE:
            pairs = [(case.id, name) for case in _cases(options, op) for name in tune.contenders(case)]
        else:
            pairs = [(case.id, name) for case in _cases(options, op) for name in _names(options, op)]
        metafunc.parametrize("shape, contender", pairs, ids=["-".join(pair) for pair in pairs])


def pytest_collection_modifyitems(config, items):
    known = [*matmul.known_contenders(), *(arm for op in OPS[1:] for arm in gather.arms_of(op))]
    known.append(symm_mem.NAME)
    known = tune.kernels() if config.stash[STATE].options.tune_s else known
    for name in config.stash[STATE].options.contenders or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            refuse(f"--ffn-contenders {name!r}: {hint}known are {', '.join(dict.fromkeys(known))}")
    # pytest makes an item of an empty list of cases too.
    items[:] = [item for item in items if "NOTSET" not in getattr(item, "name", "")]


@pytest.fixture(scope="session")
def ffn_options(request):
    return request.config.stash[STATE].options


@pytest.fixture(autouse=True)
def untimed_links(request, ffn_options):
    """Where nothing is timed, no link depends on real time."""
    if not ffn_options.timed:
        request.getfixturevalue("link_clocks")


@pytest.fixture(scope="session")
def ffn_prepare(request, ffn_options):
    """`ffn_prepare(shape, names, trying)`: the line-up of the case that the id `shape` names."""
    options, selected = ffn_options, request.config.stash[STATE].selected
    cases = {case.id: case for op in (*OPS, TUNE) for case in _cases(options, op)}

    def prepare(shape: str, names: list[str], trying=untold):
        case = cases[shape]
        if options.tune_s:
            return tune.prepare(options, case, names, selected, trying)
        return (matmul if case.op == "matmul" else gather).prepare(options, case, names, trying)

    return prepare


@pytest.fixture(scope="session")
def ffn_probes(ffn_options):
    return matmul.probes(ffn_options)


@pytest.fixture(scope="session")
def ffn_session(ffn_session):
    """The run, which keeps what it tunes: also of shapes whose rounds a killed run had, but not their entry."""
    if ffn_session.options.tune_s:
        ffn_session.measured = lambda shape: tune.keep(ffn_session.run, shape, ffn_session.folder)
        for shape in ffn_session.run.shapes:
            ffn_session.tell(shape, lambda text: None)
        for case in tune.dropped(ffn_session.run, ffn_session.options):
            ffn_session.not_measured(case, "skipped", "the table was changed meanwhile: it is no candidate any more")
    return ffn_session


@pytest.fixture(scope="session")
def ffn_instruments(ffn_options):
    """What makes the gate and the SM clock, where a GPU is timed and Triton is there."""
    if ffn_options.device != "cuda" or not ffn_options.timed or not find_spec("triton"):
        return None
    from kernels.instruments import Instruments

    return Instruments
