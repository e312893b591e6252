"""Live recognition: one stream, and the session that follows the speaker."""
