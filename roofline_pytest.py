"""pytest's entry point: begins pytest anew in the checkout where it took another folder for its root.

pytest looks for its root beside every word that is an existing path, as in `pytest --benchmark-only --ffn-results DIR`,
and loads the conftest.py that knows our options from there alone. Imports nothing of the checkout: another one may be
installed than the one that is run.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 it was closed, and pytest writes to it
PLUGIN = "roofline.pytest_plugin.hooks"
ALONE = "--ffn-quick", "--ffn-fail-slower", "--ffn-no-report"
"""Options that need no value: a test compares them with those of roofline/operations/options.py."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config):
    words, has_path = joined(map(str, early_config.invocation_params.args))
    ours = [word for word in words if word.startswith("--ffn")]
    folders = Path.cwd(), *Path.cwd().parents, Path(__file__).parent
    root = next(folder for folder in folders if (folder / "roofline/pytest_plugin/hooks.py").exists())
    is_begun = any(word.startswith("--rootdir") for word in words)
    has_tests = any(word in words for word in early_config.known_args_namespace.file_or_dir)
    if ours and has_path and not is_begun:  # before a conftest.py of that path is run
        begin(root, words, has_tests)
    loaded = yield
    if ours and not early_config.pluginmanager.has_plugin(PLUGIN):
        if is_begun:
            print(f"{ours[0]} is an option of roofline-ffn: run pytest from its checkout", file=sys.stderr)
            raise SystemExit(2)
        begin(root, words, has_tests)
    return loaded


def joined(arguments: Iterable[str]) -> tuple[list[str], bool]:
    """Return the words of a command line, of which `--ffn-name value` is one, and whether such a value is a path:
    beside it pytest would look for its root, and for conftests."""
    words: list[str] = []
    has_path = False
    for word in arguments:
        last = words[-1] if words else ""
        if last.startswith("--ffn") and "=" not in last and last not in ALONE and not word.startswith("--"):
            words[-1] += f"={word}"
            has_path = has_path or Path(word).exists()
        else:
            words.append(word)
    return words, has_path


def begin(root: Path, words: list[str], has_tests: bool) -> NoReturn:
    """Become pytest in the checkout `root`, with its benchmarks where the words name no tests."""
    benchmarks = [] if has_tests else [str(root / "tests" / "benchmarks")]
    checkout = [f"--rootdir={root}", "-c", str(root / "pyproject.toml")]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *checkout, *words, *benchmarks])
