"""The pytest plugin: hooks, options, the replay timer, what a run says and saves, signals, the watchdog."""
