"""Tests of the package, which lie beside it and are not installed: `make test-machine`, or pytest with this folder.

`small_ptx` runs PTX by hand, `exhibits` and `clean` are catalogues of kernels with and without a mistake, and `suites`
is a tool: other people's kernels on the machine.
"""
