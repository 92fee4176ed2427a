"""The part of a run in pytest's process: it plans, begins workers, journals what they tell, and says whose fault an end
was."""
