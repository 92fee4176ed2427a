"""The table of exhibits, as docs/machine.md has it."""

from exhibits import EXHIBITS
from exhibits.exhibit import row

for exhibit in EXHIBITS.values():
    print(row(exhibit), flush=True)
