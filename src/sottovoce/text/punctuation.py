"""Punctuation that ends sentences and clauses, in the scripts of Whisper's languages."""

from __future__ import annotations

SENTENCE_ENDS = tuple(".!?。！？…؟।")
CLAUSE_ENDS = tuple(",;:，、；：،؛–—")
CLOSING_MARKS = "\"'”’»)]）」』"
"""Quotation marks and brackets that may follow the end of a sentence."""
