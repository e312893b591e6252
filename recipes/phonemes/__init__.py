"""Speech to text through the phonemes of an open CTC network, a lexicon, and language models."""
