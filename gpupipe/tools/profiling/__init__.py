"""What `gpupipe profile` runs: training with the real loader and with cached batches, in turn."""
