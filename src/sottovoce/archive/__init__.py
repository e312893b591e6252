"""Transcription of many recordings into a table, and of one recording by several processes."""
