"""Batched execution of the model calls of many sessions and recordings."""
