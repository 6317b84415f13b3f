"""Facts of the machine and of this process, each once."""
