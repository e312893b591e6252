"""Transcription of whole recordings."""
