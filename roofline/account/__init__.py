"""`roofline account`: memory, the bound that the links set, and what moves it, for a model, a sharding and a chip."""
