"""`roofline account`: memory, the bound of the wire, and what moves it, for a model, a sharding and a chip."""
