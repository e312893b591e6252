"""Language models; `base` has their interface."""
