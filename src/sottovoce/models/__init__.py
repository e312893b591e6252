"""Whisper in PyTorch, its CTC head, and the checkpoints it loads."""
