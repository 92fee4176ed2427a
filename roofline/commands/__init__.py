"""`roofline` and its commands."""
