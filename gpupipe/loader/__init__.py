"""The DataLoader-compatible stream of batches."""
