"""The operation `transformer_step`: what it means (`operation`), how it runs (`bench`), its model, and its figure."""
