"""What the examples of the package's page print, by either of its names, and what of that the page does not show."""

import contextlib
import importlib
import io
import re
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1]
PAGE = (FOLDER / "README.md").read_text()
TOTAL, EXAMPLE, DOUBLED, PLAIN = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CODES = "1", "0", "1", "1", "None"
NUMBER = re.compile(r"(?:total|doubled)\.py:\d+|(\d[\d.]*)")


def said(main, *words: str) -> str:
    """What the command prints, and its exit code."""
    code = None
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            code = main([*words])
        except SystemExit as end:
            code = end.code
    return f"{out.getvalue()}{code}"


def printed(name: str) -> list[str]:
    """What the page's examples print: a sum, mended and not; a test; a ring as it is, and without either of two lines;
    plain PTX without its barrier."""
    main = importlib.import_module(f"{name}.command").main
    lines = "mbarrier.wait(empty, ", "mbarrier.arrive(empty"
    texts = []
    with tempfile.TemporaryDirectory() as folder:
        for text in (TOTAL.replace(', sem="relaxed"', ""), TOTAL):
            (Path(folder) / "total.py").write_text(text)
            texts.append(said(main, f"{folder}/total.py::total"))
        (Path(folder) / "test_add.py").write_text(EXAMPLE.replace("triton_machine", name))
        importlib.import_module(f"{name}.command").load(Path(folder) / "test_add.py").test_add()
        for text in (DOUBLED, *(DOUBLED.replace(line, f"# {line}") for line in lines)):
            (Path(folder) / "doubled.py").write_text(text)
            texts.append(said(main, f"{folder}/doubled.py::doubled"))
        (Path(folder) / "test_reverse.py").write_text(PLAIN.replace("triton_machine", name))
        module = importlib.import_module(f"{name}.command").load(Path(folder) / "test_reverse.py")
        texts.append(said(lambda words: module.test_reverse()))
    return texts


def shape(text: str) -> list[str]:
    """Its lines but for numbers, which depend on Triton's version."""
    lines = [line for line in text.splitlines() if not re.match(r" *PTX line", line)]
    return [NUMBER.sub(lambda match: "N" if match[1] else match[0], line.strip()) for line in lines]


def differences(name: str) -> list[str]:
    """Lines that the page's examples print and the page does not show, and outputs that end otherwise than expected."""
    mended, *texts = printed(name)
    shown = {*shape(PAGE), "triton N, sm_Na: N cases under N orders of events, N bad"}
    wrong = []
    if "exact: as expected under 8 orders of events" not in mended:
        wrong.append(mended)
    if len(shape(texts[0])) <= 10:
        wrong.append(texts[0])
    for text, code in zip(texts, CODES, strict=True):
        if not text.endswith(code):
            wrong.append(text)
        wrong += [line for line in shape(text.removesuffix(code)) if line not in shown]
    return wrong
