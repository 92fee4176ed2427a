"""Kernel names in words: what a library's name says of its tile, and the rest shortened for a table.

cuBLAS names its Hopper kernels as in `nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT`: types of operands, sum and result,
tile, depth of a step along K and stages, cluster, and more. NVIDIA does not document them; what is decoded here is what
public traces agree on (as in https://github.com/NVIDIA/Fuser/issues/3279). cuBLAS counts by columns, so that of our
row-major out[M, N] the first size of its tile lies along N: traces of single tokens have tiles of 64x8 and 192x8.
"""

import re

NVJET = re.compile(r"nvjet_(?:sm\d+_)?[a-z]+_(\d+x\d+)_(\d+)x(\d+)_(\d+x\d+)(_.*)?")
LONGEST = 48


def words(kernel_name: str) -> str:
    """Return the names in `kernel_name`, joined by ` + `, in words where they are known, else shortened.

    >>> words("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT")
    'tile 256x128, BK 64, 4 stages, cluster 1x2'
    >>> words("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT + void cublasLt::splitKreduce_kernel<32, 16, float>(int)")
    'tile 64x8, BK 64, 16 stages, cluster 4x1, split-K + splitKreduce_kernel'
    """
    return " + ".join(_words(name) for name in kernel_name.split(" + "))


def _words(name: str) -> str:
    if not (match := NVJET.fullmatch(name)):
        return _short(name)
    tile, depth, stages, cluster, rest = match.groups()
    split = ", split-K" if "splitK" in (rest or "") else ""
    return f"tile {tile}, BK {depth}, {stages} stages, cluster {cluster}{split}"


def _short(name: str) -> str:
    """Without what it returns, its namespaces, the arguments of its template and its own."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)", "").replace("<unnamed>", "")
    bare = re.split(r"[<(]", bare, maxsplit=1)[0].strip().rpartition("::")[2] or name
    return bare if len(bare) <= LONGEST else f"{bare[: LONGEST - 3]}..."
