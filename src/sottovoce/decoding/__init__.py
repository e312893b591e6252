"""From decoder logits to hypotheses."""
