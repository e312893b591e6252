"""Captions of a session that others read."""
