"""AlignAtt: decode while the decoder listens to audio that is safely in, stop where it reaches the end.

One update decodes one window of encoder states from a prefix. Before a token is taken, the frame that
the decoder attends to most is looked at: too near the end of the audio, the token waits for the next
update. Sources: Papi et al., AlignAtt (2023), https://arxiv.org/abs/2305.11408; Wang et al.,
Simul-Whisper (2024), https://arxiv.org/abs/2406.10052.

Not known here: audio, time, words, and what became of earlier updates.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sottovoce.backends.base import Backend, DecoderState
from sottovoce.decoding.beam import FusedRows, Fusion
from sottovoce.streaming.frontier import AttentionTracker
from sottovoce.streaming.reading import Ending, Path, Prefix, Reading, ReadingRules
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.types import EncoderOutput


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads windows by beam search under AlignAtt; beam_size 1 is greedy.

    Each beam stops on its own: at the end of text, at the frontier, after a jump back, or in a loop. The
    update ends when as many have stopped as there are beams, and the best mean log-probability wins;
    a beam that jumped back or looped wins only if all did. fusion: language models that help to choose.
    """

    backend: Backend
    eot: int
    vocabulary: LiveVocabulary
    beam_size: int = 1
    fusion: Fusion[Tensor] | None = None

    @torch.inference_mode()
    def read(
        self,
        encoded: EncoderOutput,
        prefix: Prefix,
        rules: ReadingRules,
        *,
        bias: Tensor | None = None,
        guess: Sequence[int] = (),
    ) -> Reading:
        """Read one window (batch of 1) onward from a prefix.

        bias: (n_frames,) float32 added to every cross-attention logit, see `Backend.step`. guess: tokens that
        may come next, such as those that the update before could not commit. They are read in one pass with
        the prefix; what is read does not depend on them, only how many passes it takes. One beam alone
        makes use of them.
        """
        search = _Search(self, encoded, prefix, rules, bias, guess if self.beam_size == 1 else ())
        return search.run()


@dataclass(frozen=True, slots=True, eq=False)
class _Guessed:
    """A token read ahead: its attention (1, n_heads, 1, n_frames), and the logits after it (1, n_rows)."""

    token: int
    logits: Tensor
    attention: Tensor


