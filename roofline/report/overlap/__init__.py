"""How cases that gather or scatter over a wire are shown."""
