"""Whole recordings: long form, batches, word times."""
