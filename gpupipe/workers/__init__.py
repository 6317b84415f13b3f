"""What makes the worker processes of a torch DataLoader safe, whatever their work is."""
