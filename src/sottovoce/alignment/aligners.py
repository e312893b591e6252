"""Time the words of one window: by the decoder's attention, or by the path of a CTC head."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from sottovoce.alignment.given_text import Unit
from sottovoce.audio.vad import SpeechSegment
from sottovoce.backends.base import Backend
from sottovoce.decoding.alignment import TimedWord, WindowText, align_windows
from sottovoce.decoding.ctc.align import align
from sottovoce.decoding.ctc.labels import SEPARATORS
from sottovoce.decoding.ctc.state import token_times
from sottovoce.errors import OptionError
from sottovoce.models.ctc_head import CtcHead
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import FRAMES_PER_SECOND, EncoderOutput


@dataclass(frozen=True, slots=True)
class AttentionAligner:
    """Times words by the cross-attention of the decoder, which is fed the text."""

    backend: Backend

    def timed(self, encoded: EncoderOutput, units: Sequence[Unit], tokenizer: Tokenizer) -> list[TimedWord]:
        """Time every unit; seconds from the start of the window."""
        tokens = tuple(token for unit in units for token in unit.tokens)
        text = WindowText(tokenizer, tokens, 2 * encoded.n_content_frames[0])
        found = align_windows(self.backend, encoded, [text])[0]
        if [word.tokens for word in found] == [unit.tokens for unit in units]:
            return found
        return _regrouped(found, units)


def _regrouped(found: Sequence[TimedWord], units: Sequence[Unit]) -> list[TimedWord]:
    """Join tokens by the units' own bounds, where the words of a window are cut otherwise than those of its
    lines.
    """
    pieces = [piece for word in found for piece in word.pieces]
    words, done = [], 0
    for unit in units:
        own = tuple(pieces[done : done + len(unit.tokens)])
        done += len(unit.tokens)
        probability = sum(piece.probability for piece in own) / len(own)
        words.append(TimedWord(unit.text, unit.tokens, own[0].start, own[-1].end, probability, own))
    return words


class CtcAligner:
    """Times words by the most probable path of a CTC head that spells the text; letters that it lacks are
    skipped.
    """

    def __init__(self, head: CtcHead) -> None:
        self._head = head
        self._ids = {name: i for i, name in enumerate(head.labels) if name and i != head.blank}
        self._gap = next((self._ids[name] for name in SEPARATORS if name in self._ids), None)

    def timed(self, encoded: EncoderOutput, units: Sequence[Unit], tokenizer: Tokenizer) -> list[TimedWord]:
        """Time every unit; seconds from the start of the window.

        Raises: OptionError for more text than can be said in the window.
        """
        emissions = self._head.emissions_of(encoded)
        n_frames = encoded.n_content_frames[0]
        labels, owners = self._spelled(units)
        if not labels:
            return [TimedWord(unit.text, unit.tokens, 0.0, 0.0, 0.0) for unit in units]
        spans = align(
            emissions.log_probs[:1, :n_frames].float().cpu(),
            torch.tensor([n_frames]),
            torch.tensor([labels]),
            torch.tensor([len(labels)]),
            rows=torch.tensor([0]),
            blank=self._head.blank,
        )
        if not torch.isfinite(spans.score).all() or float(spans.score[0]) < -1e9:
            raise OptionError(
                f"text: expected what can be said in {n_frames / FRAMES_PER_SECOND:.1f} s, "
                f"got {len(labels)} letters"
            )
        times = token_times(spans, [len(labels)])[0]
        return _by_owner(units, owners, times.first, times.last, times.peak)

    def check(self, units: Sequence[Unit]) -> None:
        """Check that the head has at least one letter of the text.

        Raises: OptionError where nothing would have a time.
        """
        if not self._spelled(units)[0]:
            letters = "".join(sorted(name for name in self._ids if name.isalpha() and len(name) == 1))
            raise OptionError(
                f"method 'ctc': expected a text in the letters of the model's head ({letters}), got none of "
                "them; 'attention' aligns any text"
            )

    def _spelled(self, units: Sequence[Unit]) -> tuple[list[int], list[int | None]]:
        """Return the label ids of the text, and the unit of each; separators between words belong to none."""
        labels: list[int] = []
        owners: list[int | None] = []
        for number, unit in enumerate(units):
            ids = [self._ids[name] for letter in unit.letters if (name := self._name(letter)) is not None]
            if ids and labels and self._gap is not None and unit.text[:1].isspace():
                labels.append(self._gap)
                owners.append(None)
            labels += ids
            owners += [number] * len(ids)
        return labels, owners

    def _name(self, letter: str) -> str | None:
        return next((name for name in (letter, letter.upper()) if name in self._ids), None)


def _by_owner(
    units: Sequence[Unit],
    owners: Sequence[int | None],
    first: Sequence[int],
    last: Sequence[int],
    peak: Sequence[float],
) -> list[TimedWord]:
    words: list[TimedWord] = []
    at = 0.0
    for number, unit in enumerate(units):
        own = [i for i, owner in enumerate(owners) if owner == number]
        if own:
            start, end = first[own[0]] / FRAMES_PER_SECOND, (last[own[-1]] + 1) / FRAMES_PER_SECOND
            probability = math.exp(sum(peak[i] for i in own) / len(own))
        else:
            start, end, probability = at, at, 0.0
        words.append(TimedWord(unit.text, unit.tokens, start, end, probability))
        at = end
    return words


REACH_S = 0.4
"""How far a word beside a pause is stretched to where speech begins or ends."""
SHORTEST_S = 0.06


def move_to_speech(words: Sequence[TimedWord], speech: Sequence[SpeechSegment]) -> list[TimedWord]:
    """Move words to the speech that they overlap most: bounds in silence, and those beside a pause.

    speech: in the same seconds as the words. A word that overlaps none by `SHORTEST_S` stays. One with a
    pause before or after it begins or ends with the speech, if that is within `REACH_S`.
    """
    homes = [_home(word, speech) for word in words]
    spoken = [i for i, home in enumerate(homes) if home is not None and words[i].word.strip(SIGNS)]
    moved = list(words)
    for place, i in enumerate(spoken):
        home = homes[i]
        assert home is not None
        before = homes[spoken[place - 1]] if place else None
        after = homes[spoken[place + 1]] if place + 1 < len(spoken) else None
        start, end = max(words[i].start, home.start_s), min(words[i].end, home.end_s)
        if before != home and start - home.start_s <= REACH_S:
            start = home.start_s
        if after != home and home.end_s - end <= REACH_S:
            end = home.end_s
        moved[i] = replace(words[i], start=start, end=end)
    return _signs_after(moved, set(spoken))


def _signs_after(words: list[TimedWord], spoken: set[int]) -> list[TimedWord]:
    """Move signs behind the words that they follow, whose ends they would cut off else."""
    for i in range(1, len(words)):
        if i not in spoken:
            least = words[i - 1].end
            words[i] = replace(words[i], start=max(words[i].start, least), end=max(words[i].end, least))
    return words


SIGNS = " .,;:!?…\"'()[]{}«»“”‘’„¿¡-–—。，！？、：；「」『』"


def _home(word: TimedWord, speech: Sequence[SpeechSegment]) -> SpeechSegment | None:
    """Find the speech that a word overlaps most; None where it overlaps none by `SHORTEST_S`."""
    best, most = None, SHORTEST_S
    for segment in speech[bisect_left(speech, word.start, key=lambda one: one.end_s) :]:
        if segment.start_s >= word.end:
            break
        shared = min(word.end, segment.end_s) - max(word.start, segment.start_s)
        if shared > most:
            best, most = segment, shared
    return best


def in_order(words: Sequence[TimedWord]) -> list[TimedWord]:
    """Clip times so that no word begins before the one before it, and none ends after the next one begins."""
    if not words:
        return []
    ordered = [words[0]]
    for word in words[1:]:
        start = max(word.start, ordered[-1].start)
        ordered[-1] = replace(ordered[-1], end=max(ordered[-1].start, min(ordered[-1].end, start)))
        ordered.append(replace(word, start=start, end=max(start, word.end)))
    return ordered
