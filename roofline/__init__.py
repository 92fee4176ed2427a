"""What kernel benchmark numbers mean: work, chips, rooflines, measurement and reports.

`roofline.theory` needs the standard library only; `roofline.measure` and `roofline.plugin` need torch and pytest.
"""

__version__ = "0.1.0"
