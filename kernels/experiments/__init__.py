"""What stands aside until a card decides: `decode_ring`, and the trial that asks it (`python -m kernels.trial`)."""
