"""The transcript as one page that a browser opens, with nothing beside it."""
