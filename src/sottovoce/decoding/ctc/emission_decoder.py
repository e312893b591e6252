"""CTC decoding: emissions in, hypotheses with words and times out; greedy, or by prefix beam search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from sottovoce.decoding.ctc.committing import Committer, newly_committed
from sottovoce.decoding.ctc.compiled import fastest
from sottovoce.decoding.ctc.emissions import checked, joined, without_blank_runs
from sottovoce.decoding.ctc.past import Past
from sottovoce.decoding.ctc.rereading import Ending, best_readings, reread
from sottovoce.decoding.ctc.search import PrefixSearch
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.decoding.ctc.state import NEVER, PrefixState
from sottovoce.decoding.ctc.text import UNFINISHED, Labels, SpelledWord, Speller
from sottovoce.decoding.ctc.times import TokenTimes, token_times
from sottovoce.decoding.ctc.weighing import Weighing
from sottovoce.errors import OptionError
from sottovoce.lm.base import Floats, HistoryScorer, PrefixScorer
from sottovoce.types import Hypothesis, Partial, Word


class EmissionDecoder:
    """Prefix beam search from emissions to text, whole or in chunks.

    scorer: language models, lexicon and boosting. lexicon: the words of the scorer's marks, see
    `Speller`. history_scorer: replaces the score of the words said so far every
    `options.adjust_every_frames` frames, and at the end.
    """

    def __init__(
        self,
        labels: Labels,
        options: CtcOptions | None = None,
        *,
        scorer: PrefixScorer | None = None,
        lexicon: Sequence[str | None] = (),
        history_scorer: HistoryScorer | None = None,
    ) -> None:
        self.labels = labels
        self.options = options or CtcOptions()
        if scorer is not None and scorer.n_tokens != len(labels):
            raise OptionError(f"language models: expected {len(labels)} labels, got {scorer.n_tokens}")
        self._scorer = scorer
        self._history_scorer = history_scorer
        self._speller = Speller(labels, lexicon)
        self._weighing = Weighing.of(labels, self.options)
        search = PrefixSearch(
            len(labels),
            labels.blank,
            self.options.beam_size,
            scorer=scorer,
            # What scores whole histories can tell apart whatever was said.
            n_kept=self.options.n_best if history_scorer is None else None,
            beam_threshold=self.options.beam_threshold,
            top_tokens=self.options.top_tokens,
        )
        self._search = fastest(search, self.options.engine)
        self._committer = Committer(
            self._search,
            self._speller,
            self._with_idle_gaps,
            has_times=self.options.times,
            most_frames=self.options.commit_frames,
        )

    def decode(self, log_probs: Tensor, lengths: Tensor | None = None) -> list[list[Hypothesis]]:
        """Decode log-probabilities (B, T, V) or (T, V); returns per utterance its best, best first.

        lengths: (B,) frames of each utterance; None: all. Raises InputError: not log-probabilities of
        these labels.
        """
        log_probs, lengths = self._checked(log_probs, lengths)
        if not len(lengths):
            return []
        state = self.start(log_probs.shape[0], log_probs.device)
        self._advance(state, log_probs, lengths)
        return self.finish(state)

    def start(self, n_batch: int = 1, device: torch.device | None = None) -> PrefixState:
        """The state of n_batch utterances before their first frame."""
        return self._search.start(n_batch, device or torch.device("cpu"))

    def decode_chunk(self, state: PrefixState, log_probs: Tensor, lengths: Tensor | None = None) -> list[str]:
        """Advance the state over the next frames (B, T, V); returns the best text so far per utterance.

        A text so far may still change, but for its beginning that `committed` tells. Whatever the chunks,
        `finish` returns what `decode` does.
        """
        log_probs, lengths = self._checked(log_probs, lengths)
        self._advance(state, log_probs, lengths)
        self._committer.commit(state)
        best = list(enumerate((state.acoustic + state.lm).argmax(dim=1).tolist()))
        return [
            self._text_so_far(past, [*past.open_symbols(), *symbols])
            for past, symbols in zip(state.past, _histories(state, best), strict=True)
        ]

    def committed(self, state: PrefixState) -> list[Partial]:
        """What no further frame can change and was not told before: an event an utterance that has some.

        utterance: its row of the batch. start, end and words are known with the option `times` alone.
        """
        return newly_committed(state, self._speller, self.options.frame_s)

    def finish(self, state: PrefixState) -> list[list[Hypothesis]]:
        """The hypotheses of a state after its last frame; the state itself is left as it is.

        Where every one of an utterance is inside a word that cannot be completed, they are given as they are,
        `is_unfinished`, with the score that the search ranked them by.
        """
        if not len(state.length):
            return []
        found = [
            Ending(b, *ending)
            for b, endings in enumerate(self._endings(state))
            for ending in endings
            if ending[0] > NEVER
        ]
        symbols = _histories(state, [(ending.utterance, ending.beam) for ending in found])
        if self.options.n_readings > 1:
            found, symbols = self._with_other_readings(state, found, symbols)
        spans = self._align(state, found, symbols) if self.options.times and state.emissions else None
        heard = state.acoustic.tolist()
        hypotheses: list[list[Hypothesis]] = [[] for _ in range(len(state.length))]
        for i, (ending, history) in enumerate(zip(found, symbols, strict=True)):
            past = state.past[ending.utterance]
            hypothesis = self._hypothesis(
                [*past.symbols, *history],
                ending,
                heard[ending.utterance][ending.beam],
                None if spans is None else past.times(spans[i]),
            )
            hypotheses[ending.utterance].append(_counted_from(hypothesis, state, ending.utterance))
        return hypotheses

    def _text_so_far(self, past: Past, symbols: Sequence[int]) -> str:
        return self._speller.together([past.text, self._speller.text(symbols, self._speller.words(symbols))])

    def _checked(self, emissions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        return checked(
            emissions,
            lengths,
            len(self.labels),
            is_normalised=self.options.is_normalised,
            trusted=self._search.trusts,
        )

    def _advance(self, state: PrefixState, emissions: Tensor, lengths: Tensor) -> None:
        log_probs, scores = self._weighing.probabilities(emissions), self._weighing.scores(emissions)
        if self.options.times:
            state.emissions.append((log_probs, lengths))
        state.n_frames = state.n_frames + lengths
        if self.options.blank_skip is not None:
            blank = self.labels.blank
            is_likely = log_probs[:, :, blank].exp() > self.options.blank_skip
            scores, lengths = without_blank_runs(state, scores, lengths, blank=blank, is_likely=is_likely)
        if self._history_scorer is None:
            self._run(state, scores, lengths)
        else:
            self._run_and_adjust(state, scores, lengths)

    def _run_and_adjust(self, state: PrefixState, log_probs: Tensor, lengths: Tensor) -> None:
        """Stop wherever one of the utterances has made another `adjust_every_frames` of its own frames.

        Their own, so that neither chunks nor the rest of the batch change what is found.
        """
        every, begin = self.options.adjust_every_frames, 0
        while bool((is_running := lengths > begin).any()):
            left = every - state.n_searched % every
            part = log_probs[:, begin : begin + int(left[is_running].min())]
            counts = (lengths - begin).clamp(0, part.shape[1])
            self._run(state, part, counts)
            self._adjust(state, (counts > 0) & (state.n_searched % every == 0))
            begin += part.shape[1]

    def _run(self, state: PrefixState, log_probs: Tensor, lengths: Tensor) -> None:
        n_full = int(lengths.min()) if len(lengths) else 0
        self._search.run(state, log_probs, lengths, n_full)
        state.n_searched = state.n_searched + lengths

    def _adjust(self, state: PrefixState, rows: Tensor) -> None:
        """Let the history scorer replace what was added for the words of the beams of rows (B,) bool."""
        assert self._history_scorer is not None
        places = ((state.acoustic > NEVER) & rows[:, None]).nonzero().tolist()
        if not places:
            return
        histories = [
            self._finished_words(state.past[place[0]], symbols)
            for place, symbols in zip(places, _histories(state, places), strict=True)
        ]
        values = self._history_scorer.adjustments(histories, final=False)
        new = state.adjustment.clone()
        new[tuple(torch.tensor(places).t())] = torch.tensor(values, device=new.device)
        state.lm = state.lm - state.adjustment + new
        state.adjustment = new

    def _finished_words(self, past: Past, symbols: Sequence[int]) -> tuple[str, ...]:
        newer = self._speller.finished_words([*past.open_symbols(), *symbols])
        return (*past.words, *(word.text for word in newer))

    def _words(self, past: Past, symbols: Sequence[int], mark: int) -> tuple[str, ...]:
        newer = self._speller.words([*past.open_symbols(), *symbols], mark)
        return (*past.words, *(word.text for word in newer))

    def _endings(self, state: PrefixState) -> list[list[tuple[float, float, int, int]]]:
        """Score, posterior, beam and mark of the best complete hypotheses of every utterance, best first."""
        n_batch, n_beams = state.length.shape
        ranked = state.acoustic + state.lm
        scores = ranked[:, :, None]  # (B, K, E)
        endings = self._search.endings(state.scores.reshape(n_batch * n_beams, -1))
        if endings is None:
            marks = torch.zeros_like(state.length)[:, :, None]
        else:
            scores = scores + endings.scores.view(n_batch, n_beams, -1)
            marks = endings.marks.view(n_batch, n_beams, -1)
        scores, marks = scores.flatten(1), marks.flatten(1)
        n_ways = scores.shape[1] // n_beams
        is_stuck = ~(scores > NEVER).any(dim=1)
        if self._history_scorer is not None:
            beams = torch.arange(scores.shape[1], device=scores.device) // n_ways
            scores = self._adjusted(state, scores, beams, marks)
        scores[is_stuck, ::n_ways] = ranked[is_stuck]
        marks[is_stuck] = UNFINISHED
        best, index = scores.topk(min(self.options.n_best, scores.shape[1]), dim=1)
        with_merged = scores + state.merged.repeat_interleave(n_ways, dim=1)
        shares = _shares(best.cpu().numpy(), with_merged.cpu().numpy())
        parts = [part.tolist() for part in (best, shares, index // n_ways, marks.gather(1, index))]
        return [list(zip(*rows, strict=True)) for rows in zip(*parts, strict=True)]

    def _adjusted(self, state: PrefixState, scores: Tensor, beams: Tensor, marks: Tensor) -> Tensor:
        """Final scores (B, K * E) with adjustments for whole sentences."""
        assert self._history_scorer is not None
        alive = (scores > NEVER).nonzero().tolist()
        symbols = _histories(state, [(b, int(beams[i])) for b, i in alive])
        histories = [
            self._words(state.past[b], history, int(marks[b, i]))
            for history, (b, i) in zip(symbols, alive, strict=True)
        ]
        values = self._history_scorer.adjustments(histories, final=True)
        scores = scores - state.adjustment.gather(1, beams.expand(len(scores), -1))
        for (b, i), value in zip(alive, values, strict=True):
            scores[b, i] += value
        return scores

    def _with_other_readings(
        self, state: PrefixState, found: list[Ending], symbols: list[list[int]]
    ) -> tuple[list[Ending], list[list[int]]]:
        """The best of the endings and of all other readings of the beams' labels, with their symbols.

        Utterances of which a part is settled stay as they are: what was told is not read again.
        """
        if self._history_scorer is None or self._scorer is None or self._scorer.n_arcs == 1:
            return found, symbols
        places = [(b, k) for b, k in state.is_alive.nonzero().tolist() if not state.past[b].symbols]
        beams = [(b, k, row) for (b, k), row in zip(places, _histories(state, places), strict=True)]
        more = reread(self._scorer, state, beams, most=self.options.n_readings)
        words = [self._words(state.past[one.utterance], one.symbols, one.mark) for one in more]
        values = self._history_scorer.adjustments(words, final=True)
        return best_readings(
            list(zip(found, symbols, strict=True)),
            [one._replace(score=one.score + value) for one, value in zip(more, values, strict=True)],
            {(b, tuple(row)) for b, _, row in beams},
            self.options.n_best,
        )

    def _align(
        self, state: PrefixState, found: Sequence[Ending], symbols: Sequence[Sequence[int]]
    ) -> list[TokenTimes] | None:
        n_tokens = [len(history) for history in symbols]
        longest = max(n_tokens, default=0)
        if not longest:
            return [TokenTimes([], [], []) for _ in found]
        tokens = np.zeros((len(symbols), longest), dtype=np.int64)
        for row, history in enumerate(symbols):
            tokens[row, : len(history)] = history
        log_probs, lengths = joined(state)
        log_probs = self._with_idle_gaps(log_probs)
        device = state.length.device
        spans = self._search.align(
            log_probs,
            lengths,
            torch.from_numpy(tokens % len(self.labels)).to(device),
            torch.tensor(n_tokens, device=device),
            rows=torch.tensor([ending.utterance for ending in found], device=device),
            blank=self.labels.blank,
        )
        return token_times(spans, n_tokens)

    def _with_idle_gaps(self, log_probs: Tensor) -> Tensor:
        """Let separators that say nothing, which no hypothesis holds, pass for blanks.

        Those that say something are a little likelier.
        """
        gap = None if self._scorer is None else self._scorer.gap
        if gap is None:
            return log_probs
        idle = torch.maximum(log_probs[:, :, self.labels.blank], log_probs[:, :, gap] - 1e-3)
        return log_probs.index_copy(
            2, torch.tensor([self.labels.blank], device=idle.device), idle[:, :, None]
        )

    def _hypothesis(
        self, symbols: list[int], ending: Ending, acoustic: float, times: TokenTimes | None
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
        """Its probability is the geometric mean over its tokens of the highest probability in their span."""
        peaks = times.peak[word.first : word.end]
        return Word(
            word=word.text,
            start=times.first[word.first] * self.options.frame_s,
            end=(times.last[word.end - 1] + 1) * self.options.frame_s,
            probability=math.exp(sum(peaks) / len(peaks)),
        )


def _shares(some: Floats, scores: Floats) -> Floats:
    """Shares (B, n) of log-probabilities in all (B, m). In NumPy: torch would wake threads for this."""
    with np.errstate(invalid="ignore"):  # where nothing is possible
        shares: Floats = np.exp(some - np.logaddexp.reduce(scores, axis=1, keepdims=True))
    return shares


def _counted_from(hypothesis: Hypothesis, state: PrefixState, row: int) -> Hypothesis:
    """With what was taken off the scores of an utterance on the way."""
    heard, added = float(state.skipped[row]), float(state.taken[row])
    if not heard and not added:
        return hypothesis
    return replace(
        hypothesis,
        score=hypothesis.score + heard + added,
        acoustic_score=hypothesis.acoustic_score + heard,
        lm_score=hypothesis.lm_score + added,
    )


def _histories(state: PrefixState, places: Iterable[Sequence[int]]) -> list[list[int]]:
    """The symbols of beams, given as (utterance, beam)."""
    symbols, lengths = state.symbols.cpu().numpy(), state.length.tolist()
    return [symbols[b, k, 1 : lengths[b][k] + 1].tolist() for b, k in places]
