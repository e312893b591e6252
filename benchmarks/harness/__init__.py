"""What every benchmark shares: clips, sounds, other programs, logs, tables, the JSON line."""
