"""CTC emissions to text: greedy, and prefix beam search in tensors or compiled."""
