"""Language models behind one seam: see base."""
