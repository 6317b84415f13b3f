"""What `gpupipe new` writes: a training script for the user's data."""
