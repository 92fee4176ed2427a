"""What one call moved (Nsight Compute), and which kernels it ran."""
