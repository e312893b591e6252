"""Language models; their interface is in `base`."""
