"""Live sessions: errors, delays, changes of language."""
