"""Resumable transcription of many recordings into the rows of a table."""
