"""Published races, hangs and miscompilations of kernels like ours, each in some 30 lines, with what mends it.

Who gives `make` False gets the mistake, who gives True the same kernel without it. `python -m` of this package prints
what the machine says of this Triton's code.
"""

from . import buffers, clusters, compilers, fences, rings, signals, stores, values

FAMILIES = signals, stores, values, rings, buffers, fences, clusters, compilers
EXHIBITS = {exhibit.name: exhibit for family in FAMILIES for exhibit in family.EXHIBITS}
