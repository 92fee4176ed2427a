"""PTX's instructions, a file for each family."""
