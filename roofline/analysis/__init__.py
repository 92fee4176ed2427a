"""What operations are judged by: a record for each case, and the frame of a run. `fields.toml` declares each field."""
