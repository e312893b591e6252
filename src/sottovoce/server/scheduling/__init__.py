"""Scheduling of the work of models, admission of sessions, and the loaded models."""
