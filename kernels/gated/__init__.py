"""The operation `ffn_gated`: what it means (`operation`), how it runs (`bench`), and the kernel of its first half."""
