"""Runtimes behind one seam: see base."""
