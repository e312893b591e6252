"""Logit filters, applied to all rows at once, in place; they see the sampled tokens, never the prompt;
and the vocabulary of live decoding.

Source of the first three: openai-whisper 20250625, decoding.py.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from sottovoce.errors import OptionError
from sottovoce.options.decoding import NON_SPEECH, DecodingOptions
from sottovoce.text.languages import SENTENCE_ENDS
from sottovoce.text.tokenizer import SECONDS_PER_TIMESTAMP, Tokenizer
from sottovoce.types import Floats, Ints

FORBIDDEN = float("-inf")


def log_sum_exp(values: Floats) -> Floats:
    """Return the logarithm (R, 1) of the sum of exponentials of each row (R, n)."""
    base = _finite_maximum(values)
    return _log_sum_exp(np.subtract(values, base, order="C")) + base


def log_softmax(logits: Floats) -> Floats:
    """Return natural log-probabilities (R, n) from logits (R, n)."""
    shifted: Floats = np.subtract(logits, _finite_maximum(logits), order="C")
    shifted -= _log_sum_exp(shifted)
    return shifted


def _finite_maximum(values: Floats) -> Floats:
    most = values.max(axis=1, keepdims=True)
    return np.where(np.isfinite(most), most, np.float32(0.0))


def _log_sum_exp(values: Floats) -> Floats:
    with np.errstate(divide="ignore"):  # a row of -inf has the sum 0
        sums = [np.exp(row).sum() for row in values]  # row by row, in the cache of the processor
        return np.log(np.array(sums, np.float32)).reshape(-1, 1)


class LogitFilter(Protocol):
    def apply(self, logits: Floats, sampled: Ints) -> None:
        """Change logits (R, n_vocab) float32 in place, given the sampled tokens (R, n) int64."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SuppressBlank:
    """Forbids a space and the end of text as the first token."""

    tokens: Ints

    def apply(self, logits: Floats, sampled: Ints) -> None:
        if sampled.shape[1] == 0:
            logits[:, self.tokens] = FORBIDDEN


@dataclass(frozen=True, slots=True, eq=False)
class SuppressTokens:
    tokens: Ints

    def apply(self, logits: Floats, sampled: Ints) -> None:
        logits[:, self.tokens] = FORBIDDEN


@dataclass(frozen=True, slots=True)
class ApplyTimestampRules:
    """Timestamps come in pairs, never decrease, begin the window, and win if their sum is more probable than
    any text.

    max_initial: index of the latest first timestamp. follows_text: a prefix; no timestamp is required first.
    """

    eot: int
    timestamp_begin: int
    max_initial: int | None
    follows_text: bool = False

    def apply(self, logits: Floats, sampled: Ints) -> None:
        begin = self.timestamp_begin
        logits[:, begin - 1] = FORBIDDEN
        if sampled.shape[1] == 0 and self.follows_text:
            logits[:, begin] = FORBIDDEN
        elif sampled.shape[1] == 0:
            logits[:, :begin] = FORBIDDEN
            if self.max_initial is not None:
                logits[:, begin + self.max_initial + 1 :] = FORBIDDEN
        else:
            for row, (first_text, first_time) in enumerate(self.allowed([sampled], logits.shape[1]).tolist()):
                logits[row, :first_text] = FORBIDDEN
                logits[row, begin:first_time] = FORBIDDEN
        self._prefer_timestamps(logits)

    def allowed(self, sampled: Sequence[Ints], n_vocab: int) -> Ints:
        """Return the first text token and the first timestamp (R, 2) that may follow each row.

        sampled: (R_i, n_i) each, at least one token.
        """
        begin = self.timestamp_begin
        last, latest = newest_of(sampled) >= begin, latest_of(sampled, begin)
        before = [
            rows[:, -2] >= begin if rows.shape[1] > 1 else np.full(len(rows), not self.follows_text)
            for rows in sampled
        ]
        each = last.astype(np.int64), np.concatenate(before).astype(np.int64), latest
        return np.stack(allowed_after(*each, self.eot, n_vocab), axis=1)

    def _prefer_timestamps(self, logits: Floats) -> None:
        """Force a timestamp if all together are more probable than the best other token."""
        begin = self.timestamp_begin
        forced = log_sum_exp(logits[:, begin:])[:, 0] > logits[:, :begin].max(axis=1)
        logits[forced, :begin] = FORBIDDEN


