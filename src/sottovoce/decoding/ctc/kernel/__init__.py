"""The CTC search as machine code (extra `fast`): each rule of the search in tensors once more, on arrays."""
