"""Whisper in PyTorch, CTC heads, and checkpoint formats."""
