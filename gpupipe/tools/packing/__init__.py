"""The parts of `gpupipe.tools.pack`: what is written where, and by whom."""
