"""The CTC prefix search as machine code (extra `fast`), rule by rule the same as in tensors."""
