"""The machine by both of its names: `kernels.machine` in this checkout, and `triton_machine` where its wheel is
installed. What the examples of its page print, and what the wheel holds."""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "kernels" / "machine"
PAGE = (FOLDER / "README.md").read_text()
TOTAL, EXAMPLE, DOUBLED, PLAIN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
NAMES = "kernels.machine", "triton_machine"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> str:
    """A folder with the package as pip installs it. Without setuptools, which builds it: with a link to its folder."""
    folder = tmp_path_factory.mktemp("site")
    if importlib.util.find_spec("setuptools") is None:
        (folder / "triton_machine").symlink_to(FOLDER)
        return str(folder)
    source = folder / "source"
    shutil.copytree(FOLDER, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(source)], check=True)
    return str(folder / "site")


def installed(code: str, site: str) -> str:
    return f"import json, sys; sys.path.insert(0, {site!r}); import test_package as t; print(json.dumps({code}))"


def said(main, *words: str) -> str:
    """What the command prints, and its exit code."""
    code = None
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            code = main([*words])
        except SystemExit as end:
            code = end.code
    return f"{out.getvalue()}{code}"


def page(name: str) -> list[str]:
    """What the page's examples print: a sum, mended and not; a test; a ring as it is, and without either of two lines;
    plain PTX without its barrier."""
    main = importlib.import_module(f"{name}.command").main
    lines = "mbarrier.wait(empty, ", "mbarrier.arrive(empty"
    printed = []
    with tempfile.TemporaryDirectory() as folder:
        for text in (TOTAL.replace(', sem="relaxed"', ""), TOTAL):
            (Path(folder) / "total.py").write_text(text)
            printed.append(said(main, f"{folder}/total.py::total"))
        (Path(folder) / "test_add.py").write_text(EXAMPLE.replace("triton_machine", name))
        importlib.import_module(f"{name}.command").load(Path(folder) / "test_add.py").test_add()
        for text in (DOUBLED, *(DOUBLED.replace(line, f"# {line}") for line in lines)):
            (Path(folder) / "doubled.py").write_text(text)
            printed.append(said(main, f"{folder}/doubled.py::doubled"))
        (Path(folder) / "test_reverse.py").write_text(PLAIN.replace("triton_machine", name))
        module = importlib.import_module(f"{name}.command").load(Path(folder) / "test_reverse.py")
        printed.append(said(lambda words: module.test_reverse()))
    return printed


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_what_its_examples_print(printed_elsewhere, site, name):
    """But for numbers, which depend on Triton's version."""

    def shape(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if not re.match(r" *PTX line", line)]
        number = re.compile(r"(?:total|doubled)\.py:\d+|(\d[\d.]*)")
        return [number.sub(lambda m: "N" if m[1] else m[0], line.strip()) for line in lines]

    mended, *texts = printed_elsewhere(installed(f"t.page({name!r})", site))
    assert len(shape(texts[0])) > 10
    assert "exact: as expected under 8 orders of events" in mended
    shown = set(shape(PAGE))
    for text, code in zip(texts, ("1", "0", "1", "1", "None"), strict=True):
        assert text.endswith(code)
        assert set(shape(text.removesuffix(code))) <= shown | {
            "triton N, sm_Na: N cases under N orders of events, N bad"
        }


def advice(name: str) -> list[str]:
    """Where the package lies, and what names it: its usage, and what it says of an instruction that it lacks."""
    command, report = (importlib.import_module(f"{name}.{part}") for part in ("command", "report"))
    unknown = importlib.import_module(f"{name}.core.faults").UnknownError("tcgen05")
    return [command.__file__, said(command.main, "--help"), said(command.main, "--coverage"), report.lacking(unknown)]


@pytest.mark.parametrize("name", NAMES)
def test_advice_names_the_package_as_it_was_imported(printed_elsewhere, site, name):
    file, usage, coverage, lacking = printed_elsewhere(installed(f"t.advice({name!r})", site))
    assert Path(file).is_relative_to(FOLDER if name == "kernels.machine" else site)
    assert usage.startswith(f"usage: python -m {name} ")
    assert "\n| `wgmma.fence.sync.aligned` | where it is missing is a fault |\n" in coverage
    assert lacking.endswith(f"python -m {name} --coverage")


def test_without_a_checkout_there_are_no_kernels_of_the_suite(printed_elsewhere, site):
    main = "t.importlib.import_module('triton_machine.command').main"
    for words in ("", ", 'persistent'", ", '--gpu'"):
        text = printed_elsewhere(installed(f"t.said({main}{words})", site))
        assert text == "python -m triton_machine: it takes FILE::NAME of a kernel; see --help\n2"


def test_what_is_installed(site):
    """The modules. No tests, and nothing of a build before."""
    if not (records := [*Path(site).glob("*.dist-info")]):
        pytest.skip("setuptools is not installed, so nothing was built")
    package = Path(site) / "triton_machine"
    files = {path.relative_to(package) for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert files == {path.relative_to(FOLDER) for path in FOLDER.rglob("*.py")}
    assert {path.name for path in Path(site).iterdir()} == {"triton_machine", "bin", records[0].name}
    points = importlib.metadata.Distribution.at(records[0]).entry_points
    assert {(point.group, point.name, point.value) for point in points} == {
        ("console_scripts", "triton-machine", "triton_machine.command:main"),
        ("pytest11", "triton_machine", "triton_machine.plugin"),
    }


def test_pytest_imports_neither_torch_nor_triton_where_the_machine_is_not_asked_for(site, tmp_path):
    (tmp_path / "test_light.py").write_text(
        "import sys\n\n\ndef test_light():\n    assert not {'torch', 'triton', 'numpy'} & {*sys.modules}\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-ptriton_machine.plugin", "-pno:cacheprovider", "test_light.py"]
    environment = os.environ | dict(PYTHONPATH=site, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_another_triton_and_forked_processes_take_the_same_name(site, tmp_path):
    """--triton, in a folder where nothing else is; in place of the other Triton's wheel lies an empty folder."""
    (tmp_path / "triton-machine" / "triton-9.9").mkdir(parents=True)
    (tmp_path / "total.py").write_text(TOTAL.replace(', sem="relaxed"', ""))
    environment = os.environ | dict(PYTHONPATH=site, XDG_CACHE_HOME=str(tmp_path))
    environment.pop("TRITON_INTERPRET", None)
    words = ["--triton", "9.9", "total.py::total", "--seeds", "3", "--processes", "2"]
    command = [sys.executable, "-m", "triton_machine", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "exact: as expected under 3 orders of events" in done.stdout, done.stderr
    assert done.returncode == 0
