"""The CTC search and its language models."""
