"""Recipes from the transforms of other libraries: what they do is carried whole, or refused by name."""
