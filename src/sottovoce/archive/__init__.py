"""Transcribe many recordings into rows of one table; after a crash it goes on where it stopped."""
