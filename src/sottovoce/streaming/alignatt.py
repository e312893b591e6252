"""AlignAtt: decode while the decoder listens to audio that is safely in, stop where it reaches the end.

One update decodes one window of encoder states from a prefix. Before a token is taken, the frame that
the decoder attends to most is looked at: too near the end of the audio, the token waits for the next
update. Sources: Papi et al., AlignAtt (2023), https://arxiv.org/abs/2305.11408; Wang et al.,
Simul-Whisper (2024), https://arxiv.org/abs/2406.10052.

Requests are read side by side, as rows of one batch: languages of one utterance, or several utterances.
Not known here: audio, time, words, and what became of earlier updates.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.decoding.beam import FusedRows, Fusion
from sottovoce.streaming.frontier import AttentionTracker
from sottovoce.streaming.reading import Ending, Path, Prefix, Reading, ReadingRules
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.types import EncoderOutput


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """What to read on from, in one window.

    bias: (n_frames,) float32 added to every cross-attention logit, see `Backend.step`. guess: tokens that may
    come next, such as those that the update before could not commit. What is read does not depend on them,
    only how many passes it takes; one request alone with one beam makes use of them.
    """

    prefix: Prefix
    rules: ReadingRules
    bias: Tensor | None = None
    guess: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads windows by beam search under AlignAtt; beam_size 1 is greedy.

    Each beam stops on its own: at the end of text, at the frontier, after a jump back, or in a loop. A
    request is done when as many beams have stopped as there are, and the best mean log-probability wins; a
    beam that jumped back or looped wins only if all did. fusion: language models that help to choose.
    """

    backend: Backend
    eot: int
    vocabulary: LiveVocabulary
    beam_size: int = 1
    fusion: Fusion[Tensor] | None = None

    @torch.inference_mode()
    def read(self, encoded: EncoderOutput, requests: Sequence[ReadRequest]) -> list[Reading]:
        """One reading for each request; encoded: one window for all of them, or one a request.

        Each is read as it would be alone.
        """
        return _Update(self, encoded, requests).run()


@dataclass(frozen=True, slots=True, eq=False)
class _Guessed:
    """A token read ahead: its attention (1, n_heads, 1, n_frames), and the logits after it (1, n_rows)."""

    token: int
    logits: Tensor
    attention: Tensor


@dataclass(frozen=True, slots=True)
class _Beam:
    """A row of the batch: the request that it belongs to, and what it said so far."""

    request: int
    path: Path


