"""From decoder logits or CTC emissions to hypotheses."""
