"""`os` and `time` as they were before any file of a user's was imported. What patches the modules themselves changes
neither clocks nor checks."""

import os as _os
import time as _time
from types import SimpleNamespace
from typing import Any

os: Any = SimpleNamespace(**vars(_os))
time: Any = SimpleNamespace(**vars(_time))
