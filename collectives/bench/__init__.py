"""How the operations that gather over a wire run."""
