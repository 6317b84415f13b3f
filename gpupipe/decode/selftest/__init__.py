"""Does this machine's DALI decode correctly? Asked in child processes, so that a crash is an answer and not the end.

Some ways to decode are known to crash or to give wrong pixels on some GPUs and drivers. `try_plans` decodes a made set
of images in a child process for each, with the project's own DALI graph, under load, and compares with Pillow's pixels;
`find_verdict` remembers what that gave on a GPU; `fit` takes from `Decoders` what a GPU may not use. `machine_facts`
asks a child for the versions and GPUs that torch and DALI see, and `run_start_methods` for the multiprocessing start
methods that work.
"""

from __future__ import annotations

# ruff: noqa: F403  (each says what it has for others)
from gpupipe.decode.selftest.facts import *
from gpupipe.decode.selftest.verdict import *
