"""What the compiler made of the kernels."""
