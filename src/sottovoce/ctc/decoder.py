"""CTC decoding of emissions to hypotheses with words and times: greedy, or by prefix beam search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sottovoce.ctc.align import NEVER, IdleSeparators, TokenTimes, align, token_times
from sottovoce.ctc.emissions import (
    Emissions,
    EmissionScaling,
    Lengths,
    as_tensors,
    checked,
    mean_log_probs,
    network_weights,
    networks_of,
)
from sottovoce.ctc.labels import UNFINISHED, Labels, SpelledWord, Speller
from sottovoce.ctc.models import DecoderParts, Spellings
from sottovoce.ctc.options import CtcFusionOptions, CtcOptions, read_config
from sottovoce.ctc.search import (
    CommittedHistory,
    Committer,
    PrefixScorer,
    PrefixSearch,
    PrefixState,
    padded,
)
from sottovoce.errors import OptionError
from sottovoce.lm.base import Floats, WordModel
from sottovoce.lm.boosting import Hotwords, listed_phrases
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.neural import HistoryWord, NeuralRescorer, WordHistory, WordLanguageModel
from sottovoce.lm.ngram import load_ngram
from sottovoce.models.devices import choose_device
from sottovoce.types import Hypothesis, Partial, Word


class FinalHypothesis(NamedTuple):
    """A complete hypothesis. mark: of the word that its end completes (0: none), or `UNFINISHED`."""

    utterance: int
    score: float
    posterior: float
    beam: int
    mark: int


def merge_rescored(
    found: Sequence[tuple[FinalHypothesis, list[int]]],
    more: Sequence[tuple[FinalHypothesis, tuple[int, ...]]],
    n_best: int,
) -> tuple[list[FinalHypothesis], list[list[int]]]:
    """Merge hypotheses with rescored ones; return the n_best of each utterance and their symbols.

    more: of utterances in `found`, whose posteriors include them.
    """
    endings: list[FinalHypothesis] = []
    histories: list[list[int]] = []
    for row in sorted({ending.utterance for ending, _ in found}):
        own = [pair for pair in found if pair[0].utterance == row]
        pool = {(tuple(history), ending.mark): ending for ending, history in own}
        for one, symbols in more:
            pooled = pool.get((symbols, one.mark))
            if one.utterance == row and (pooled is None or pooled.score < one.score):
                pool[symbols, one.mark] = one
        ranked = sorted(pool.items(), key=lambda item: -item[1].score)[:n_best]
        # A word sequence that the beam lost without pruning is in no mass: shares still sum to at most 1.
        best = own[0][0]
        total = max(best.score - math.log(best.posterior), _log_sum([ending.score for _, ending in ranked]))
        endings += [ending._replace(posterior=math.exp(ending.score - total)) for _, ending in ranked]
        histories += [list(symbols) for (symbols, _), _ in ranked]
    return endings, histories


def _log_sum(scores: Sequence[float]) -> float:
    return float(torch.tensor(scores, dtype=torch.float64).logsumexp(dim=0))


def _joined_lists(lists: Sequence[Sequence[Hypothesis]], shares: Sequence[float]) -> list[Hypothesis]:
    """Join lists by text; posteriors become their weighted means, which rank the texts."""
    posteriors: dict[str, float] = {}
    best: dict[str, tuple[float, Hypothesis]] = {}
    for share, found in zip(shares, lists, strict=True):
        for hypothesis in found:
            posterior = share * (hypothesis.posterior or 0.0)
            posteriors[hypothesis.text] = posteriors.get(hypothesis.text, 0.0) + posterior
            if hypothesis.text not in best or posterior > best[hypothesis.text][0]:
                best[hypothesis.text] = posterior, hypothesis
    ranked = sorted(posteriors, key=lambda text: -posteriors[text])
    return [replace(best[text][1], posterior=posteriors[text]) for text in ranked]


_ROUNDING = 1e-4
"""Nats that a bound may be below a score by rounding."""


class HistoryAdjuster:
    """Replaces the scores of word histories in states by those of a `NeuralRescorer`.

    threshold: see `CtcOptions.adjust_threshold`.
    """

    def __init__(self, scorer: NeuralRescorer, speller: Speller, threshold: float | None) -> None:
        self._scorer = scorer
        self._speller = speller
        self._threshold = threshold

    def adjust(self, state: PrefixState, rows: Tensor) -> None:
        """Replace the scores of the words of all beams of rows (B,) bool."""
        places = ((state.acoustic > NEVER) & rows[:, None]).nonzero().tolist()
        if not places:
            return
        histories = [
            self._history(state, row, self._speller.finished_words(self._open(state, row, symbols)))
            for (row, _), symbols in zip(places, histories_of(state, places), strict=True)
        ]
        scores = state.acoustic + state.lm
        values = self._values(places, scores, scores - state.adjustment, histories, final=False)
        new = state.adjustment.clone()
        new[tuple(torch.tensor(places).t())] = torch.tensor(values)
        state.lm = state.lm - state.adjustment + new
        state.adjustment = new
        living: dict[int, list[WordHistory]] = {}
        dropped: dict[int, list[int]] = {}
        for (row, beam), history, value in zip(places, histories, values, strict=True):
            if value > NEVER:
                living.setdefault(row, []).append(history)
            else:
                dropped.setdefault(row, []).append(beam)
        for row, beams in dropped.items():
            state.drop(row, torch.tensor(beams))
        for row, of_row in living.items():
            state.committed[row].mark_scored(of_row)

    def final_scores(self, state: PrefixState, scores: Tensor, beams: Tensor, marks: Tensor) -> Tensor:
        """Return the scores (B, E) of endings of beams (E,) with those of whole sentences. marks: (B, E)."""
        alive = (scores > NEVER).nonzero().tolist()
        symbols = histories_of(state, [(b, int(beams[i])) for b, i in alive])
        histories = [
            self._history(state, b, self._speller.words(self._open(state, b, row), int(marks[b, i])))
            for row, (b, i) in zip(symbols, alive, strict=True)
        ]
        without = scores - state.adjustment.gather(1, beams.expand(len(scores), -1))
        values = self._values(alive, scores, without, histories, final=True)
        for (b, i), value in zip(alive, values, strict=True):
            without[b, i] += value
        return without

    def _values(
        self,
        places: Sequence[Sequence[int]],
        scores: Tensor,
        without: Tensor,
        histories: Sequence[WordHistory],
        *,
        final: bool,
    ) -> list[float]:
        """Return the adjustments of hypotheses, `NEVER` for those beyond the threshold.

        places: (row, column) of each in the scores so far, and in those without adjustments. Only hypotheses
        are scored that could come within the threshold of the best one so far.
        """
        if self._threshold is None or not places:
            return self._scorer.adjustments(histories, final=final)
        rows = [row for row, _ in places]
        at = tuple(torch.tensor(places).t())
        so_far, base = scores[at].tolist(), without[at].tolist()
        leaders: dict[int, int] = {}
        for i, row in enumerate(rows):
            if row not in leaders or so_far[i] > so_far[leaders[row]]:
                leaders[row] = i
        first = self._scorer.adjustments([histories[i] for i in leaders.values()], final=final)
        best = {row: base[i] + value for (row, i), value in zip(leaders.items(), first, strict=True)}
        bounds = self._scorer.bounds(histories, final=final)
        asked = [
            i for i, row in enumerate(rows) if base[i] + bounds[i] >= best[row] - self._threshold - _ROUNDING
        ]
        values = [NEVER] * len(rows)
        adjusted = self._scorer.adjustments([histories[i] for i in asked], final=final)
        for i, value in zip(asked, adjusted, strict=True):
            values[i] = value
            best[rows[i]] = max(best[rows[i]], base[i] + value)
        return [
            value if base[i] + value >= best[rows[i]] - self._threshold else NEVER
            for i, value in enumerate(values)
        ]

    def _open(self, state: PrefixState, row: int, symbols: Sequence[int]) -> list[int]:
        return [*state.committed[row].open_symbols(), *symbols]

    def _history(self, state: PrefixState, row: int, newer: Iterable[SpelledWord]) -> WordHistory:
        words = (HistoryWord(word.text, word.in_lexicon) for word in newer)
        return state.committed[row].history().after(words)


def histories_of(state: PrefixState, places: Iterable[Sequence[int]]) -> list[list[int]]:
    symbols, lengths = state.symbols.numpy(), state.length.tolist()
    return [symbols[b, k, 1 : lengths[b][k] + 1].tolist() for b, k in places]


@dataclass(frozen=True, slots=True)
class StreamUpdate:
    """A stream after a chunk.

    time_s: end of the chunk. text: the best so far. n_revised: words at the end of the text before that are
    replaced. committed: words that no further frame can change, each in one update; none without
    `CtcOptions.times`. hypotheses: the `n_best` so far, see `EmissionDecoder.partials`; () if n_best is 1.
    is_final: the end, with the hypotheses of the whole stream.
    """

    time_s: float
    text: str
    changes_text: bool
    n_revised: int
    committed: tuple[Word, ...]
    hypotheses: tuple[Hypothesis, ...]
    is_final: bool = False


def _n_revised(before: str, text: str) -> int:
    old, new = before.split(), text.split()
    n_same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    return len(old) - n_same


_READINGS_APART, _READINGS_JOINED = 4, 16
"""Word sequences per n_best that are kept to list homophones, with and without a separator."""


class EmissionDecoder:
    """Prefix beam search from emissions to text, whole or in chunks.

    scorer: language models, lexicon and boosting, or None. lexicon: the words of the scorer's marks, see
    `Speller`. history_scorer: replaces the score of the words every `options.adjust_every_frames` frames and
    at the end, or None.

    Raises:
        OptionError: the scorer has another number of labels.
    """

    def __init__(
        self,
        labels: Labels,
        options: CtcOptions | None = None,
        *,
        scorer: PrefixScorer | None = None,
        lexicon: Sequence[str | None] = (),
        history_scorer: NeuralRescorer | None = None,
    ) -> None:
        self.labels = labels
        self.options = options or CtcOptions()
        if scorer is not None and scorer.n_tokens != len(labels):
            raise OptionError(f"language models: expected {len(labels)} labels, got {scorer.n_tokens}")
        self._scorer = scorer
        self._speller = Speller(labels, lexicon)
        self._adjuster = (
            None
            if history_scorer is None
            else HistoryAdjuster(history_scorer, self._speller, self.options.adjust_threshold)
        )
        self._scaling = EmissionScaling.from_options(labels, self.options)
        self._idle = IdleSeparators(labels.blank, None if scorer is None else scorer.word_separator)

    @cached_property
    def _search(self) -> PrefixSearch:
        """The search, which a greedy path does not need."""
        return PrefixSearch(
            len(self.labels),
            self.labels.blank,
            self.options.beam_size,
            scorer=self._scorer,
            # Homophones are not pruned with a model of whole histories, which may rank them differently
            # later. Otherwise the beam has room for other labels, and `finish` adds the homophones.
            max_homophones=1 if self._adjuster is None else None,
            beam_threshold=self.options.beam_threshold,
            top_tokens=self.options.top_tokens,
        )

    @cached_property
    def _committer(self) -> Committer:
        return Committer(
            self._speller,
            self._idle,
            has_times=self.options.times,
            most_frames=self.options.commit_frames,
        )

    def decode(self, log_probs: Emissions, lengths: Lengths | None = None) -> list[list[Hypothesis]]:
        """Decode log-probabilities (B, T, V) or (T, V); return each utterance's hypotheses, best first.

        log_probs: a tensor, a NumPy array or lists; or a list of the tensors or arrays of several networks,
        see `CtcOptions.combine`. lengths: (B,) frames of each utterance; None: all.

        Raises:
            InputError: these are not log-probabilities of these labels, or networks differ in shape.
            OptionError: not one weight per network, or no kernels package.
        """
        networks = networks_of(log_probs)
        if len(networks) > 1 and self.options.combine == "nbest":
            lists = [self.decode(each, lengths) for each in networks]
            shares = network_weights(self.options.network_weights, len(networks))
            return [_joined_lists(each, shares)[: self.options.n_best] for each in zip(*lists, strict=True)]
        emissions, counts = self._checked(log_probs, lengths)
        if not len(counts):
            return []
        state = self.start(len(emissions))
        self._advance(state, emissions, counts)
        return self.finish(state)

    @torch.no_grad()
    def greedy(self, log_probs: Emissions, lengths: Lengths | None = None) -> list[Hypothesis]:
        """Decode emissions (B, T, V) or (T, V) by the likeliest path, without language models or kernels.

        Raises:
            InputError: as `decode`.
        """
        emissions, counts = self._checked(log_probs, lengths)
        if not emissions.shape[1]:
            return [Hypothesis(text="", tokens=(), score=0.0) for _ in range(len(emissions))]
        blank = self.labels.blank
        best, path = self._scaling.scores(emissions).max(dim=2)  # (B, T)
        acoustic = self._scaling.probabilities(emissions).gather(2, path[:, :, None])[:, :, 0]
        valid = torch.arange(path.shape[1]) < counts[:, None]
        path = path.masked_fill(~valid, blank)
        changes = torch.ones_like(valid)
        changes[:, 1:] = path[:, 1:] != path[:, :-1]
        starts = changes & (path != blank)
        scores = best.masked_fill(~valid, 0.0).sum(dim=1).tolist()
        found = []
        for row, score in enumerate(scores):
            frames = starts[row].nonzero()[:, 0]
            turns, first = changes[row].nonzero()[:, 0].tolist(), frames.tolist()
            tokens = path[row, frames].tolist()
            ends = dict(zip(turns, (*turns[1:], path.shape[1]), strict=True))
            words = [
                Word(
                    word=word.text,
                    start=first[word.first] * self.options.frame_s,
                    end=ends[first[word.end - 1]] * self.options.frame_s,
                    probability=float(acoustic[row, frames[word.first : word.end]].mean().exp()),
                )
                for word in self.labels.words(tokens)
            ]
            found.append(
                Hypothesis(
                    text=self.labels.spell(tokens),
                    tokens=tuple(tokens),
                    score=score,
                    acoustic_score=score,
                    words=tuple(words),
                    token_frames=tuple(first),
                )
            )
        return found

    def start(self, n_batch: int = 1) -> PrefixState:
        """Make the state of n_batch streams before their first frame."""
        return self._search.start(n_batch)

    def decode_chunk(
        self, state: PrefixState, log_probs: Emissions, lengths: Lengths | None = None
    ) -> list[str]:
        """Advance the state over the next frames (B, T, V); return the best text so far of each stream.

        Only what `committed` has returned is final. `finish` returns the same as `decode`, for any chunks.

        Raises:
            InputError: as `decode`.
        """
        self._advance(state, *self._checked(log_probs, lengths))
        self._committer.commit(state)
        best = list(enumerate((state.acoustic + state.lm).argmax(dim=1).tolist()))
        return [
            self._text_so_far(history, [*history.open_symbols(), *symbols])
            for history, symbols in zip(state.committed, histories_of(state, best), strict=True)
        ]

    def stream(self, chunks: Iterable[Emissions]) -> Iterator[StreamUpdate]:
        """Decode one stream in chunks of log-probabilities (T, V); yield an update after each and at the end.

        Raises:
            InputError, OptionError: as `decode`.
        """
        state, before = self.start(), ""
        for chunk in chunks:
            text = self.decode_chunk(state, chunk)[0]
            yield StreamUpdate(
                time_s=int(state.n_frames[0]) * self.options.frame_s,
                text=text,
                changes_text=text != before,
                n_revised=_n_revised(before, text),
                committed=tuple(word for event in self.committed(state) for word in event.words),
                hypotheses=tuple(self.partials(state)[0]) if self.options.n_best > 1 else (),
            )
            before = text
        found = self.finish(state)[0]
        text = found[0].text if found else ""
        n_told = len(state.committed[0].words)
        yield StreamUpdate(
            time_s=int(state.n_frames[0]) * self.options.frame_s,
            text=text,
            changes_text=text != before,
            n_revised=_n_revised(before, text),
            committed=found[0].words[n_told:] if found else (),
            hypotheses=tuple(found),
            is_final=True,
        )

    def committed(self, state: PrefixState) -> list[Partial]:
        """Return the words committed since the last call, which no further frame can change.

        At most one event per stream; `utterance` is its row. Without `CtcOptions.times` events have no words.
        """
        events = []
        for row, history in enumerate(state.committed):
            words = history.words[history.n_emitted :]
            if not words:
                continue
            history.n_emitted = len(history.words)
            now = int(state.n_frames[row]) * self.options.frame_s
            times = TokenTimes(history.first, history.last, history.peak)
            timed = tuple(self._word(word, times) for word in words) if history.first else ()
            events.append(
                Partial(
                    start=timed[0].start if timed else now,
                    end=timed[-1].end if timed else now,
                    text=self._speller.join([word.text for word in words]),
                    language="",
                    words=timed,
                    emission_time=now,
                    utterance=row,
                )
            )
        return events

    def partials(self, state: PrefixState) -> list[list[Hypothesis]]:
        """Return the n_best texts so far of each stream, best first; the state is unchanged.

        Hypotheses with one text are merged, with the best score and the sum of posteriors; scores have no
        endings. tokens and words follow the committed words.
        """
        found: list[FinalHypothesis] = []
        texts: list[str] = []
        for row, ranked in enumerate(ranked_beams(state)):
            by_text: dict[str, FinalHypothesis] = {}
            symbols = histories_of(state, [(row, one.beam) for one in ranked])
            for one, later in zip(ranked, symbols, strict=True):
                history = state.committed[row]
                text = self._text_so_far(history, [*history.open_symbols(), *later])
                first = by_text.setdefault(text, one._replace(posterior=0.0))
                by_text[text] = first._replace(posterior=first.posterior + one.posterior)
            found += list(by_text.values())[: self.options.n_best]
            texts += list(by_text)[: self.options.n_best]
        symbols = histories_of(state, [(one.utterance, one.beam) for one in found])
        return self._hypotheses(state, found, symbols, texts)

    def finish(self, state: PrefixState) -> list[list[Hypothesis]]:
        """Return the hypotheses of finished streams; the state is unchanged.

        If no hypothesis of an utterance can be completed, all have `is_unfinished` and their search scores.
        """
        if not len(state.length):
            return []
        found = self._endings(state)
        symbols = histories_of(state, [(ending.utterance, ending.beam) for ending in found])
        if self._adjuster is None:
            found, symbols = self._with_pruned(state, found, symbols)
        return self._hypotheses(state, found, symbols)

    def _hypotheses(
        self,
        state: PrefixState,
        found: Sequence[FinalHypothesis],
        symbols: Sequence[Sequence[int]],
        texts: Sequence[str] | None = None,
    ) -> list[list[Hypothesis]]:
        """Make hypotheses of uncommitted symbols. texts: of unfinished ones, which begin after the committed
        words.
        """
        spans = self._align(state, found, symbols) if self.options.times and state.emissions else None
        acoustic = state.acoustic.tolist()
        hypotheses: list[list[Hypothesis]] = [[] for _ in range(len(state.length))]
        for i, (ending, later) in enumerate(zip(found, symbols, strict=True)):
            history = state.committed[ending.utterance]
            begin = 0 if texts is None else history.n_closed
            hypothesis = self._hypothesis(
                [*history.symbols[begin:], *later],
                ending,
                acoustic[ending.utterance][ending.beam],
                None if spans is None else history.times(spans[i], begin),
            )
            if texts is not None:
                hypothesis = replace(hypothesis, text=texts[i])
            hypotheses[ending.utterance].append(_with_offsets(hypothesis, state, ending.utterance))
        return hypotheses

    def _text_so_far(self, history: CommittedHistory, symbols: Sequence[int]) -> str:
        return self._speller.join([history.text, self._speller.text(symbols, self._speller.words(symbols))])

    def _checked(self, emissions: Emissions, lengths: Lengths | None) -> tuple[Tensor, Tensor]:
        found = [
            checked(*as_tensors(each, lengths), len(self.labels), is_normalised=self.options.is_normalised)
            for each in networks_of(emissions)
        ]
        if len(found) == 1:
            return found[0]
        if not self.options.is_normalised:
            raise OptionError("networks: expected log-probabilities to average, got is_normalised=False")
        if self.options.combine != "mean":
            raise OptionError("combine: expected 'mean' for a stream or a greedy path, got 'nbest'")
        shares = network_weights(self.options.network_weights, len(found))
        return mean_log_probs([values for values, _ in found], shares), found[0][1]

    def _advance(self, state: PrefixState, emissions: Tensor, lengths: Tensor) -> None:
        log_probs, scores = self._scaling.probabilities(emissions), self._scaling.scores(emissions)
        if self.options.times:
            state.emissions.append((log_probs, lengths))
        state.n_frames = state.n_frames + lengths
        if self.options.blank_skip is not None:
            blank = self.labels.blank
            is_likely = log_probs[:, :, blank].exp() > self.options.blank_skip
            scores, lengths = state.without_blank_runs(scores, lengths, blank=blank, is_likely=is_likely)
        every = self.options.adjust_every_frames
        if self._adjuster is None or every is None:
            self._run(state, scores, lengths)
        else:
            self._run_and_adjust(self._adjuster, state, scores, lengths, every)

    def _run_and_adjust(
        self, adjuster: HistoryAdjuster, state: PrefixState, log_probs: Tensor, lengths: Tensor, every: int
    ) -> None:
        """Search, and adjust each utterance after every so many of its own frames, whatever the chunks and
        batch.
        """
        begin = 0
        while bool((is_running := lengths > begin).any()):
            left = every - state.n_searched % every
            part = log_probs[:, begin : begin + int(left[is_running].min())]
            counts = (lengths - begin).clamp(0, part.shape[1])
            self._run(state, part, counts)
            adjuster.adjust(state, (counts > 0) & (state.n_searched % every == 0))
            begin += part.shape[1]

    def _run(self, state: PrefixState, log_probs: Tensor, lengths: Tensor) -> None:
        self._search.run(state, log_probs, lengths)
        state.n_searched = state.n_searched + lengths

    def _endings(self, state: PrefixState) -> list[FinalHypothesis]:
        n_batch, n_beams = state.length.shape
        ranked = state.acoustic + state.lm
        endings, marks = self._search.endings(state.scores.reshape(n_batch * n_beams, -1))
        scores = (ranked[:, :, None] + endings.view(n_batch, n_beams, -1)).flatten(1)  # (B, K * E)
        marks = marks.view(n_batch, -1)
        n_ways = scores.shape[1] // n_beams
        is_stuck = ~(scores > NEVER).any(dim=1)
        if self._adjuster is not None:
            beams = torch.arange(scores.shape[1]) // n_ways
            scores = self._adjuster.final_scores(state, scores, beams, marks)
        scores[is_stuck, ::n_ways] = ranked[is_stuck]
        marks[is_stuck] = UNFINISHED
        best, index = scores.topk(min(self.options.n_best, scores.shape[1]), dim=1)
        with_merged = scores + state.merged.repeat_interleave(n_ways, dim=1)
        shares = _posteriors(best.numpy(), with_merged.numpy())
        parts = [part.tolist() for part in (best, shares, index // n_ways, marks.gather(1, index))]
        return [
            FinalHypothesis(row, score, posterior, beam, mark)
            for row, columns in enumerate(zip(*parts, strict=True))
            for score, posterior, beam, mark in zip(*columns, strict=True)
            if score > NEVER
        ]

    def _with_pruned(
        self, state: PrefixState, found: list[FinalHypothesis], symbols: list[list[int]]
    ) -> tuple[list[FinalHypothesis], list[list[int]]]:
        """Merge in the pruned homophones of a list; return hypotheses and symbols.

        Utterances with committed words and unfinished ones are unchanged.
        """
        if self.options.n_best == 1 or self._scorer is None or self._scorer.n_arcs == 1:
            return found, symbols
        n_labels, acoustic, lm_offset = len(self.labels), state.acoustic.tolist(), state.lm_offset.tolist()
        beams: dict[tuple[int, tuple[int, ...]], int] = {}
        """Of each utterance and label sequence; of several paths that were summed, the largest sum counts."""
        for one, row in zip(found, symbols, strict=True):
            if state.committed[one.utterance].symbols or one.mark == UNFINISHED:
                continue
            key, of_row = (one.utterance, tuple(symbol % n_labels for symbol in row)), acoustic[one.utterance]
            if key not in beams or of_row[one.beam] > of_row[beams[key]]:
                beams[key] = one.beam
        each = _READINGS_JOINED if self._scorer.word_separator is None else _READINGS_APART
        labels = [labels for _, labels in beams]
        readings = self._search.readings(labels, each * self.options.n_best) if beams else []
        more = [
            (
                FinalHypothesis(row, acoustic[row][beam] + one.score - lm_offset[row], 0.0, beam, one.mark),
                one.symbols,
            )
            for ((row, _), beam), several in zip(beams.items(), readings, strict=True)
            for one in several
        ]
        return merge_rescored(list(zip(found, symbols, strict=True)), more, self.options.n_best)

    def _align(
        self, state: PrefixState, found: Sequence[FinalHypothesis], symbols: Sequence[Sequence[int]]
    ) -> list[TokenTimes] | None:
        n_tokens = [len(history) for history in symbols]
        if not any(n_tokens):
            return [TokenTimes([], [], []) for _ in found]
        n_labels, (tokens, lengths) = len(self.labels), padded(symbols)
        labels = tokens % n_labels
        rows, beams = (torch.tensor([one[i] for one in found]) for i in (0, 3))
        emissions, n_frames = state.joined()
        spans = align(
            self._idle.emissions(emissions),
            n_frames,
            labels,
            lengths,
            rows=rows,
            blank=self._idle.blanks(labels, state.symbols[rows, beams, 0] % n_labels, n_labels),
        )
        return token_times(spans, n_tokens)

    def _hypothesis(
        self, symbols: list[int], ending: FinalHypothesis, acoustic: float, times: TokenTimes | None
    ) -> Hypothesis:
        n_labels, spelled = len(self.labels), self._speller.words(symbols, ending.mark)
        return Hypothesis(
            text=self._speller.text(symbols, spelled),
            tokens=tuple(symbol % n_labels for symbol in symbols),
            score=ending.score,
            acoustic_score=acoustic,
            lm_score=ending.score - acoustic,
            words=() if times is None else tuple(self._word(word, times) for word in spelled),
            token_frames=() if times is None else tuple(times.first),
            posterior=ending.posterior,
            is_unfinished=ending.mark == UNFINISHED,
        )

    def _word(self, word: SpelledWord, times: TokenTimes) -> Word:
        peaks = times.peak[word.first : word.end]
        return Word(
            word=word.text,
            start=times.first[word.first] * self.options.frame_s,
            end=(times.last[word.end - 1] + 1) * self.options.frame_s,
            probability=math.exp(sum(peaks) / len(peaks)),
        )


def ranked_beams(state: PrefixState) -> list[list[FinalHypothesis]]:
    """Return the living beams of each utterance, best first, without endings."""
    ranked = state.acoustic + state.lm
    best, beams = ranked.sort(dim=1, descending=True, stable=True)
    shares = _posteriors((best + state.merged.gather(1, beams)).numpy(), (ranked + state.merged).numpy())
    rows = zip(best.tolist(), shares.tolist(), beams.tolist(), strict=True)
    return [
        [
            FinalHypothesis(row, score, share, beam, 0)
            for score, share, beam in zip(*columns, strict=True)
            if score > NEVER
        ]
        for row, columns in enumerate(rows)
    ]


def _posteriors(some: Floats, scores: Floats) -> Floats:
    """Return the posteriors (B, n) of `some` among all (B, m). NumPy, as torch would wake threads."""
    with np.errstate(invalid="ignore"):  # where nothing is possible
        shares: Floats = np.exp(some - np.logaddexp.reduce(scores, axis=1, keepdims=True))
    return shares


def _with_offsets(hypothesis: Hypothesis, state: PrefixState, row: int) -> Hypothesis:
    """Add what was subtracted from the scores of an utterance during the search."""
    acoustic, lm = float(state.acoustic_offset[row]), float(state.lm_offset[row])
    if not acoustic and not lm:
        return hypothesis
    return replace(
        hypothesis,
        score=hypothesis.score + acoustic + lm,
        acoustic_score=hypothesis.acoustic_score + acoustic,
        lm_score=hypothesis.lm_score + lm,
    )


class CtcDecoder(EmissionDecoder):
    """Decodes the emissions of any CTC model, with language models.

    labels: one name per output.
    blank: its index, -1 for the last.
    lm: a trie of `sottovoce lm`, an ARPA file (.gz too), a KenLM binary, or a model.
    label_lm: the same over labels, next to an `lm` over words.
    lexicon: a file as in `lm.lexicon.read_lexicon`, (word, label ids) pairs, or the tree of another decoder
    with the same labels and hotwords. None: the words of `lm` in characters, and unknown words.
    hotwords: a file, phrases, or phrases with weights per label.
    neural_lm: a Hugging Face causal model's folder or name, or the folder of a LoRA adapter for one (extra
    `neural-lm`), or a model; its scores replace the n-gram's.
    beam_size, n_best: override the options.
    unknown_words: whether words outside the lexicon are allowed; None: only without a given lexicon.
    device: of the neural model. The search runs on the CPU, to which emissions on a device are copied.

    Raises:
        OptionError: options that do not fit together.
        LanguageModelError: files or words that cannot be used.
        MissingExtraError: a model whose package is not installed.
    """

    def __init__(
        self,
        labels: Sequence[str],
        blank: int = 0,
        *,
        lm: str | Path | WordModel | None = None,
        label_lm: str | Path | WordModel | None = None,
        lexicon: str | Path | Spellings | Lexicon | None = None,
        hotwords: Hotwords | None = None,
        neural_lm: str | Path | WordLanguageModel | None = None,
        beam_size: int | None = None,
        n_best: int | None = None,
        unknown_words: bool | None = None,
        fusion: CtcFusionOptions | None = None,
        options: CtcOptions | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        named = Labels.of(labels, blank)
        options = options or CtcOptions()
        options = replace(
            options,
            beam_size=options.beam_size if beam_size is None else beam_size,
            n_best=options.n_best if n_best is None else n_best,
        )
        parts = DecoderParts(named, fusion or CtcFusionOptions())
        model, beside = (None if given is None else load_ngram(given) for given in (lm, label_lm))
        weight = parts.options.hotword_weight
        phrases = [] if hotwords is None else listed_phrases(hotwords, default_weight=weight)
        scorer, self.lexicon = parts.scorer(model, lexicon, phrases, unknown_words, beside)
        """The words' tree, made or given; None without a lexicon."""
        rescorer = None
        if neural_lm is not None:
            where = choose_device(device) if isinstance(device, str) else device
            rescorer = parts.rescorer(neural_lm, None if self.lexicon is None else model, where)
        words = () if self.lexicon is None else self.lexicon.words
        super().__init__(named, options, scorer=scorer, lexicon=words, history_scorer=rescorer)

    def decode_logits(self, logits: Emissions, lengths: Lengths | None = None) -> list[list[Hypothesis]]:
        """Decode logits (B, T, V), such as those of transformers' `Wav2Vec2ForCTC`; see `decode`."""
        found = [as_tensors(each, lengths) for each in networks_of(logits)]
        networks = [values.float().log_softmax(dim=-1) for values, _ in found]
        return self.decode(networks if len(networks) > 1 else networks[0], found[0][1])

    @classmethod
    def from_config(cls, path: str | Path, *, device: str | torch.device = "cpu") -> CtcDecoder:
        """Make the decoder of a `decoder.toml`, such as `sottovoce ctc tune` writes; see `read_config`.

        Raises:
            OptionError: the file cannot be read, an unknown key, or a value of another type.
            LanguageModelError, MissingExtraError: as the class.
        """
        config = read_config(path)
        return cls(
            *config.label_list(),
            lm=config.lm,
            label_lm=config.label_lm,
            lexicon=config.lexicon,
            hotwords=config.hotwords,
            neural_lm=config.neural_lm,
            unknown_words=config.unknown_words,
            fusion=config.fusion,
            options=config.options,
            device=device,
        )
