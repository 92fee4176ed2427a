"""The pytest plugin: hooks, options, the replay timer, pytest-benchmark's JSON, signals."""
