"""How cases that compute from device memory are shown."""
