"""Logit filters, applied to all rows at once, in place; they see the sampled tokens, never the prompt.

Source of the first three: openai-whisper 20250625, decoding.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.options.decoding import NON_SPEECH, DecodingOptions
from sottovoce.text.tokenizer import SECONDS_PER_TIMESTAMP, Tokenizer

FORBIDDEN = float("-inf")


class LogitFilter(Protocol):
    def apply(self, logits: Tensor, sampled: Tensor) -> None:
        """Change logits (R, n_vocab) float32 in place, given the sampled tokens (R, n) int64."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class SuppressBlank:
    """Forbids a space and the end of text as the first token."""

    tokens: Tensor

    def apply(self, logits: Tensor, sampled: Tensor) -> None:
        if sampled.shape[1] == 0:
            logits[:, self.tokens] = FORBIDDEN


@dataclass(frozen=True, slots=True, eq=False)
class SuppressTokens:
    tokens: Tensor

    def apply(self, logits: Tensor, sampled: Tensor) -> None:
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

    def apply(self, logits: Tensor, sampled: Tensor) -> None:
        begin = self.timestamp_begin
        logits[:, begin - 1] = FORBIDDEN
        if sampled.shape[1] == 0 and self.follows_text:
            logits[:, begin] = FORBIDDEN
        elif sampled.shape[1] == 0:
            logits[:, :begin] = FORBIDDEN
            if self.max_initial is not None:
                logits[:, begin + self.max_initial + 1 :] = FORBIDDEN
        else:
            for row, tokens in enumerate(sampled.tolist()):
                first_text, first_time, end_time = self.allowed(tokens, logits.shape[1])
                logits[row, :first_text] = FORBIDDEN
                logits[row, begin:first_time] = FORBIDDEN
                logits[row, end_time:] = FORBIDDEN
        self._prefer_timestamps(logits)

    def allowed(self, sampled: Sequence[int], n_vocab: int) -> tuple[int, int, int]:
        """Return what may follow the sampled tokens of one row, at least one: the first text token, the first
        timestamp, and the end of timestamps.
        """
        begin, n = self.timestamp_begin, len(sampled)
        last, before = sampled[-1] >= begin, sampled[-2] >= begin if n > 1 else not self.follows_text
        latest = max(max(sampled), begin - 1)
        return *allowed_after(int(last), int(before), latest, self.eot, n_vocab), n_vocab

    def _prefer_timestamps(self, logits: Tensor) -> None:
        """Force a timestamp if all together are more probable than the best other token."""
        begin = self.timestamp_begin
        together = logits[:, begin:].logsumexp(dim=1)
        forced = together > logits[:, :begin].amax(dim=1)
        _forbid_rows(logits[:, :begin], forced)


Number = TypeVar("Number", int, Tensor)


def allowed_after(
    last: Number, before: Number, latest: Number, eot: int, n_vocab: int
) -> tuple[Number, Number]:
    """Return the first text token and the first timestamp that may follow.

    last, before: 1 if the last token, and the one before it, are timestamps, else 0. latest: id of the latest
    timestamp so far.
    """
    both = last * before
    return (last - both) * eot, both * n_vocab + (1 - both) * (latest + 1 - last)


def _forbid_rows(logits: Tensor, rows: Tensor) -> None:
    """Forbid every token of some rows (R,) bool; on a CPU the others are not read."""
    if logits.device.type != "cpu":
        logits.masked_fill_(rows[:, None], FORBIDDEN)
        return
    for row in rows.nonzero()[:, 0].tolist():
        logits[row] = FORBIDDEN


@dataclass(frozen=True, slots=True)
class RepetitionPenalty:
    """Makes sampled text tokens (ids below `eot`) less likely, `penalty` > 1.

    Source: Keskar et al. 2019, https://arxiv.org/abs/1909.05858; negative logits are multiplied.
    """

    penalty: float
    eot: int

    def apply(self, logits: Tensor, sampled: Tensor) -> None:
        if sampled.shape[1] == 0:
            return
        penalized = logits.gather(1, sampled)
        lowered = torch.where(penalized < 0, penalized * self.penalty, penalized / self.penalty)
        logits.scatter_(1, sampled, torch.where(sampled < self.eot, lowered, penalized))


@dataclass(frozen=True, slots=True)
class NoRepeatNgram:
    """Forbids a second n-gram of the same `size` tokens."""

    size: int

    def apply(self, logits: Tensor, sampled: Tensor) -> None:
        n_sampled = sampled.shape[1]
        if n_sampled < self.size:
            return
        ngrams = sampled.unfold(1, self.size, 1)  # (R, n_ngrams, size)
        context = sampled[:, n_sampled - self.size + 1 :]
        seen = (ngrams[..., :-1] == context[:, None]).all(dim=2)
        # An id may end several n-grams: the smallest value written to it counts.
        ceiling = torch.where(seen, FORBIDDEN, float("inf")).to(logits.dtype)
        logits.scatter_reduce_(1, ngrams[..., -1], ceiling, "amin")


def build_filters(
    options: DecodingOptions,
    tokenizer: Tokenizer,
    device: torch.device | str = "cpu",
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
        filters.append(
            SuppressTokens(torch.tensor(_non_transcript_tokens(options, tokenizer), device=device))
        )
    if options.repetition_penalty != 1.0:
        filters.append(RepetitionPenalty(options.repetition_penalty, tokenizer.eot))
    if options.no_repeat_ngram_size > 0:
        filters.append(NoRepeatNgram(options.no_repeat_ngram_size))
    if options.suppress_blank:
        blank = [*tokenizer.encode(" "), tokenizer.eot]
        filters.append(SuppressBlank(torch.tensor(blank, device=device)))
    if options.suppress_tokens:
        wanted = suppressed_tokens(options.suppress_tokens, tokenizer)
        ids = tuple(id for id in wanted if id != tokenizer.sot_lm or not options.speaker_turns)
        filters.append(SuppressTokens(torch.tensor(ids, device=device)))
    if options.suppress_regex is not None:
        ids = matching_tokens(options.suppress_regex, tokenizer.n_vocab)
        filters.append(SuppressTokens(torch.tensor(ids, dtype=torch.int64, device=device)))
    if not options.without_timestamps:
        limit = options.max_initial_timestamp
        latest = round(limit / SECONDS_PER_TIMESTAMP) if limit else None
        filters.append(ApplyTimestampRules(tokenizer.eot, tokenizer.timestamp_begin, latest, follows_text))
    return tuple(filters)


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