class _Update:
    """One update of a Reader. Beams that are done leave the batch."""

    def __init__(self, reader: Reader, encoded: EncoderOutput, requests: Sequence[ReadRequest]) -> None:
        self._reader = reader
        self._requests = requests
        self._device = reader.backend.device
        n_requests, n_audio = len(requests), encoded.batch_size
        self._n_frames = [encoded.n_content_frames[i * n_audio // n_requests] for i in range(n_requests)]
        self._tracker = AttentionTracker(torch.tensor(self._n_frames, device=self._device))
        self._beams = [_Beam(i, Path()) for i in range(n_requests)]
        self._done: list[list[Reading]] = [[] for _ in requests]
        self._over: set[int] = set()
        self._longest = max(len(request.prefix.tokens) for request in requests)
        self._room = reader.backend.dims.n_text_ctx - self._longest
        padding = [self._longest - len(request.prefix.tokens) for request in requests]
        self._padding = torch.tensor(padding, device=self._device) if any(padding) else None
        self._state = reader.backend.start(encoded, n_requests // n_audio, left_padding=self._padding)
        self._bias = _stacked([request.bias for request in requests], encoded.n_frames, self._device)
        self._languages = None if reader.fusion is None else _LanguageRows(reader, reader.fusion, requests)
        alone = n_requests == 1 and reader.beam_size == 1
        self._guess = requests[0].guess[: max(0, self._room)] if alone else ()
        self._ahead: deque[_Guessed] = deque()

    def run(self) -> list[Reading]:
        no_speech, logits = self._read_prefixes()
        for n_read in range(self._room):
            self._fill(n_read)
            owners = [beam.request for beam in self._beams]
            rows = self._advance(logits)
            if not rows:
                break
            self._follow(rows, owners)
            newest = [[beam.path.tokens[-1]] for beam in self._beams]
            logits = self._next(torch.tensor(newest, device=self._device))
        self._fill(math.inf)
        return [
            replace(max(found, key=_rank), no_speech_prob=silent)
            for found, silent in zip(self._done, no_speech, strict=True)
        ]

    def _fill(self, n_read: float) -> None:
        """What beams say when their request may say no more; they leave the batch in the next step."""
        for beam in self._beams:
            if n_read >= self._requests[beam.request].rules.max_tokens:
                self._over.add(beam.request)
                if not self._done[beam.request]:
                    self._done[beam.request].append(beam.path.reading(Ending.FULL))

    def _read_prefixes(self) -> tuple[list[float], Tensor]:
        """The probability of no speech of each request, and the logits (R, n_rows) of its first token."""
        longest, eot = self._longest, self._reader.eot
        prefixes = [request.prefix for request in self._requests]
        tokens = [[eot] * (longest - len(p.tokens)) + [*p.tokens, *self._guess] for p in prefixes]
        places = [longest - len(p.tokens) + p.sot for p in prefixes]
        wanted = sorted({*places, *range(longest - 1, longest + len(self._guess))})
        logits, attention = self._step(torch.tensor(tokens, device=self._device), wanted)
        self._tracker.extend(attention[:, :, :longest], n_padding=self._padding)
        for i, token in enumerate(self._guess):
            after = logits[:, wanted.index(longest + i)]
            self._ahead.append(_Guessed(token, after, attention[:, :, longest + i : longest + i + 1]))
        at_sot = torch.stack([logits[row, wanted.index(place)] for row, place in enumerate(places)])
        return self._reader.vocabulary.no_speech_probs(at_sot), logits[:, wanted.index(longest - 1)]

    def _next(self, newest: Tensor) -> Tensor:
        """Logits (R, n_rows) after the newest token (R, 1) of each beam."""
        guessed = self._ahead.popleft() if self._ahead else None
        if guessed is not None and guessed.token == int(newest):
            self._tracker.extend(guessed.attention)
            return guessed.logits
        if guessed is not None:  # a wrong guess, and those after it, leave the cache
            self._state.truncate(self._state.n_tokens - len(self._ahead) - 1)
            self._ahead.clear()
        logits, attention = self._step(newest, (-1,))
        self._tracker.extend(attention)
        return logits[:, -1]

    def _step(self, tokens: Tensor, positions: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Logits (R, n_positions, n_rows) and attention (R, n_heads, n_new, n_frames) of new tokens."""
        backend = self._reader.backend
        output = backend.step(
            tokens,
            self._state,
            positions=positions,
            vocabulary=self._reader.vocabulary.rows,
            capture=backend.alignment_heads,
            bias=None if self._bias is None else self._bias[[beam.request for beam in self._beams]],
        )
        assert output.attention is not None
        return output.logits.float(), output.attention

    def _follow(self, rows: list[int], owners: list[int]) -> None:
        """Let caches, statistics and language models follow the beams: row i was row rows[i] of owners."""
        if rows != list(range(self._state.n_rows)):
            order = torch.tensor(rows, device=self._device)
            self._state.reorder(order)
            self._tracker.reorder(order)
        if self._languages is not None:
            self._languages.follow(rows, owners, [beam.path.tokens[-1] for beam in self._beams])

    def _advance(self, logits: Tensor) -> list[int]:
        """Stop or extend every beam; the former row of each beam that goes on."""
        vocabulary, size = self._reader.vocabulary, self._reader.beam_size
        log_probs = vocabulary.log_probs(logits, first=not self._beams[0].path.tokens)
        entropies = torch.special.entr(log_probs.exp()).sum(dim=-1).tolist()
        frames = self._tracker.frontier().tolist()
        added = log_probs.new_zeros(1)
        if self._languages is not None:
            added = self._languages.added(log_probs, [beam.request for beam in self._beams])
        places = (log_probs + added).topk(size + 1 if size > 1 else 1, dim=-1).indices
        values, tokens = log_probs.gather(1, places).tolist(), vocabulary.tokens(places)
        helped = added.expand_as(log_probs).gather(1, places).tolist()
        grown: list[list[tuple[Path, int]]] = [[] for _ in self._requests]
        for row, beam in enumerate(self._beams):
            if self._is_done(beam.request) or self._halts(beam, frames[row], tokens[row][0]):
                continue
            for token, value, language in zip(tokens[row], values[row], helped[row], strict=True):
                path = beam.path.said(token, frames[row], value, entropies[row], language)
                grown[beam.request].append((path, row))
        kept = [(i, path, row) for i, paths in enumerate(grown) for path, row in self._select(i, paths)]
        self._beams = [_Beam(i, path) for i, path, _ in kept]
        return [row for _, _, row in kept]

    def _is_done(self, request: int) -> bool:
        return request in self._over or len(self._done[request]) >= self._reader.beam_size

    def _halts(self, beam: _Beam, frame: int, token: int) -> bool:
        """Whether a beam stops before its next token."""
        if token == self._reader.eot:
            return False
        rules = self._requests[beam.request].rules
        reading = rules.halt(beam.path, frame, self._n_frames[beam.request], token)
        if reading is not None:
            self._done[beam.request].append(reading)
        return reading is not None

    def _select(self, request: int, grown: list[tuple[Path, int]]) -> list[tuple[Path, int]]:
        """The best beams of a request, and their rows; those that said the end of text, or loop, are done."""
        grown.sort(key=lambda item: item[0].rank, reverse=True)
        rules, committed = self._requests[request].rules, self._requests[request].prefix.committed
        kept: list[tuple[Path, int]] = []
        for path, row in grown:
            if len(kept) == self._reader.beam_size:
                break
            if path.tokens[-1] == self._reader.eot:
                self._done[request].append(path.reading(Ending.END_OF_TEXT, n_kept=-1))
            elif looped := rules.loop(path, committed):
                self._done[request].append(looped)
            else:
                kept.append((path, row))
        return [] if self._is_done(request) else kept


def _rank(reading: Reading) -> tuple[bool, float]:
    sound = reading.ending not in (Ending.REWOUND, Ending.REPEATED)
    return sound, reading.rank if reading.logprobs else -math.inf


def _stacked(biases: Sequence[Tensor | None], n_frames: int, device: torch.device) -> Tensor | None:
    """Biases (R, n_frames) of requests, 0 for those without one; None: of none."""
    if all(bias is None for bias in biases):
        return None
    zero = torch.zeros(n_frames, device=device)
    return torch.stack([zero if bias is None else bias.to(device) for bias in biases])


class _LanguageRows:
    """Language models beside every request's beams, each after the text that its request has committed."""

    def __init__(self, reader: Reader, fusion: Fusion[Tensor], requests: Sequence[ReadRequest]) -> None:
        self._vocabulary = reader.vocabulary
        self._device = reader.backend.device
        self._rows = [FusedRows(fusion, 1, reader.eot, self._device) for _ in requests]
        for rows, request in zip(self._rows, requests, strict=True):
            for token in request.prefix.committed:
                rows.advance(self._ids([0]), self._ids([token]))

    def added(self, log_probs: Tensor, owners: Sequence[int]) -> Tensor:
        """What they add to the log-probabilities (R, n) of what may be said; owners: each row's request."""
        nothing = log_probs.new_zeros(len(owners), self._vocabulary.n_vocab)
        for request, rows in enumerate(self._rows):
            mine = self._ids([row for row, owner in enumerate(owners) if owner == request])
            if len(mine):
                nothing[mine] = rows.add_to(nothing[mine])
        return nothing.index_select(1, self._vocabulary.ids)

    def follow(self, parents: Sequence[int], owners: Sequence[int], tokens: Sequence[int]) -> None:
        """Row i continues the former row parents[i], whose request is owners[parents[i]], with a token."""
        places = [owners[:row].count(owner) for row, owner in enumerate(owners)]
        for request, rows in enumerate(self._rows):
            mine = [i for i, parent in enumerate(parents) if owners[parent] == request]
            if mine:
                within = self._ids([places[parents[i]] for i in mine])
                rows.advance(within, self._ids([tokens[i] for i in mine]))

    def _ids(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)
