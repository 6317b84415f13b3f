"""What `gpupipe bench` runs: a sample set, the contenders, the runner that measures them in turn, and the report."""
