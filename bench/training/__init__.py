"""What `train_imagenet.py` is made of: the loaders it can train with, and their comparison."""
