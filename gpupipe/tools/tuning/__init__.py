"""What `gpupipe tune` runs: candidates are measured in a child process, searched by stages, and the best played off."""
