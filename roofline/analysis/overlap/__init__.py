"""How much of a gather hides behind the matmul that needs it, and how much could."""
