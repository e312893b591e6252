"""Former names of `sottovoce.runtime`."""
