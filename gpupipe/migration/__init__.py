"""From what is there already to gpupipe: a Loader from a DataLoader, its dataset and its sampler."""
