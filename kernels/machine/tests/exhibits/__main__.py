"""A row of each exhibit, then the confusion matrix, for the Triton that is installed: exhibits/README.md."""

from collections import Counter

import triton

from . import EXHIBITS
from .exhibit import outcome, row

counts: Counter = Counter()
for exhibit in EXHIBITS.values():
    judgements = exhibit.judgements()
    print(row(exhibit, judgements[False]), flush=True)
    counts.update(outcome(exhibit, mended, verdicts) for mended, verdicts in judgements.items())
ANSWERS = "found", "found in some orders", "exact", "unknown"
print(f"\n| Triton {triton.__version__} | {' | '.join(ANSWERS)} |\n|---|---|---|---|---|")
for guilty, title in ((True, "with a mistake"), (False, "without")):
    print(f"| {title} | {' | '.join(str(counts[guilty, answer]) for answer in ANSWERS)} |")
