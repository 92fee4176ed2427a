"""Fixtures of the benchmarks: which cases there are, and how `matmul_lineup` prepares one."""

from contextlib import suppress

import matmul_lineup
import pytest

from roofline.plugin import STATE, refuse


def pytest_generate_tests(metafunc):
    if {"shape", "contender"} <= set(metafunc.fixturenames):
        options = metafunc.config.stash[STATE].options
        with suppress(ValueError):  # told below, in one line: here it would end in a traceback
            pairs = [(case.id, name) for case in options.matmuls for name in matmul_lineup.names_of(options)]
            metafunc.parametrize("shape, contender", pairs, ids=["-".join(pair) for pair in pairs])


def pytest_collection_modifyitems(config):
    try:
        matmul_lineup.names_of(config.stash[STATE].options)
    except ValueError as error:
        refuse(str(error))


@pytest.fixture(scope="session")
def ffn_options(request):
    return request.config.stash[STATE].options


@pytest.fixture(scope="session")
def ffn_prepare(ffn_options):
    """`ffn_prepare(shape, names)`: the line-up of the matmul that the id `shape` names."""
    cases = {case.id: case for case in ffn_options.matmuls}
    return lambda shape, names: matmul_lineup.prepare(ffn_options, cases[shape], names)


@pytest.fixture(scope="session")
def ffn_probes(ffn_options):
    return matmul_lineup.probes(ffn_options)
