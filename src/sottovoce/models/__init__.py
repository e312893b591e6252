"""Whisper in PyTorch, CTC heads, checkpoint formats, and the interface of a loaded model."""
