"""A transcript as one self-contained HTML page."""
