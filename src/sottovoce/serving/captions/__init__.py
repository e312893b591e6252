"""Captions of a session that others read: on pages, and as HLS."""
