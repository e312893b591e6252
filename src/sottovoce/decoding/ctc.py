"""CTC decoding: emissions in, hypotheses with words and times out; greedy, or by prefix beam search."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sottovoce.decoding.ctc_align import TokenSpans, align
from sottovoce.decoding.ctc_compiled import fastest
from sottovoce.decoding.ctc_emissions import checked, joined, without_blank_runs
from sottovoce.decoding.ctc_options import CtcOptions
from sottovoce.decoding.ctc_search import PrefixSearch
from sottovoce.decoding.ctc_state import NEVER, PrefixState
from sottovoce.decoding.ctc_text import Labels, SpelledWord, Speller
from sottovoce.errors import OptionError
from sottovoce.lm.base import HistoryScorer, PrefixScorer
from sottovoce.types import Hypothesis, Word


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
        search = PrefixSearch(
            len(labels),
            labels.blank,
            self.options.beam_size,
            scorer=scorer,
            beam_threshold=self.options.beam_threshold,
            top_tokens=self.options.top_tokens,
        )
        self._search = fastest(search, self.options.engine)

    def decode(self, log_probs: Tensor, lengths: Tensor | None = None) -> list[list[Hypothesis]]:
        """Decode log-probabilities (B, T, V) or (T, V); returns per utterance its best, best first.

        lengths: (B,) frames of each utterance; None: all. Raises InputError: not log-probabilities of
        these labels.
        """
        log_probs, lengths = checked(log_probs, lengths, len(self.labels))
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

        A text so far may still change. Whatever the chunks, `finish` returns what `decode` does.
        """
        log_probs, lengths = checked(log_probs, lengths, len(self.labels))
        self._advance(state, log_probs, lengths)
        return [self._speller.text(self._history(state, b, 0)) for b in range(len(state.length))]

    def finish(self, state: PrefixState) -> list[list[Hypothesis]]:
        """The hypotheses of a state after its last frame; the state itself is left as it is.

        An utterance whose every hypothesis is inside a word that cannot be completed has none.
        """
        if not len(state.length):
            return []
        scores, beams, marks = self._endings(state)
        found = [
            [
                (float(scores[b, i]), int(beams[b, i]), int(marks[b, i]))
                for i in range(scores.shape[1])
                if scores[b, i] > NEVER
            ]
            for b in range(len(scores))
        ]
        symbols = [[self._history(state, b, k) for _, k, _ in kept] for b, kept in enumerate(found)]
        spans = self._align(state, symbols) if self.options.times and state.emissions else None
        acoustic = self._acoustic(state)
        hypotheses: list[list[Hypothesis]] = []
        row = 0
        for b, kept in enumerate(found):
            hypotheses.append([])
            for (score, beam, mark), history in zip(kept, symbols[b], strict=True):
                span = None if spans is None else TokenSpans(*(part[row] for part in spans))
                hypotheses[-1].append(self._hypothesis(history, mark, score, float(acoustic[b, beam]), span))
                row += 1
        return hypotheses

    def _advance(self, state: PrefixState, log_probs: Tensor, lengths: Tensor) -> None:
        if self.options.times:
            state.emissions.append((log_probs, lengths))
        state.n_frames = state.n_frames + lengths
        options = self.options
        if options.blank_skip is not None:
            log_probs, lengths = without_blank_runs(
                state, log_probs, lengths, self.labels.blank, options.blank_skip
            )
        scaled = log_probs if options.acoustic_scale == 1 else log_probs * options.acoustic_scale
        if self._history_scorer is None:
            self._run(state, scaled, lengths)
            return
        every = self.options.adjust_every_frames
        begin = 0
        while begin < scaled.shape[1]:
            end = begin + every - state.n_steps % every
            part = scaled[:, begin:end]
            self._run(state, part, (lengths - begin).clamp(0, part.shape[1]))
            begin = end
            if state.n_steps % every == 0:
                self._adjust(state)

    def _run(self, state: PrefixState, log_probs: Tensor, lengths: Tensor) -> None:
        n_full = int(lengths.min()) if len(lengths) else 0
        self._search.run(state, log_probs, lengths, n_full)

    def _adjust(self, state: PrefixState) -> None:
        """Let the history scorer replace what was added for the words of every beam."""
        assert self._history_scorer is not None
        n_batch, n_beams = state.length.shape
        places = [(b, k) for b in range(n_batch) for k in range(n_beams)]
        histories = [
            tuple(word.text for word in self._speller.finished_words(self._history(state, b, k)))
            for b, k in places
        ]
        values = self._history_scorer.adjustments(histories, final=False)
        new = torch.tensor(values, device=state.lm.device).view(n_batch, n_beams)
        state.lm = state.lm - state.adjustment + new
        state.adjustment = new

    def _words(self, symbols: Sequence[int], mark: int) -> tuple[str, ...]:
        return tuple(word.text for word in self._speller.words(symbols, mark))

    def _endings(self, state: PrefixState) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, beams and marks (B, n) of the best complete hypotheses, best first."""
        n_batch, n_beams = state.length.shape
        scores = (self._acoustic(state) + state.lm)[:, :, None]  # (B, K, E)
        marks = torch.zeros_like(state.length)[:, :, None]
        if self._scorer is not None:
            endings = self._scorer.endings(state.scores.reshape(n_batch * n_beams, -1))
            scores = scores + endings.scores.view(n_batch, n_beams, -1)
            marks = endings.marks.view(n_batch, n_beams, -1)
        scores, marks = scores.flatten(1), marks.flatten(1)
        beams = torch.arange(scores.shape[1], device=scores.device) // (scores.shape[1] // n_beams)
        if self._history_scorer is not None:
            scores = self._adjusted(state, scores, beams, marks)
        best, index = scores.topk(min(self.options.n_best, scores.shape[1]), dim=1)
        return best.cpu(), beams[index].cpu(), marks.gather(1, index).cpu()

    def _acoustic(self, state: PrefixState) -> Tensor:
        return state.acoustic + state.skipped[:, None] * self.options.acoustic_scale

    def _adjusted(self, state: PrefixState, scores: Tensor, beams: Tensor, marks: Tensor) -> Tensor:
        """Final scores (B, K * E) with adjustments for whole sentences."""
        assert self._history_scorer is not None
        alive = (scores > NEVER).nonzero().tolist()
        histories = [self._words(self._history(state, b, int(beams[i])), int(marks[b, i])) for b, i in alive]
        values = self._history_scorer.adjustments(histories, final=True)
        scores = scores - state.adjustment.gather(1, beams.expand(len(scores), -1))
        for (b, i), value in zip(alive, values, strict=True):
            scores[b, i] += value
        return scores

    def _history(self, state: PrefixState, utterance: int, beam: int) -> list[int]:
        end = int(state.length[utterance, beam]) + 1
        symbols: list[int] = state.symbols[utterance, beam, 1:end].tolist()
        return symbols

    def _align(self, state: PrefixState, symbols: list[list[list[int]]]) -> TokenSpans | None:
        flat = [history for of_utterance in symbols for history in of_utterance]
        longest = max((len(history) for history in flat), default=0)
        if not longest:
            return None
        device = state.length.device
        tokens = torch.zeros((len(flat), longest), dtype=torch.int64)
        for row, history in enumerate(flat):
            tokens[row, : len(history)] = torch.tensor(history, dtype=torch.int64) % len(self.labels)
        n_tokens = torch.tensor([len(history) for history in flat])
        rows = torch.tensor([b for b, of_utterance in enumerate(symbols) for _ in of_utterance])
        log_probs, lengths = joined(state)
        spans = align(
            log_probs,
            lengths,
            tokens.to(device),
            n_tokens.to(device),
            rows=rows.to(device),
            blank=self.labels.blank,
        )
        return TokenSpans(*(part.cpu() for part in spans))

    def _hypothesis(
        self, symbols: list[int], mark: int, score: float, acoustic: float, spans: TokenSpans | None
    ) -> Hypothesis:
        spelled = self._speller.words(symbols, mark)
        first = () if spans is None else tuple(spans.first[: len(symbols)].tolist())
        words = () if spans is None else tuple(self._word(word, spans) for word in spelled)
        return Hypothesis(
            text=self._speller.text(symbols, mark),
            tokens=tuple(symbol % len(self.labels) for symbol in symbols),
            score=score,
            acoustic_score=acoustic,
            lm_score=score - acoustic,
            words=words,
            token_frames=first,
        )

    def _word(self, word: SpelledWord, spans: TokenSpans) -> Word:
        """Its probability is the geometric mean over its tokens of the highest probability in their span."""
        tokens = slice(word.first, word.end)
        return Word(
            word=word.text,
            start=float(spans.first[tokens][0]) * self.options.frame_s,
            end=(float(spans.last[tokens][-1]) + 1) * self.options.frame_s,
            probability=float(spans.peak[tokens].mean().exp()),
        )
