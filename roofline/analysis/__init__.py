"""A record for each case, and the frame of a run. `fields.toml` declares each field."""
