"""Which language is spoken, in files."""
