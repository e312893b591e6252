"""CTC decoding of emissions to hypotheses with words and times: greedy, or by beam search."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sottovoce.ctc.emissions import (
    NEVER,
    Emissions,
    EmissionScaling,
    Emitted,
    IdleSeparators,
    Lengths,
    TokenTimes,
    align,
    as_arrays,
    checked,
    log_softmax,
    mean_log_probs,
    network_weights,
    networks_of,
    token_times,
)
from sottovoce.ctc.labels import UNFINISHED, Labels, SpelledWord, SymbolReader, named_blank
from sottovoce.ctc.models import DecoderParts, Ngrams, causal_words, weighted_ngrams
from sottovoce.ctc.options import CtcFusionOptions, CtcOptions, read_config
from sottovoce.ctc.search import CommittedHistory, Committer, PrefixScorer, PrefixSearch, PrefixState, padded
from sottovoce.errors import OptionError
from sottovoce.lm.base import Bools, Doubles, Floats, Ints, LanguageModel, WordModel
from sottovoce.lm.boosting import Hotwords, listed_phrases
from sottovoce.lm.lexicon import Entries, Lexicon
from sottovoce.lm.ngram import load_ngram
from sottovoce.lm.rescoring import (
    HistoryWord,
    NeuralRescorer,
    StatefulModel,
    StatefulWords,
    WordHistory,
    WordLanguageModel,
)
from sottovoce.options.schema import check_kind
from sottovoce.types import Hypothesis, Partial, Word


@dataclass(frozen=True, slots=True)
class WordScores:
    """The parts of a hypothesis' score that a word has; natural logs.

    acoustic: of the likeliest path, from the first frame of the word to that of the next. ngram, hotword,
    neural: weighted; the last word's include the end of the sentence. bonus: word score and unknown score.
    rival: the words in its place in the best hypothesis that lacks it, "" for none there; None: all have it.
    margin: nats by which the explained hypothesis is better than that one.
    """

    word: Word
    acoustic: float
    ngram: float
    hotword: float
    neural: float
    bonus: float
    rival: str | None
    margin: float | None


class Ending(NamedTuple):
    """A hypothesis: a beam of an utterance, and its uncommitted symbols. mark: of the word that its end
    completes (0: none), or `UNFINISHED`.
    """

    row: int
    score: float
    posterior: float
    beam: int
    mark: int
    symbols: tuple[int, ...]


def merge_rescored(endings: Sequence[Ending], more: Sequence[Ending], n_best: int) -> list[Ending]:
    """Merge hypotheses with rescored ones; return the n_best of each utterance."""
    merged: list[Ending] = []
    for row in sorted({ending.row for ending in endings}):
        of_row = [ending for ending in endings if ending.row == row]
        pool = {(ending.symbols, ending.mark): ending for ending in of_row}
        for each in more:
            pooled = pool.get((each.symbols, each.mark))
            if each.row == row and (pooled is None or pooled.score < each.score):
                pool[each.symbols, each.mark] = each
        ranked = sorted(pool.values(), key=lambda ending: -ending.score)[:n_best]
        # A word sequence that the beam lost without pruning is in no mass: shares still sum to at most 1.
        of_ranked = float(np.logaddexp.reduce([ending.score for ending in ranked]))
        total = max(of_row[0].score - math.log(of_row[0].posterior), of_ranked)
        merged += [ending._replace(posterior=math.exp(ending.score - total)) for ending in ranked]
    return merged


def _joined_lists(lists: Sequence[Sequence[Hypothesis]], shares: Sequence[float]) -> list[Hypothesis]:
    posteriors: dict[str, float] = {}
    best: dict[str, tuple[float, Hypothesis]] = {}
    for share, hypotheses in zip(shares, lists, strict=True):
        for hypothesis in hypotheses:
            posterior = share * (hypothesis.posterior or 0.0)
            posteriors[hypothesis.text] = posteriors.get(hypothesis.text, 0.0) + posterior
            if hypothesis.text not in best or posterior > best[hypothesis.text][0]:
                best[hypothesis.text] = posterior, hypothesis
    ranked = sorted(posteriors, key=lambda text: -posteriors[text])
    return [replace(best[text][1], posterior=posteriors[text]) for text in ranked]


_ROUNDING = 1e-4
"""Nats that a bound may be below a score by rounding."""


class HistoryAdjuster:
    """Replaces the scores of word histories in states. threshold: see `CtcOptions.adjust_threshold`."""

    def __init__(self, scorer: NeuralRescorer, reader: SymbolReader, threshold: float | None) -> None:
        self._scorer = scorer
        self._reader = reader
        self._threshold = threshold

    def adjust(self, state: PrefixState, rows: Bools) -> None:
        """Replace the scores of the words of all beams of rows (B,)."""
        places = np.argwhere((state.acoustic > NEVER) & rows[:, None]).tolist()
        if not places:
            return
        histories = self._histories(state, places)
        scores = state.acoustic + state.lm
        values = self._values(places, scores, scores - state.adjustment, histories, final=False)
        new = state.adjustment.copy()
        new[tuple(np.transpose(places))] = values
        state.lm = state.lm - state.adjustment + new
        state.adjustment = new
        adjusted = list(zip(places, histories, values, strict=True))
        for row in {row for row, _ in places}:
            dropped = [k for (b, k), _, value in adjusted if b == row and value == NEVER]
            living = [history for (b, _), history, value in adjusted if b == row and value > NEVER]
            if dropped:
                state.drop(row, np.array(dropped))
            if living:
                state.committed[row].mark_scored(living)

    def final_scores(self, state: PrefixState, scores: Floats, beams: Ints, marks: Ints) -> Floats:
        """Return the scores (B, E) of endings of beams (E,) as whole sentences. marks: (B, E)."""
        alive = np.argwhere(scores > NEVER).tolist()
        places = [(row, int(beams[i])) for row, i in alive]
        histories = self._histories(state, places, [int(marks[row, i]) for row, i in alive])
        without = scores - state.adjustment[:, beams]
        values = self._values(alive, scores, without, histories, final=True)
        for (row, i), value in zip(alive, values, strict=True):
            without[row, i] += value
        return without

    def _histories(
        self, state: PrefixState, places: Sequence[Sequence[int]], marks: Sequence[int] | None = None
    ) -> list[WordHistory]:
        histories = []
        for i, symbols in enumerate(histories_of(state, places)):
            committed = state.committed[places[i][0]]
            symbols = [*committed.open_symbols(), *symbols]
            read = self._reader
            words = read.finished_words(symbols) if marks is None else read.words(symbols, marks[i])
            newer = (HistoryWord(word.text, word.in_lexicon) for word in words)
            histories.append(committed.history().after(newer))
        return histories

    def _values(
        self,
        places: Sequence[Sequence[int]],
        scores: Floats,
        without: Floats,
        histories: Sequence[WordHistory],
        *,
        final: bool,
    ) -> list[float]:
        """Return the adjustments of hypotheses, `NEVER` for those beyond the threshold, of which those that
        cannot win are not scored.

        places: (row, column) of each in scores, and in those without adjustments.
        """
        if self._threshold is None or not places:
            return self._scorer.adjustments(histories, final=final)
        rows = [row for row, _ in places]
        at = tuple(np.transpose(places))
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
        least = [best[row] - self._threshold for row in rows]
        return [v if base[i] + v >= least[i] else NEVER for i, v in enumerate(values)]


def histories_of(state: PrefixState, places: Iterable[Sequence[int]]) -> list[list[int]]:
    lengths = state.length.tolist()
    return [state.symbols[b, k, 1 : lengths[b][k] + 1].tolist() for b, k in places]


@dataclass(frozen=True, slots=True)
class StreamUpdate:
    """A stream after a chunk.

    time_s: end of the chunk. text: the best so far. n_revised: words at the end of the text before that are
    replaced. committed: words that no further frame can change, with `CtcOptions.times`. hypotheses: as
    `EmissionDecoder.partials`, () if n_best is 1. is_final: the end, with the hypotheses of the whole stream.
    """

    time_s: float
    text: str
    changes_text: bool
    n_revised: int
    committed: tuple[Word, ...]
    hypotheses: tuple[Hypothesis, ...]
    is_final: bool = False


_READINGS_APART, _READINGS_JOINED = 4, 16
"""Word sequences per n_best that are ranked, with and without a separator."""


class EmissionDecoder:
    """Prefix beam search from emissions to text, whole or in chunks.

    lexicon: see `SymbolReader`. history_scorer: replaces the scores of words every
    `options.adjust_every_frames` frames and at the end, or None.

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
        self._reader = SymbolReader(labels, lexicon)
        self._adjuster = None
        if history_scorer is not None:
            threshold = self.options.adjust_threshold
            self._adjuster = HistoryAdjuster(history_scorer, self._reader, threshold)
        self._scaling = EmissionScaling(labels, self.options)
        self._idle = IdleSeparators(labels.blank, None if scorer is None else scorer.word_separator)

    @cached_property
    def _search(self) -> PrefixSearch:
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
        times, most = self.options.times, self.options.commit_frames
        return Committer(self._reader, self._idle, has_times=times, most_frames=most)

    def decode(
        self,
        log_probs: Emissions,
        lengths: Lengths | None = None,
        *,
        state: PrefixState | None = None,
        homophones: bool = True,
    ) -> list[list[Hypothesis]]:
        """Decode log-probabilities (B, T, V) or (T, V); return each utterance's hypotheses, best first.

        log_probs: an array of NumPy, PyTorch, JAX or another library, or lists; or a list of those of several
        networks, see `CtcOptions.combine`. lengths: (B,) frames of each utterance; None: all. state: to begin
        from; None: as `start` makes it. homophones: see `finish`.

        Raises:
            InputError: other values, labels or shapes.
            OptionError: not one weight per network, or no kernels package.
        """
        networks = networks_of(log_probs)
        if len(networks) > 1 and self.options.combine == "nbest":
            lists = [self._decoded(*self._checked_network(each, lengths), None, True) for each in networks]
            shares = network_weights(self.options.network_weights, len(networks))
            return [_joined_lists(each, shares)[: self.options.n_best] for each in zip(*lists, strict=True)]
        return self._decoded(*self._checked(log_probs, lengths), state, homophones)

    def _decoded(
        self, emissions: Floats, lengths: Ints, state: PrefixState | None, homophones: bool
    ) -> list[list[Hypothesis]]:
        if not len(lengths):
            return []
        state = self.start(len(emissions)) if state is None else state
        self._advance(state, emissions, lengths)
        return self.finish(state, homophones=homophones)

    def greedy(self, log_probs: Emissions, lengths: Lengths | None = None) -> list[Hypothesis]:
        """Decode emissions (B, T, V) or (T, V) by the likeliest path, without language models or kernels."""
        emissions, counts = self._checked(log_probs, lengths)
        if not emissions.shape[1]:
            return [Hypothesis(text="", tokens=(), score=0.0) for _ in range(len(emissions))]
        scaled = self._scaling.scores(emissions)
        path = scaled.argmax(axis=2)  # (B, T)
        is_frame = np.arange(path.shape[1]) < counts[:, None]
        scores = np.where(is_frame, scaled.max(axis=2), np.float32(0)).sum(axis=1).tolist()
        acoustic = np.take_along_axis(self._scaling.probabilities(emissions), path[:, :, None], axis=2)[
            :, :, 0
        ]
        hypotheses = []
        for row, (n_frames, score) in enumerate(zip(counts.tolist(), scores, strict=True)):
            labels = [*path[row, :n_frames].tolist(), self.labels.blank]
            turns = [t for t, label in enumerate(labels) if not t or label != labels[t - 1]]
            ends = dict(zip(turns, (*turns[1:], path.shape[1]), strict=True))
            first = [t for t in turns if labels[t] != self.labels.blank]
            tokens = [labels[t] for t in first]
            words = [
                Word(
                    word=word.text,
                    start=first[word.first] * self.options.frame_s,
                    end=ends[first[word.end - 1]] * self.options.frame_s,
                    probability=float(np.exp(acoustic[row, first[word.first : word.end]].mean())),
                )
                for word in self.labels.words(tokens)
            ]
            hypotheses.append(
                Hypothesis(
                    text=self.labels.spell(tokens),
                    tokens=tuple(tokens),
                    score=score,
                    acoustic_score=score,
                    words=tuple(words),
                    token_frames=tuple(first),
                )
            )
        return hypotheses

    def start(self, n_batch: int = 1) -> PrefixState:
        """Make the state of n_batch streams before their first frame."""
        return self._search.start(n_batch)

    def decode_chunk(
        self, state: PrefixState, log_probs: Emissions, lengths: Lengths | None = None
    ) -> list[str]:
        """Advance the state over the next frames (B, T, V) of its B streams; return the best text so far of
        each. `finish` returns the same as `decode`, for any chunks.

        Raises:
            InputError: as `decode`; also a state of another decoder or another number of streams.
        """
        self._advance(state, *self._checked(log_probs, lengths))
        self._committer.commit(state)
        best = list(enumerate((state.acoustic + state.lm).argmax(axis=1).tolist()))
        return [
            self._text_so_far(history, symbols)
            for history, symbols in zip(state.committed, histories_of(state, best), strict=True)
        ]

    def look_ahead(self, state: PrefixState, log_probs: Emissions) -> PrefixState:
        """Return a copy of a state that is advanced over frames (B, T, V) that may still change.

        Complete words of the state on which the best hypothesis of the copy is based are committed.
        """
        ahead = copy(state)
        self._advance(ahead, *self._checked(log_probs, None))
        self._committer.commit(state, ahead)
        return ahead

    def stream(self, chunks: Iterable[Emissions]) -> Iterator[StreamUpdate]:
        """Decode a stream of log-probabilities (T, V) in chunks; yield updates."""
        state, before = self.start(), ""

        def update(
            text: str, words: Iterable[Word], hypotheses: Iterable[Hypothesis], *, final: bool
        ) -> StreamUpdate:
            old, new = before.split(), text.split()
            same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))
            now, n_revised = int(state.n_frames[0]) * self.options.frame_s, len(old) - len(list(same))
            return StreamUpdate(now, text, text != before, n_revised, tuple(words), tuple(hypotheses), final)

        for chunk in chunks:
            text = self.decode_chunk(state, chunk)[0]
            words = [word for event in self.committed(state) for word in event.words]
            hypotheses = self.partials(state)[0] if self.options.n_best > 1 else []
            yield update(text, words, hypotheses, final=False)
            before = text
        hypotheses = self.finish(state)[0]
        best = hypotheses[0] if hypotheses else Hypothesis(text="", tokens=(), score=0.0)
        yield update(best.text, best.words[len(state.committed[0].words) :], hypotheses, final=True)

    def committed(self, state: PrefixState) -> list[Partial]:
        """Return the words committed since the last call, at most one event per stream; its row is
        `utterance`. Without `CtcOptions.times` it has no words.
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
                    text=self._reader.join([word.text for word in words]),
                    language="",
                    words=timed,
                    emission_time=now,
                    utterance=row,
                )
            )
        return events

    def partials(self, state: PrefixState) -> list[list[Hypothesis]]:
        """Return the n_best texts so far of each stream, best first. Those of one text are merged. tokens and
        words follow the committed words; the state is unchanged.
        """
        endings: list[Ending] = []
        texts: list[str] = []
        for history, ranked in zip(state.committed, ranked_beams(state), strict=True):
            by_text: dict[str, Ending] = {}
            for each in ranked:
                text = self._text_so_far(history, each.symbols)
                first = by_text.setdefault(text, each._replace(posterior=0.0))
                by_text[text] = first._replace(posterior=first.posterior + each.posterior)
            endings += list(by_text.values())[: self.options.n_best]
            texts += list(by_text)[: self.options.n_best]
        return self._hypotheses(state, endings, texts)

    def finish(
        self, state: PrefixState, *, n_best: int | None = None, homophones: bool = True
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of finished streams; the state is unchanged. If none of an utterance can be
        completed, all have `is_unfinished` and their search scores.

        n_best: None: that of the options. homophones: whether lists have homophones that the search pruned.
        """
        self._search.check(state, len(state.length))
        if not len(state.length):
            return []
        n_best = n_best or self.options.n_best
        endings = self._endings(state, n_best)
        if self._adjuster is None and homophones:
            endings = self._with_pruned(state, endings, n_best)
        return self._hypotheses(state, endings)

    def _text_so_far(self, history: CommittedHistory, later: Sequence[int]) -> str:
        symbols = [*history.open_symbols(), *later]
        return self._reader.join([history.text, self._reader.text(symbols, self._reader.words(symbols))])

    def _checked(self, emissions: Emissions, lengths: Lengths | None) -> tuple[Floats, Ints]:
        networks = [self._checked_network(each, lengths) for each in networks_of(emissions)]
        shares = network_weights(self.options.network_weights, len(networks))
        if len(networks) == 1:
            return networks[0]
        if not self.options.is_normalised:
            raise OptionError("networks: expected log-probabilities to average, got is_normalised=False")
        if self.options.combine != "mean":
            raise OptionError("combine: expected 'mean' for a stream or a greedy path, got 'nbest'")
        return mean_log_probs([values for values, _ in networks], shares), networks[0][1]

    def _checked_network(self, emissions: Emitted, lengths: Lengths | None) -> tuple[Floats, Ints]:
        is_normalised = self.options.is_normalised
        return checked(*as_arrays(emissions, lengths), len(self.labels), is_normalised=is_normalised)

    def _advance(self, state: PrefixState, emissions: Floats, lengths: Ints) -> None:
        self._search.check(state, len(lengths))
        log_probs, scores = self._scaling.probabilities(emissions), self._scaling.scores(emissions)
        if self.options.times:
            state.emissions.append((log_probs, lengths))
        state.n_frames = state.n_frames + lengths
        if self.options.blank_skip is not None:
            blank = self.labels.blank
            is_likely = np.exp(log_probs[:, :, blank]) > self.options.blank_skip
            scores, lengths = state.without_blank_runs(scores, lengths, blank=blank, is_likely=is_likely)
        every = self.options.adjust_every_frames
        if self._adjuster is None or every is None:
            self._search.run(state, scores, lengths)
            return
        begin = 0  # each utterance is adjusted after so many of its own frames, whatever the chunks and batch
        while (is_running := lengths > begin).any():
            left = every - state.n_searched % every
            part = scores[:, begin : begin + left[is_running].min()]
            counts = (lengths - begin).clip(0, part.shape[1])
            self._search.run(state, part, counts)
            self._adjuster.adjust(state, (counts > 0) & (state.n_searched % every == 0))
            begin += part.shape[1]

    def _endings(self, state: PrefixState, n_best: int) -> list[Ending]:
        n_batch, n_beams = state.length.shape
        ranked = state.acoustic + state.lm
        endings, marks = self._search.endings(state.scores.reshape(n_batch * n_beams, -1))
        n_ways = endings.shape[1]
        scores = (ranked[:, :, None] + endings.reshape(n_batch, n_beams, n_ways)).reshape(n_batch, -1)
        marks = marks.reshape(n_batch, -1)
        is_stuck = ~(scores > NEVER).any(axis=1)
        if self._adjuster is not None:
            beams = np.arange(scores.shape[1]) // n_ways
            scores = self._adjuster.final_scores(state, scores, beams, marks)
        scores[is_stuck, ::n_ways] = ranked[is_stuck]
        marks[is_stuck] = UNFINISHED
        index = (-scores).argsort(axis=1, kind="stable")[:, :n_best]
        best, marks = (np.take_along_axis(part, index, axis=1) for part in (scores, marks))
        shares = _posteriors(best, scores + state.merged.repeat(n_ways, axis=1))
        listed = _listed(state, best, shares, index // n_ways, marks)
        return list(itertools.chain.from_iterable(listed))

    def _with_pruned(self, state: PrefixState, endings: list[Ending], n_best: int) -> list[Ending]:
        """Merge in pruned homophones, except of unfinished utterances and committed words."""
        if n_best == 1 or self._scorer is None or self._scorer.n_arcs == 1:
            return endings
        n_labels, acoustic, lm_offset = len(self.labels), state.acoustic.tolist(), state.lm_offset.tolist()
        beams: dict[tuple[int, tuple[int, ...]], int] = {}
        """The likeliest, by utterance and labels."""
        for ending in endings:
            if state.committed[ending.row].symbols or ending.mark == UNFINISHED:
                continue
            key = ending.row, tuple(symbol % n_labels for symbol in ending.symbols)
            of_row = acoustic[ending.row]
            if key not in beams or of_row[ending.beam] > of_row[beams[key]]:
                beams[key] = ending.beam
        each = _READINGS_JOINED if self._scorer.word_separator is None else _READINGS_APART
        labels = [labels for _, labels in beams]
        readings = self._search.readings(labels, each * n_best) if beams else []
        more = [
            Ending(row, acoustic[row][beam] + score - lm_offset[row], 0.0, beam, mark, symbols)
            for ((row, _), beam), several in zip(beams.items(), readings, strict=True)
            for symbols, mark, score in several
        ]
        return merge_rescored(endings, more, n_best)

    def _hypotheses(
        self, state: PrefixState, endings: Sequence[Ending], texts: Sequence[str] | None = None
    ) -> list[list[Hypothesis]]:
        """Make hypotheses. texts: of unfinished ones, which follow the committed words."""
        spans = self._align(state, endings) if self.options.times and state.emissions else None
        acoustic = state.acoustic.tolist()
        offsets = list(zip(state.acoustic_offset.tolist(), state.lm_offset.tolist(), strict=True))
        n_labels = len(self.labels)
        hypotheses: list[list[Hypothesis]] = [[] for _ in range(len(state.length))]
        for i, ending in enumerate(endings):
            history, score = state.committed[ending.row], acoustic[ending.row][ending.beam]
            begin = 0 if texts is None else history.n_closed
            symbols = [*history.symbols[begin:], *ending.symbols]
            times = None if spans is None else history.times(spans[i], begin)
            spelled = self._reader.words(symbols, ending.mark)
            before, of_lm = offsets[ending.row]  # what was subtracted from the scores during the search
            hypotheses[ending.row].append(
                Hypothesis(
                    text=self._reader.text(symbols, spelled) if texts is None else texts[i],
                    tokens=tuple(symbol % n_labels for symbol in symbols),
                    score=ending.score + before + of_lm,
                    acoustic_score=score + before,
                    lm_score=ending.score - score + of_lm,
                    words=() if times is None else tuple(self._word(word, times) for word in spelled),
                    token_frames=() if times is None else tuple(times.first),
                    posterior=ending.posterior,
                    is_unfinished=ending.mark == UNFINISHED,
                )
            )
        return hypotheses

    def _align(self, state: PrefixState, endings: Sequence[Ending]) -> list[TokenTimes]:
        tokens, lengths = padded([ending.symbols for ending in endings])
        if not tokens.size:
            return [TokenTimes([], [], []) for _ in endings]
        n_labels = len(self.labels)
        labels = tokens % n_labels
        rows, beams = (np.array([ending[i] for ending in endings]) for i in (0, 3))
        emissions, n_frames = state.joined()
        spans = align(
            self._idle.emissions(emissions),
            n_frames,
            labels,
            lengths,
            rows=rows,
            blank=self._idle.blanks(labels, state.symbols[rows, beams, 0] % n_labels, n_labels),
        )
        return token_times(spans, lengths.tolist())

    def _word(self, word: SpelledWord, times: TokenTimes) -> Word:
        peaks = times.peak[word.first : word.end]
        return Word(
            word=word.text,
            start=times.first[word.first] * self.options.frame_s,
            end=(times.last[word.end - 1] + 1) * self.options.frame_s,
            probability=math.exp(sum(peaks) / len(peaks)),
        )


def _named(labels: Sequence[str], blank: int | None) -> Labels:
    """Return labels with their blank, which -1 counts from the end. Raises: OptionError."""
    is_list = isinstance(labels, Iterable) and not isinstance(labels, Mapping | set | frozenset)
    is_names = is_list and all(isinstance(name, str) for name in labels)
    place = named_blank(labels) if is_names and blank is None else blank
    is_text = isinstance(labels, str) and (place is None or len(set(labels)) < len(labels))
    if not is_names or is_text:
        raise OptionError(
            f"labels: expected a list of their names, got {labels!r:.80} (`labels_of` reads a file)"
        )
    if place is None and len(labels):
        raise OptionError(
            "blank: expected its index (--blank), or a label named <blank>, <pad> or _, got none"
        )
    try:
        return Labels.of(labels, 0 if place is None else operator.index(place))
    except TypeError as error:
        raise OptionError(f"blank: expected an index, got {blank!r}") from error


def _step_scores(model: LanguageModel, ids: Sequence[int]) -> Doubles:
    """Return the scores (N,) of a sentence's ids; the last with that of the end."""
    state, scores = model.start(1), np.zeros(len(ids))
    for place, each in enumerate(ids):
        score, state = model.score(state, np.array([each]))
        scores[place] = score[0]
    scores[-1] += model.finish(state)[0]
    return scores


def _beside(hypothesis: Hypothesis, word: Word) -> list[Word]:
    """Return the words of a hypothesis that overlap a word of another."""
    return [each for each in hypothesis.words if each.start < word.end and word.start < each.end]


def ranked_beams(state: PrefixState) -> list[list[Ending]]:
    """Return the living beams of each utterance, best first."""
    ranked = state.acoustic + state.lm
    beams = (-ranked).argsort(axis=1, kind="stable")
    best, with_merged = (np.take_along_axis(part, beams, axis=1) for part in (ranked, ranked + state.merged))
    return _listed(state, best, _posteriors(with_merged, with_merged), beams, np.zeros_like(beams))


def _listed(
    state: PrefixState, scores: Floats, shares: Floats, beams: Ints, marks: Ints
) -> list[list[Ending]]:
    endings: list[list[Ending]] = [[] for _ in range(len(state.length))]
    for row, *columns in zip(itertools.count(), *(each.tolist() for each in (scores, shares, beams, marks))):
        possible = [column for column in zip(*columns, strict=True) if column[0] > NEVER]
        symbols = histories_of(state, [(row, beam) for _, _, beam, _ in possible])
        for (score, share, beam, mark), each in zip(possible, symbols, strict=True):
            endings[row].append(Ending(row, score, share, beam, mark, tuple(each)))
    return endings


def _posteriors(some: Floats, scores: Floats) -> Floats:
    """Return the posteriors of `some` (B, n) among all (B, m), without waking threads."""
    with np.errstate(invalid="ignore"):  # where nothing is possible
        shares: Floats = np.exp(some - np.logaddexp.reduce(scores, axis=1, keepdims=True))
    return shares


class CtcDecoder(EmissionDecoder):
    """Decodes the emissions of any CTC model, with language models.

    labels: one name per output.
    blank: its index, -1 for the last; None: that of the label with its name (see `labels.named_blank`). The
    attribute `labels.blank` says which it is.
    lm: a trie of `sottovoce lm`, an ARPA file (.gz too), a KenLM binary, or a model; or several, as a mapping
    or pairs, with weights that replace `CtcFusionOptions.lm_weight`.
    label_lm: one over labels, next to an `lm` over words.
    lexicon: a file as in `lm.lexicon.read_lexicon`; words, (word, labels) pairs or a mapping of words to
    their labels, as ids or names; or the tree of another decoder with the same labels and hotwords. None: the
    words of `lm` in characters, and unknown words.
    hotwords: a file, phrases, or phrases with weights per label.

    A decoder can be copied and pickled; files are read anew.
    neural_lm: a Hugging Face causal model's folder or name, the folder of a LoRA adapter (extra `neural-lm`),
    or a model in Python with `start`, `score` and `finish` (see `lm.rescoring.StatefulModel`); its scores
    replace the n-gram's.
    beam_size, n_best: override the options.
    unknown_words: whether words outside the lexicon are allowed; None: only without a given lexicon.
    device: of the neural model. The search runs on the CPU.

    Raises:
        OptionError: options that do not fit together.
        LanguageModelError: files or words that cannot be used.
        MissingExtraError: a model whose package is not installed.
    """

    def __init__(
        self,
        labels: Sequence[str],
        blank: int | None = None,
        *,
        lm: Ngrams | None = None,
        label_lm: str | Path | WordModel | None = None,
        lexicon: str | Path | Entries | Lexicon | None = None,
        hotwords: Hotwords | None = None,
        neural_lm: str | Path | WordLanguageModel | StatefulModel[Any] | None = None,
        beam_size: int | None = None,
        n_best: int | None = None,
        unknown_words: bool | None = None,
        fusion: CtcFusionOptions | None = None,
        options: CtcOptions | None = None,
        device: str = "cpu",
    ) -> None:
        # A copy reads them again.
        hotwords = list(hotwords) if isinstance(hotwords, Iterator) else hotwords
        lexicon = list(lexicon) if isinstance(lexicon, Iterator) else lexicon
        given = dict(locals())
        del given["self"], given["__class__"]
        self._make: Callable[[], CtcDecoder] = partial(type(self), **given)
        named = _named(labels, blank)
        check_kind("options", options, CtcOptions)
        check_kind("fusion", fusion, CtcFusionOptions)
        options = options or CtcOptions()
        options = replace(
            options,
            beam_size=options.beam_size if beam_size is None else beam_size,
            n_best=options.n_best if n_best is None else n_best,
        )
        fusion = fusion or CtcFusionOptions()
        models = weighted_ngrams(lm, default_weight=fusion.lm_weight)
        label_model = None if label_lm is None else load_ngram(label_lm)
        weight = fusion.hotword_weight
        phrases = [] if hotwords is None else listed_phrases(hotwords, default_weight=weight)
        parts = self._parts = DecoderParts(named, fusion)
        scorer, self.lexicon = parts.scorer(models, lexicon, phrases, unknown_words, label_model)
        """The words' tree, made or given; None without a lexicon."""
        rescorer = None
        if isinstance(neural_lm, str | Path):
            neural_lm = causal_words(str(neural_lm), fusion, device)
        if isinstance(neural_lm, StatefulModel):
            neural_lm = StatefulWords(neural_lm)
        if not isinstance(neural_lm, WordLanguageModel | None):
            raise OptionError(
                "neural_lm: expected a name, a folder, or a model with start, score and finish, got "
                f"{neural_lm!r:.80}"
            )
        if neural_lm is not None:
            rescorer = NeuralRescorer(
                neural_lm,
                fusion.neural_weight,
                replaces=[] if self.lexicon is None else [(m, w * (1 - fusion.lm_kept)) for m, w in models],
            )
        words = () if self.lexicon is None else self.lexicon.words
        self._rescorer = rescorer
        super().__init__(named, options, scorer=scorer, lexicon=words, history_scorer=rescorer)

    def __copy__(self) -> CtcDecoder:
        return self  # nothing changes in a decoder

    def __reduce__(self) -> tuple[Callable[[], CtcDecoder], tuple[()]]:
        return self._make, ()

    def decode_logits(self, logits: Emissions, lengths: Lengths | None = None) -> list[list[Hypothesis]]:
        """Decode logits (B, T, V), such as those of transformers' `Wav2Vec2ForCTC`; see `decode`."""
        networks = [log_softmax(as_arrays(each, None)[0].astype(np.float32)) for each in networks_of(logits)]
        return self.decode(networks if len(networks) > 1 else networks[0], lengths)

    def explain(self, log_probs: Emissions, hypothesis: Hypothesis) -> list[WordScores]:
        """Explain a hypothesis of emissions (T, V) word by word; it needs `CtcOptions.times`.

        Rivals are those of the final beam. Over all words, the scores of language models sum to `lm_score`,
        and `acoustic` to the likeliest path, which is less than `acoustic_score`, the sum of all paths.

        Raises:
            OptionError: a hypothesis without times.
        """
        if hypothesis.tokens and not hypothesis.token_frames:
            raise OptionError("explain: expected a hypothesis with times, got one without")
        if not hypothesis.words:
            return []
        emissions, lengths = self._checked(log_probs, None)
        state = self.start()
        self._advance(state, emissions, lengths)
        others = [each for each in self.finish(state, n_best=self.options.beam_size)[0] if each != hypothesis]
        frame_of = {frame: place for place, frame in enumerate(hypothesis.token_frames)}
        begins = [0, *(frame_of[round(w.start / self.options.frame_s)] for w in hypothesis.words[1:])]
        acoustic = self._path_scores(self._scaling.scores(emissions), hypothesis.tokens, begins)
        parts: dict[str, Doubles] = {kind: np.zeros(len(begins)) for kind in ("ngram", "hotword")}
        index = {} if self.lexicon is None else {word: i for i, word in enumerate(self.lexicon.words)}
        words = [index.get(word.word, index.get(None, 0)) for word in hypothesis.words]
        fusion = self._parts.options
        kept = 1.0 if self._rescorer is None else fusion.lm_kept
        for kind, model, ids, weight, over_words in self._parts.scored:
            scores = _step_scores(model, [ids[each] for each in (words if over_words else hypothesis.tokens)])
            parts[kind] += (
                scores * weight * (kept if kind == "ngram" else 1.0)
                if over_words
                else np.add.reduceat(scores, begins) * weight
            )
        known = [HistoryWord(word.word, word.word in index or not index) for word in hypothesis.words]
        neural = [0.0] * len(words) if self._rescorer is None else self._rescorer.word_scores(known)
        explained = []
        for i, word in enumerate(hypothesis.words):
            place = (each for each in others if all(w.word != word.word for w in _beside(each, word)))
            rival = max(place, key=lambda each: each.score, default=None)
            bonus = fusion.word_score + (0.0 if known[i].in_lexicon else fusion.unknown_score)
            explained.append(
                WordScores(
                    word,
                    float(acoustic[i]),
                    float(parts["ngram"][i]),
                    float(parts["hotword"][i]),
                    neural[i],
                    bonus,
                    None if rival is None else " ".join(w.word for w in _beside(rival, word)),
                    None if rival is None else hypothesis.score - rival.score,
                )
            )
        return explained

    def _path_scores(self, scores: Floats, tokens: Sequence[int], begins: Sequence[int]) -> Floats:
        """Return the scores (N,) of the likeliest path of tokens by the words that begin at N of them."""
        labels, n_labels = np.array([tokens]), len(self.labels)
        seen, n_frames = self._idle.emissions(scores)[0], scores.shape[1]
        first_symbol = self.labels.blank if self._idle.separator is None else self._idle.separator
        blanks = np.broadcast_to(
            self._idle.blanks(labels, np.array([first_symbol]), n_labels), (1, len(tokens) + 1)
        )[0]
        lengths = np.array([n_frames]), np.array([len(tokens)])
        spans = align(
            seen[None], lengths[0], labels, lengths[1], rows=np.zeros(1, np.int64), blank=blanks[None]
        )
        frames = np.arange(n_frames)
        after = np.searchsorted(spans.first[0], frames, side="right")  # tokens that have begun
        is_token = (after > 0) & (frames <= spans.last[0][after - 1])
        path = np.where(is_token, labels[0][after - 1], blanks[after])
        return np.add.reduceat(seen[frames, path], [0, *spans.first[0][begins[1:]]])

    @classmethod
    def from_config(cls, path: str | Path, *, device: str = "cpu") -> CtcDecoder:
        """Make the decoder of a `decoder.toml`. Raises: as `read_config` and the class."""
        config = read_config(path)
        return cls(*config.label_list(), **config.arguments, device=device)
