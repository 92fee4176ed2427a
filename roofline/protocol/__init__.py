"""What a supervisor and a worker agree on: the one room that both import."""
