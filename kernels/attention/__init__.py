"""The operation `attention`: what it means (`operation`), how it runs (`bench`), our kernel, and its figure."""
