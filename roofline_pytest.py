"""pytest's entry point: begins pytest anew in the checkout where it took another folder for its root.

pytest looks for its root beside every word that is an existing path, as in `pytest --benchmark-only --ffn-results DIR`,
and loads the conftest.py that knows our options from there alone. Imports nothing of the checkout: another one may be
installed than the one that is run.
"""

import os
import sys
from pathlib import Path

import pytest

PLUGIN = "roofline.pytest_plugin.hooks"
ALONE = ("--ffn-steady", "--ffn-quick", "--ffn-counters", "--ffn-tune")
"""Options that need no value."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config):
    loaded = yield
    given = [str(word) for word in early_config.invocation_params.args]
    ours = [word for word in given if word.startswith("--ffn")]
    if ours and not early_config.pluginmanager.has_plugin(PLUGIN):
        here, known = Path.cwd(), Path(*PLUGIN.split(".")).with_suffix(".py")
        root = next((one for one in (here, *here.parents, Path(__file__).parent) if (one / known).exists()), None)
        if root is None or any(word.startswith("--rootdir") for word in given):
            print(f"{ours[0]} is an option of roofline-ffn: run pytest from its checkout", file=sys.stderr)
            raise SystemExit(2)
        words = joined(given)
        places = [word for word in early_config.known_args_namespace.file_or_dir if word in words]
        words += [] if places else [str(root / "tests" / "benchmarks")]
        root_words = [f"--rootdir={root}", "-c", str(root / "pyproject.toml")]
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *root_words, *words])
    return loaded


def joined(words: list[str]) -> list[str]:
    """`words` with each of our options and its value in one, as `--ffn-results=DIR`.

    >>> joined(["--ffn-tp", "8", "--ffn-quick", "tests", "--ffn-model=xxl", "-k", "torch"])
    ['--ffn-tp=8', '--ffn-quick', 'tests', '--ffn-model=xxl', '-k', 'torch']
    """
    found, waits = [], False
    for word in words:
        if waits and not word.startswith("--"):
            found[-1] += f"={word}"
        else:
            found.append(word)
        waits = found[-1] == word and word.startswith("--ffn") and "=" not in word and word not in ALONE
    return found
