"""What is done with words: alignment, phrases, grammars, names, hesitations."""
