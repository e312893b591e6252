"""Language identification over time."""
