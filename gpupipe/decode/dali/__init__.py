"""The engine on NVIDIA DALI."""
