"""What kernel benchmark numbers mean: work, chips, rooflines, measurement and reports.

`roofline.theory` needs the standard library only; `roofline.measure` needs torch, `roofline.pytest_plugin` pytest.
"""

__version__ = "0.1.0"
