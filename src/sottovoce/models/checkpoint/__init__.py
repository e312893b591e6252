"""One reader per checkpoint format."""
