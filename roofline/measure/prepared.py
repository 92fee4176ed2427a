"""The former place of what an operation of one's own needs: it is to be imported from `roofline.operations`."""

import warnings

from roofline.worker.prepared import *  # noqa: F403

warnings.warn(
    "roofline.measure.prepared has moved: import Entrant, PreparedCase, Rejection, unwatched and verdict from "
    "roofline.operations",
    FutureWarning,
    stacklevel=2,
)
