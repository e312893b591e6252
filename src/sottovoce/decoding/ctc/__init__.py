"""CTC decoding: greedy, and prefix beam search in tensors or compiled."""
