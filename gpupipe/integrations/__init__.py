"""What some trainers need beyond a DataLoader's interface. No module here imports a trainer that is not in use."""
