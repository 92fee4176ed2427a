"""What each process of `elsewhere` needs: Triton, and the key of its compile cache, a hash of its own files."""

import triton  # noqa: F401
from triton.runtime import cache

getattr(cache, "triton_key", int)()
