"""Errors by the language that was spoken, in recordings that switch: a transcript shared out over the spans.

Not known here: how spans come about, and when words were said.
"""

from __future__ import annotations

from collections.abc import Sequence

from sottovoce.evaluation.latency import ReferenceSegment, resegment
from sottovoce.evaluation.manifest import LabelledSpan
from sottovoce.evaluation.wer import Utterance, split_units
from sottovoce.text.normalize import normalizer_for


def by_span(spans: Sequence[LabelledSpan], text: str) -> list[Utterance]:
    """One utterance for each span of a recording, with the part of its transcript that belongs to it.

    Units (words; characters of Chinese) go to the span of the reference unit that they are aligned with. No
    utterance where a span's text is not known.
    """
    if not all(span.text for span in spans):
        return []
    normalize = normalizer_for(None)
    units = split_units(normalize(text), "mixed")
    segments = [
        ReferenceSegment(tuple(split_units(normalize(span.text), "mixed")), span.start_s, span.end_s)
        for span in spans
    ]
    pieces = resegment(units, segments)
    return [
        Utterance(span.text, " ".join(units[piece.start : piece.stop]), span.language)
        for span, piece in zip(spans, pieces, strict=True)
    ]
