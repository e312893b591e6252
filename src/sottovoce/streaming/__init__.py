"""Live recognition."""
