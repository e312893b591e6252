"""A transcript as one HTML page with nothing beside it."""