def newest_of(sampled: Sequence[Ints]) -> Ints:
    """Return the last token (R,) of each row; sampled: (R_i, n_i) each."""
    return np.concatenate([rows[:, -1] for rows in sampled])


def latest_of(sampled: Sequence[Ints], time_begin: int) -> Ints:
    """Return the latest timestamp (R,) of each row; time_begin - 1: none. sampled: (R_i, n_i) each."""
    latest: Ints = np.maximum(np.concatenate([rows.max(axis=1) for rows in sampled]), time_begin - 1)
    return latest


class Number(Protocol):
    """An int, or an array of them in a runtime."""

    def __add__(self: Same, other: int, /) -> Same: ...
    def __sub__(self: Same, other: Same | int, /) -> Same: ...
    def __mul__(self: Same, other: Same | int, /) -> Same: ...


Same = TypeVar("Same", bound=Number)


def allowed_after(last: Same, before: Same, latest: Same, eot: int, n_vocab: int) -> tuple[Same, Same]:
    """Return the first text token and the first timestamp that may follow.

    last, before: 1 if the last token, and the one before it, are timestamps, else 0. latest: id of the latest
    timestamp so far.
    """
    both, after = last * before, latest - last + 1
    return (last - both) * eot, after - both * (after - n_vocab)


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Makes sampled text tokens (ids below `eot`) less likely, `penalty` > 1.

    Source: Keskar et al. 2019, https://arxiv.org/abs/1909.05858; negative logits are multiplied.
    """

    penalty: float
    eot: int

    def apply(self, logits: Floats, sampled: Ints) -> None:
        if sampled.shape[1] == 0:
            return
        penalized = np.take_along_axis(logits, sampled, axis=1)
        lowered = np.where(penalized < 0, penalized * self.penalty, penalized / self.penalty)
        np.put_along_axis(logits, sampled, np.where(sampled < self.eot, lowered, penalized), axis=1)


@dataclass(frozen=True, slots=True)
class NoRepeatNgram:
    """Forbids a second n-gram of the same `size` tokens."""

    size: int

    def apply(self, logits: Floats, sampled: Ints) -> None:
        n_sampled = sampled.shape[1]
        if n_sampled < self.size:
            return
        ngrams = np.lib.stride_tricks.sliding_window_view(sampled, self.size, axis=1)  # (R, n_ngrams, size)
        context = sampled[:, n_sampled - self.size + 1 :]
        rows, places = (ngrams[..., :-1] == context[:, None]).all(axis=2).nonzero()
        logits[rows, ngrams[rows, places, -1]] = FORBIDDEN


def build_filters(
    options: DecodingOptions,
    tokenizer: Tokenizer,
    *,
    is_fused: bool = False,
    follows_text: bool = False,
) -> tuple[LogitFilter, ...]:
    """Build the filters of `options`, in the order in which they apply.

    is_fused: language models only score text, so other tokens are forbidden. follows_text: see
    `ApplyTimestampRules`.

    Raises:
        OptionError: suppress_tokens outside the vocabulary, or a suppress_regex that leaves no words.
    """
    filters: list[LogitFilter] = []
    if is_fused:
        filters.append(SuppressTokens(_ids(_non_transcript_tokens(options, tokenizer))))
    if options.repetition_penalty != 1.0:
        filters.append(RepetitionPenalty(options.repetition_penalty, tokenizer.eot))
    if options.no_repeat_ngram_size > 0:
        filters.append(NoRepeatNgram(options.no_repeat_ngram_size))
    if options.suppress_blank:
        blank = [tokenizer.blank, tokenizer.eot]
        filters.append(SuppressBlank(_ids(blank)))
    if options.suppress_tokens:
        wanted = suppressed_tokens(options.suppress_tokens, tokenizer)
        ids = tuple(id for id in wanted if id != tokenizer.sot_lm or not options.speaker_turns)
        filters.append(SuppressTokens(_ids(ids)))
    if options.suppress_regex is not None:
        filters.append(SuppressTokens(_ids(matching_tokens(options.suppress_regex, tokenizer.n_vocab))))
    if not options.without_timestamps:
        limit = options.max_initial_timestamp
        latest = round(limit / SECONDS_PER_TIMESTAMP) if limit else None
        filters.append(ApplyTimestampRules(tokenizer.eot, tokenizer.timestamp_begin, latest, follows_text))
    return tuple(filters)


def _ids(tokens: Sequence[int]) -> Ints:
    return np.array(tokens, np.int64)


@lru_cache(maxsize=8)
def matching_tokens(pattern: str, n_vocab: int) -> tuple[int, ...]:
    """Return the text tokens of a vocabulary whose whole text matches the regular expression.

    Raises:
        OptionError: no other token has a letter or digit.
    """
    tokenizer = Tokenizer.for_model(n_vocab)
    matches = re.compile(pattern).fullmatch
    texts = [tokenizer.token_bytes(token).decode(errors="replace") for token in range(tokenizer.eot)]
    matching = {token for token, text in enumerate(texts) if matches(text)}
    if not any(token not in matching and any(map(str.isalnum, text)) for token, text in enumerate(texts)):
        raise OptionError(
            f"suppress_regex: expected one that leaves words, got '{pattern}', which matches all of them"
        )
    return tuple(sorted(matching))


def _non_transcript_tokens(options: DecodingOptions, tokenizer: Tokenizer) -> list[int]:
    end = tokenizer.n_vocab if options.without_timestamps else tokenizer.timestamp_begin
    turns = {tokenizer.sot_lm} if options.speaker_turns else set()
    return [token for token in range(tokenizer.eot + 1, end) if token not in turns]


def suppressed_tokens(wanted: Sequence[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the ids of `wanted`, with -1 expanded, and special tokens outside transcripts.

    Raises:
        OptionError: an id outside the vocabulary.
    """
    for token in wanted:
        if not NON_SPEECH <= token < tokenizer.n_vocab:
            raise OptionError(
                f"suppress_tokens: expected ids from 0 to {tokenizer.n_vocab - 1}, or -1, got {token}"
            )
    ids = {token for token in wanted if token >= 0}
    if NON_SPEECH in wanted:
        ids.update(tokenizer.non_speech_tokens)
    ids.update((tokenizer.transcribe, tokenizer.translate, tokenizer.sot))
    ids.update((tokenizer.sot_prev, tokenizer.sot_lm, tokenizer.no_speech))
    return tuple(sorted(ids))


