"""Scores of transcripts and live sessions."""
