"""What happens to a batch on its device: augmented, finished, mixed, ahead of the consumer."""
