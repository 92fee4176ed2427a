"""The pytest plugin: hooks, selection, the replay timer, what a run says and saves, ranks that go together."""
