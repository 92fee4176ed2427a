"""Agreements of a supervisor and a worker: the one room that both import."""
