"""Runtimes behind one interface, `base`."""
