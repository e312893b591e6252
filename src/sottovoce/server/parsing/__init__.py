"""What clients write, read without trust: JSON, values, forms; and the faults that answer it."""
