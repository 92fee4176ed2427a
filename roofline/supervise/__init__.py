"""What runs in pytest's process: it plans, begins shares, journals what they tell, and says whose fault an end was."""
