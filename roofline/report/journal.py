"""The journal (`samples.jsonl`): everything a run measured, line by line, as soon as it is known.

It is the one source of tables and plots, so that a run that died can still be reported. Lines are JSON objects with a
`kind`; results/README.md documents them. Records hold primitives in SI units; derived fields are `records.derive`'s.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

SCHEMA = 1
NAME = "samples.jsonl"


class Journal:
    """Makes `folder` and appends lines to its samples.jsonl, flushed to the disk's cache after every `write`."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True)
        self._file = (folder / NAME).open("a", encoding="utf-8")

    def write(self, *lines: dict) -> None:
        self._file.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@dataclass
class Run:
    """A journal read back."""

    head: dict
    ceilings: list[dict] = field(default_factory=list)
    shapes: dict[str, dict] = field(default_factory=dict)
    """Shape id -> its line, with `times_s`: {contender: {round: seconds}} added."""
    not_measured: list[dict] = field(default_factory=list)
    end: dict | None = None
    """The line that closes a run that came to its end; None if it was cut off."""

    def measured(self, shape_id: str) -> list[str]:
        """Contenders that have samples on a shape."""
        shape = self.shapes.get(shape_id, {"contenders": {}})
        return [name for name in shape["contenders"] if shape["times_s"].get(name)]

    def cases(self):
        """(shape, contender) of every row: what was asked for, and the vendor beside it."""
        for shape_id, shape in self.shapes.items():
            for name in self.measured(shape_id):
                yield shape, name


def load(folder: Path) -> Run:
    """The run in `folder`. A last line that was cut off is ignored. Raises ValueError if it is no journal of ours."""
    path = Path(folder) / NAME
    if not path.is_file():
        raise ValueError(f"{folder} is no run folder: it has no {NAME}; give one of results/local or results/reference")
    run: Run | None = None
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, text in enumerate(lines, 1):
        if not text:
            continue
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            if number == len(lines):  # no newline after it: the run was killed while it wrote
                break
            raise ValueError(f"{path}:{number} is not JSON ({error.msg}): the journal is damaged") from None
        kind = line.pop("kind", None) if isinstance(line, dict) else None
        if run is None:
            if kind != "run" or line.get("schema") != SCHEMA:
                raise ValueError(f"{path} is no journal of schema {SCHEMA}: it begins with {text[:60]!r}")
            run = Run(line)
        elif kind == "ceiling":
            run.ceilings.append(line)
        elif kind == "shape":
            run.shapes[line["shape"]] = line | {"times_s": {}}
        elif kind == "sample":
            if line["shape"] not in run.shapes:
                raise ValueError(f"{path}:{number} has a sample of {line['shape']!r}, a shape that no line describes")
            times = run.shapes[line["shape"]]["times_s"]
            times.setdefault(line["contender"], {})[line["round"]] = line["time_s"]
        elif kind == "not_measured":
            run.not_measured.append(line)
        elif kind == "end":
            run.end = line
        else:
            raise ValueError(f"{path}:{number} has a line of unknown kind {kind!r}")
    if run is None:
        raise ValueError(f"{path} is empty: the run ended before it began")
    return run