_VOCABULARIES = threading.Lock()


@dataclass(frozen=True, eq=False)
class LiveVocabulary:
    """Token ids of live decoding.

    ids: (n,) int64 ascending, allowed tokens, <|endoftext|> last. blank: (n,) bool, those that may not begin
    a text. marks: (2, n) bool, marks that end sentences, and others. others: (k,) int64, <|nospeech|> and
    languages. n_vocab: rows of the model. rows: (n + k,) those to compute in a step, of a model with few
    trained tokens; None: all.
    """

    ids: Ints
    blank: npt.NDArray[np.bool_]
    marks: npt.NDArray[np.bool_]
    others: Ints
    n_vocab: int
    rows: Ints | None

    @classmethod
    def of(cls, tokenizer: Tokenizer, n_vocab: int) -> LiveVocabulary:
        """Return the vocabulary of a model, one object for all sessions.

        Unlike offline, <|endoftext|> may come first: forbidding it invites hallucination.
        """
        with _VOCABULARIES:
            return cls._computed(tokenizer, n_vocab)

    @classmethod
    @lru_cache(maxsize=8)
    def _computed(cls, tokenizer: Tokenizer, n_vocab: int) -> LiveVocabulary:
        allowed = np.full(tokenizer.eot + 1, tokenizer.pieces is None)
        if tokenizer.pieces is not None:
            allowed[list(tokenizer.pieces.ids.values())] = True
        allowed[tokenizer.eot] = True
        allowed[[token for token in suppressed_tokens((NON_SPEECH,), tokenizer) if token < len(allowed)]] = (
            False
        )
        ids = np.flatnonzero(allowed)
        languages = tokenizer.language_tokens if tokenizer.is_multilingual else ()
        texts = [tokenizer.token_bytes(token).decode(errors="replace").strip() for token in ids[:-1].tolist()]
        kinds, others = np.array([*map(mark_kind, texts), 0]), np.array((tokenizer.no_speech, *languages))
        return cls(
            ids,
            blank=ids == tokenizer.blank,
            marks=np.stack((kinds == 1, kinds == 2)),
            others=others,
            n_vocab=n_vocab,
            rows=None if tokenizer.pieces is None else np.concatenate((ids, others)),
        )

    @property
    def n_text(self) -> int:
        """How many of the computed rows, from the first, are text or <|endoftext|>."""
        return int(self.ids[-1]) + 1 if self.rows is None else len(self.ids)

    @cached_property
    def forbidden(self) -> Ints:
        """Which of the first `n_text` computed rows (n,) are not allowed."""
        return np.setdiff1d(np.arange(self.n_text), self.ids if self.rows is None else np.arange(self.n_text))

    @property
    def blank_row(self) -> int:
        """Where the token that may not begin a text is among the computed rows; -1: it is not allowed."""
        blank = np.flatnonzero(self.blank) if self.rows is not None else self.ids[self.blank]
        return int(blank[0]) if len(blank) else -1

    @property
    def no_speech_row(self) -> int:
        """Where <|nospeech|> is among the computed rows."""
        return int(self.others[0]) if self.rows is None else len(self.ids)

    def no_speech_probs(self, logits: Floats) -> Floats:
        """Return P(<|nospeech|>) (R,) from the logits (R, n_rows) at <|startoftranscript|>."""
        probs: Floats = np.exp(log_softmax(logits)[:, self.no_speech_row])
        return probs

    def text_ends(self, logits: Floats) -> Floats:
        """Return the probabilities (R, 3) of a sentence's end, another mark and the end of the text, given
        the logits (R, n_rows) after the last word.
        """
        log_probs = self.log_probs(logits)
        marks = [np.exp(log_probs[:, kind]).sum(axis=1) for kind in self.marks]
        return np.column_stack([*marks, np.exp(log_probs[:, -1])])

    def log_probs(self, logits: Floats, *, begins: bool = False) -> Floats:
        """Return the log-probabilities (R, n) of `ids` from logits (R, n_rows).

        begins: the next tokens begin a text.
        """
        chosen = np.take(logits, self.ids, axis=1) if self.rows is None else logits[:, : len(self.ids)]
        if begins:
            chosen = np.where(self.blank, np.float32(FORBIDDEN), chosen)
        return log_softmax(chosen)


def mark_kind(text: str) -> int:
    """Return 1 for punctuation that ends a sentence, 2 for any other, else 0."""
    if not text or "\ufffd" in text or any(map(str.isalnum, text)):
        return 0
    return 1 if text.rstrip("\"'»”’)")[-1:] in SENTENCE_ENDS and not text.startswith(("..", "…")) else 2
