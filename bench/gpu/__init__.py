"""What `bench/gpu/run.sh` runs on a GPU machine, one file for each part; README.md beside this says how."""
