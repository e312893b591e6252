"""Whose work a model does next, for how many there is room, and which models are loaded."""
