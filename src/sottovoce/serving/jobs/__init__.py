"""Recordings that are answered later: kept in a folder, transcribed, and told to an address when they are."""
