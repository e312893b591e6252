"""Language models of a search: n-grams, lexicons, phrase boosting, grammars and neural models."""

HOTWORD_WEIGHT = 2.0
"""Default score of each token of a hotword (nats); at 3 base begins to repeat itself (docs/lm-fusion.md)."""
