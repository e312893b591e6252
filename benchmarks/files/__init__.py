"""Recordings as files: errors, speed, memory, invented words."""
