"""Epochs under disturbance for an hour, each batch compared with a quiet run's.

lives.py    what a loader goes through in its life: decided by the seed
player.py   plays it, in a process of its own; and what a quiet run gives
faults.py   stops, kills, renamed files, memory that others take
checks.py   what must hold of what came
"""
