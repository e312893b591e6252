"""Access control: names of the server, origins, keys and their limits."""