class _Search:
    """One update of a Reader."""

    def __init__(
        self,
        reader: Reader,
        encoded: EncoderOutput,
        prefix: Prefix,
        rules: ReadingRules,
        bias: Tensor | None,
        guess: Sequence[int],
    ) -> None:
        self._reader = reader
        self._prefix = prefix
        self._rules = rules
        self._bias = bias
        self._n_frames = encoded.n_content_frames[0]
        self._tracker = AttentionTracker(self._n_frames)
        self._state: DecoderState = reader.backend.start(encoded)
        self._language = _language_of(reader, prefix)
        self._room = reader.backend.dims.n_text_ctx - len(prefix.tokens)
        self._guess = tuple(guess)[: max(0, self._room)]
        self._ahead: deque[_Guessed] = deque()
        self._beams = [Path()]
        self._done: list[Reading] = []

    def run(self) -> Reading:
        backend = self._reader.backend
        no_speech, logits = self._read_prefix()
        for _ in range(min(self._rules.max_tokens, self._room)):
            rows = self._advance(logits)
            if not self._beams or len(self._done) >= self._reader.beam_size:
                break
            if rows != list(range(self._state.n_rows)):
                order = torch.tensor(rows, device=backend.device)
                self._state.reorder(order)
                self._tracker.reorder(order)
            newest = torch.tensor([[beam.tokens[-1]] for beam in self._beams], device=backend.device)
            if self._language is not None:
                self._language.advance(torch.tensor(rows, device=backend.device), newest[:, 0])
            logits = self._next(newest)
        self._done.extend(beam.reading(Ending.FULL) for beam in self._beams if len(self._done) == 0)
        return replace(max(self._done, key=_rank), no_speech_prob=no_speech)

    def _read_prefix(self) -> tuple[float, Tensor]:
        """The probability of no speech, and the logits (1, n_rows) of the first token."""
        n_prefix = len(self._prefix.tokens)
        tokens = torch.tensor([[*self._prefix.tokens, *self._guess]], device=self._reader.backend.device)
        logits, attention = self._step(tokens, (self._prefix.sot, *range(n_prefix - 1, tokens.shape[1])))
        self._tracker.extend(attention[:, :, :n_prefix])
        for i, token in enumerate(self._guess):
            place = n_prefix + i
            self._ahead.append(_Guessed(token, logits[:, i + 2], attention[:, :, place : place + 1]))
        return self._reader.vocabulary.no_speech_probs(logits[:, 0])[0], logits[:, 1]

    def _next(self, newest: Tensor) -> Tensor:
        """Logits (R, n_rows) after the newest token (R, 1) of each beam."""
        guessed = self._ahead.popleft() if self._ahead else None
        if guessed is not None and guessed.token == int(newest):
            self._tracker.extend(guessed.attention)
            return guessed.logits
        if guessed is not None:  # a wrong guess, and those after it, leave the cache
            self._state.truncate(self._state.n_tokens - len(self._ahead) - 1)
            self._ahead.clear()
        logits, attention = self._step(newest)
        self._tracker.extend(attention)
        return logits[:, -1]

    def _step(self, tokens: Tensor, positions: Sequence[int] = (-1,)) -> tuple[Tensor, Tensor]:
        """Logits (R, n_positions, n_rows) and attention (R, n_heads, n_new, n_frames) of new tokens."""
        backend = self._reader.backend
        output = backend.step(
            tokens,
            self._state,
            positions=positions,
            vocabulary=self._reader.vocabulary.rows,
            capture=backend.alignment_heads,
            bias=None if self._bias is None else self._bias[None].expand(tokens.shape[0], -1),
        )
        assert output.attention is not None
        return output.logits.float(), output.attention

    def _advance(self, logits: Tensor) -> list[int]:
        """Stop or extend every beam; return the former row of each beam that goes on."""
        first = not self._beams[0].tokens
        log_probs = self._reader.vocabulary.log_probs(logits, first=first)
        entropies = torch.special.entr(log_probs.exp()).sum(dim=-1).tolist()
        frames = self._tracker.frontier().tolist()
        n_best = self._reader.beam_size + 1 if self._reader.beam_size > 1 else 1
        added = self._added(log_probs)
        places = (log_probs + added).topk(n_best, dim=-1).indices
        values, tokens = log_probs.gather(1, places).tolist(), self._reader.vocabulary.tokens(places)
        helped = added.expand_as(log_probs).gather(1, places).tolist()
        grown: list[tuple[Path, int]] = []
        for row, beam in enumerate(self._beams):
            if tokens[row][0] != self._reader.eot and self._halts(beam, frames[row], tokens[row][0]):
                continue
            for token, value, language in zip(tokens[row], values[row], helped[row], strict=True):
                grown.append((beam.said(token, frames[row], value, entropies[row], language), row))
        return self._select(grown)

    def _added(self, log_probs: Tensor) -> Tensor:
        """What language models add to the log-probabilities (R, n) of what may be said."""
        if self._language is None:
            return log_probs.new_zeros(1)
        vocabulary = self._reader.vocabulary
        nothing = log_probs.new_zeros(len(log_probs), vocabulary.n_vocab)
        return self._language.add_to(nothing).index_select(1, vocabulary.ids)

    def _halts(self, beam: Path, frame: int, token: int) -> bool:
        """Whether a beam stops before its next token."""
        reading = self._rules.halt(beam, frame, self._n_frames, token)
        if reading is not None:
            self._done.append(reading)
        return reading is not None

    def _select(self, grown: list[tuple[Path, int]]) -> list[int]:
        """Keep the best beams; those that said the end of text, or loop, are done."""
        grown.sort(key=lambda item: item[0].rank, reverse=True)
        self._beams, rows = [], []
        for beam, row in grown:
            if len(self._beams) == self._reader.beam_size:
                break
            if beam.tokens[-1] == self._reader.eot:
                ended = beam.reading(Ending.END_OF_TEXT, n_kept=-1)
                self._done.append(ended)
            elif looped := self._rules.loop(beam, self._prefix.committed):
                self._done.append(looped)
            else:
                self._beams.append(beam)
                rows.append(row)
        return rows


def _rank(reading: Reading) -> tuple[bool, float]:
    sound = reading.ending not in (Ending.REWOUND, Ending.REPEATED)
    return sound, reading.rank if reading.logprobs else -math.inf


def _language_of(reader: Reader, prefix: Prefix) -> FusedRows[Tensor] | None:
    """The language models of the one row at the start, after the text that is committed."""
    if reader.fusion is None:
        return None
    device = reader.backend.device
    language = FusedRows(reader.fusion, 1, reader.eot, device)
    row = torch.zeros(1, dtype=torch.int64, device=device)
    for token in prefix.committed:
        language.advance(row, torch.tensor([token], device=device))
    return language
