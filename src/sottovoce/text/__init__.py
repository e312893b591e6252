"""Tokens and text: the tokenizer, languages, UTF-8-safe detokenizing, normalising for scores."""
