"""Search: from decoder steps or CTC emissions to hypotheses."""
