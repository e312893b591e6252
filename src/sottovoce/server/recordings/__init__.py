"""Recordings of requests: taken within limits, decoded, transcribed."""
