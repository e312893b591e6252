"""Measures: word error, latency, language, switching."""
