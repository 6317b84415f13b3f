"""Contenders of sources.py: the same images in other kinds of data, by gpupipe and by what their users have today."""
