"""Files of data that lie beside the modules which own them."""

import tomllib
from pathlib import Path


def tables_of(module: str, name: str) -> dict:
    """The tables of the file `name`, in the folder of a module's file."""
    return tomllib.loads(Path(module).with_name(name).read_text(encoding="utf-8"))
