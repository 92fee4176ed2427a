"""A run on disk and in memory."""
