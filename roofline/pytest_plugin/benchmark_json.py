"""What pytest-benchmark saves of a run, beside its own: chip, ceilings, the record of each case, what has no number."""

import re


class Saving:
    """Plugin that completes pytest-benchmark's JSON. `state` is that of the hooks, whose `session` it reads."""

    def __init__(self, state):
        self._state = state

    def pytest_benchmark_update_machine_info(self, machine_info):
        """Chip, ceilings and versions in; the host's name out, and the name of a kernel built for that host's owner."""
        machine_info.pop("node", None)
        machine_info["release"] = re.match(r"[\d.]*", machine_info.get("release", ""))[0]
        if session := self._state.session:
            machine_info.update(session.run.metadata["machine"], ceilings=session.run.ceilings)

    def pytest_benchmark_update_json(self, config, output_json):
        """Fields by the final ceilings, and what was not measured. Runs for each file saved, with the same outcome.

        Samples are left out: the journal has them, and files of several times the size are not worth a second copy.
        """
        session = self._state.session
        if session is None:
            return
        for entry in output_json["benchmarks"]:
            if not config.option.benchmark_save_data:
                entry["stats"].pop("data", None)
            parameters = entry["params"] or {}
            record = session.record(parameters.get("shape"), parameters.get("contender"))
            if record:
                entry["extra_info"] = record
        output_json["not_measured"] = session.run.missing
