"""Removal of hesitations from segments by the rules of `text.disfluency`; remaining words keep their
times.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from sottovoce.offline.transcriber import Segments, TranscriptionState
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.text.disfluency import DISFLUENCIES, PIECE, VERBATIM_PROMPTS, DisfluencyRules, clean_pieces
from sottovoce.types import Segment, Word

logger = logging.getLogger(__name__)


def in_style(segments: Segments, options: TranscribeOptions, state: TranscriptionState) -> Segments:
    """Yield segments in the requested style; state: counts the segments.

    A language without verified rules is left unchanged, with one warning.
    """
    if options.decoding.verbatim:
        segments = _reporting(segments, "verbatim", VERBATIM_PROMPTS)
    if options.clean:
        written = "en" if options.decoding.task == "translate" else None
        reported = _reporting(segments, "clean", () if written else DISFLUENCIES)
        segments = _cleaned(reported, written, state)
    return segments


def _reporting(segments: Iterator[Segment], style: str, checked: Collection[str]) -> Segments:
    seen = set(checked)
    for segment in segments:
        if checked and segment.language not in seen:
            seen.add(segment.language)
            logger.warning(
                "%s: not verified for language '%s'; its text stays unchanged", style, segment.language
            )
        yield segment


def _cleaned(segments: Iterator[Segment], written: str | None, state: TranscriptionState) -> Segments:
    for segment in segments:
        cleaned = clean_segment(segment, written or segment.language)
        if cleaned is not None:
            number, state.n_cleaned = state.n_cleaned, state.n_cleaned + 1
            yield replace(cleaned, id=number)


def clean_segment(segment: Segment, language: str) -> Segment | None:
    """Return a segment without hesitations; None if nothing remains.

    language: a code; one without rules changes nothing. The tokens stay those of the model.
    """
    rules = DISFLUENCIES.get(language)
    if rules is None:
        return segment
    text = "".join(clean_pieces(PIECE.findall(segment.text), rules).values())
    if text == segment.text:
        return segment
    if not text.strip():
        return None
    if not segment.words:
        return replace(segment, text=text)
    words = clean_words(segment.words, rules)
    if not words:
        return replace(segment, text=text, words=())
    start = segment.start if words[0].start == segment.words[0].start else words[0].start
    end = segment.end if words[-1].end == segment.words[-1].end else words[-1].end
    return replace(segment, text=text, words=words, start=start, end=end)


def clean_words(words: Sequence[Word], rules: DisfluencyRules) -> tuple[Word, ...]:
    groups: list[list[Word]] = []
    for word in words:
        if not groups or word.word[:1].isspace():
            groups.append([])
        groups[-1].append(word)
    left = clean_pieces(["".join(word.word for word in group) for group in groups], rules)
    return tuple(word for index, text in left.items() for word in _rewritten(groups[index], text))


def _rewritten(group: Sequence[Word], text: str) -> Sequence[Word]:
    if text == "".join(word.word for word in group):
        return group
    return [
        replace(
            group[0],
            word=text,
            end=group[-1].end,
            probability=min(word.probability for word in group),
            tokens=tuple(token for word in group for token in word.tokens),
        )
    ]
