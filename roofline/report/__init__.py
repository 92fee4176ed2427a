"""Reports from saved data alone: the journal, derived fields, tables and plots. Needs no torch and no GPU."""
