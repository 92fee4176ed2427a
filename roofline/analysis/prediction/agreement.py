"""How well predictions hold, in Markdown: python3 -m roofline.analysis.prediction.agreement [RUN...]

Without runs it takes the committed ones of the newest method. Within a run, a case is predicted by what has seen none
of its token count. Another run of a kind of chip is predicted by all that the first saw: at the first's ceilings, as
`roofline predict --run` goes, and at its own, as with `--on`. No pair is left out.
"""

import sys
from itertools import permutations
from pathlib import Path

from roofline.analysis.base import grouped
from roofline.analysis.prediction import score, text
from roofline.report.tables import markdown
from roofline.store.journal import load
from roofline.store.run import Run

REFERENCE = Path(__file__).parents[3] / "results" / "reference"


def tables(runs: dict[str, Run]) -> str:
    """A table within `runs`, and one of all ordered pairs for each way to know the ceilings."""
    found = {name: score.predict_run(run, run.records()) for name, run in runs.items()}
    titled = {"Within a run, by its other token counts": {name: one.scored for name, one in found.items()}}
    for ceilings in ("the first's", "its own"):
        scored = titled[f"Another run, at {ceilings} ceilings"] = {}
        for one, other in permutations(runs, 2):
            model = found[one].model
            if runs[one].metadata["machine"]["chip"] == runs[other].metadata["machine"]["chip"]:
                if ceilings == "its own":
                    model = model.at_ceilings_of(found[other].model)
                known = [record for record in found[other].scored if score.knows(model, record)]
                scored[f"{one}, asked for {other}"] = [r | score.score(runs[other], model, r) for r in known]
    return "\n\n".join(f"{title}:\n\n{_table(groups)}" for title, groups in titled.items() if groups)


def _table(groups: dict[str, list[dict]]) -> str:
    """Of the scored cases of each of `groups`, and of all together: with and without what gathers."""
    every = {"all": [one for scored in groups.values() for one in scored]}
    rows = [
        {"case": f"{name}{', matmuls alone' * (op == 'matmul')}"} | errors
        for name, scored in (groups | every).items()
        for op, errors in text.scores(scored).items()
        if op == "matmul" or (op == "all" and {one["op"] for one in scored} != {"matmul"})
    ]
    return markdown(rows, text.SCORES)


def main(arguments: list[str]) -> str:
    """What the command prints of the runs whose folders `arguments` names, or of the committed ones."""
    loaded = {path.name: load(path) for path in map(Path, arguments or sorted(REFERENCE.iterdir()))}
    methods = grouped((run.metadata["method_version"], name) for name, run in loaded.items())
    return tables({name: loaded[name] for name in methods[max(methods)]})


if __name__ == "__main__":
    print(main(sys.argv[1:]))
