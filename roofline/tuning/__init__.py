"""A tuning: what its rounds say."""
