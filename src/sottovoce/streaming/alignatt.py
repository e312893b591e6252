"""AlignAtt: decode while the decoder listens to audio that is safely in, stop where it reaches the end.

One update decodes one window of encoder states from a prefix. Before a token is taken, the frame that
the decoder attends to most is looked at: too near the end of the audio, the token waits for the next
update. Sources: Papi et al., AlignAtt (2023), https://arxiv.org/abs/2305.11408; Wang et al.,
Simul-Whisper (2024), https://arxiv.org/abs/2406.10052.

There is one loop for all that is read: requests join it at any step and leave it when they are done, whatever
their age, window, language and rules. Not known here: audio, time, words, and what became of earlier updates.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sottovoce.backends.base import Backend, RowState
from sottovoce.decoding.alignment import RunningStatistics
from sottovoce.decoding.beam import Fusion
from sottovoce.streaming.frontier import AttentionTracker, statistics_of
from sottovoce.streaming.known import KnownPrefix
from sottovoce.streaming.language_rows import LanguageRows
from sottovoce.streaming.reading import Ending, Path, Prefix, Reading, ReadingRules
from sottovoce.streaming.vocabulary import LiveVocabulary
from sottovoce.types import EncoderOutput

LEAST_LOG_PROB = -1e4
"""In sums of p log p: what is forbidden adds nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """What to read on from, in one window.

    bias: (n_frames,) float32 added to every cross-attention logit, see `Backend.step`. guess: tokens that may
    come next, such as those that the update before could not commit. What is read does not depend on them,
    only how many passes it takes; a request with one beam makes use of them. known: what an earlier
    update made of the beginning of the prefix, which is not read anew then. n_reread: the reading says what
    is known of the prefix but for so many tokens at its end; None: nothing.
    """

    prefix: Prefix
    rules: ReadingRules
    bias: Tensor | None = None
    guess: tuple[int, ...] = ()
    known: KnownPrefix | None = None
    n_reread: int | None = None


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

    def read(self, heard: Sequence[EncoderOutput], requests: Sequence[ReadRequest]) -> list[Reading]:
        """One reading for each request; heard: the window of each, of one row.

        Each is read as it would be alone.
        """
        running = RunningReadings(self.backend, self.vocabulary)
        tickets = [running.admit(self, one, request) for one, request in zip(heard, requests, strict=True)]
        found: dict[int, Reading] = {}
        while running.n_requests:
            found.update(running.step())
        return [found[ticket] for ticket in tickets]


@dataclass(frozen=True, slots=True, eq=False)
class _Guessed:
    """A token read ahead: its attention (n_heads, 1, n_frames), and the logits after it (1, n_rows)."""

    token: int
    logits: Tensor
    attention: Tensor


@dataclass(frozen=True, slots=True)
class _Choice:
    """What may follow a beam, best first: tokens, their log-probabilities, and what language models add.

    frame: where the beam attends to. entropy: of all that may follow.
    """

    frame: int
    entropy: float
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    language: tuple[float, ...]


class _Request:
    """A request under way: its beams, each a row of the decoder, and what became of those that stopped."""

    def __init__(self, ticket: int, reader: Reader, request: ReadRequest, n_frames: int) -> None:
        self.ticket = ticket
        self.prefix = request.prefix
        self.n_frames = n_frames
        self.size = reader.beam_size
        self.paths = [Path()]
        self.logits: Tensor | None = None
        """Of what follows each beam (n_beams, n_rows), once that is computed."""
        self.is_new = True
        known = request.known
        self.known = known if known and known.begins(self.prefix.tokens, n_frames) else None
        self.no_speech_prob = 0.0 if self.known is None else self.known.no_speech_prob
        self._n_reread = request.n_reread
        self.ahead: deque[_Guessed] = deque()
        self.settled: RunningStatistics | None = None
        """Attention of the tokens to keep."""
        self.kept: KnownPrefix | None = None
        self._rules = request.rules
        self._eot = reader.eot
        self._done: list[Reading] = []
        room = max(0, reader.backend.dims.n_text_ctx - len(request.prefix.tokens))
        self._most_tokens = min(room, request.rules.max_tokens)
        self.guess = request.guess[:room] if self.size == 1 else ()
        self.language: LanguageRows | None = None
        if reader.fusion is not None:
            self.language = LanguageRows(
                reader.fusion, reader.vocabulary, reader.eot, reader.backend.device, request.prefix.committed
            )

    @property
    def n_looked_at(self) -> int:
        """Tokens that may follow a beam, of which the best beams are chosen."""
        return self.size + 1 if self.size > 1 else 1

    @property
    def n_known(self) -> int:
        """Tokens of the prefix that are not read anew."""
        return 0 if self.known is None else len(self.known.tokens)

    @property
    def known_state(self) -> RowState | None:
        return None if self.known is None else self.known.state

    @property
    def n_to_keep(self) -> int:
        """Tokens of the prefix that the next update need not read anew."""
        if self._n_reread is None:
            return 0
        return max(self.n_known, len(self.prefix.tokens) - max(1, self._n_reread))

    @property
    def hears_no_speech(self) -> bool:
        """Whether <|startoftranscript|> is read."""
        return self.prefix.sot >= self.n_known

    @property
    def reading(self) -> Reading:
        """The best of all, at the end."""
        best = max(self._done, key=lambda reading: reading.standing)
        return replace(best, no_speech_prob=self.no_speech_prob, known=self.kept)

    def keep(self, state: RowState | None) -> None:
        """Take what the decoder made of the tokens to keep, for the next update."""
        if state is not None and self.settled is not None:
            tokens = self.prefix.tokens[: self.n_to_keep]
            self.kept = KnownPrefix(tokens, state, self.settled, self.no_speech_prob)

    def grow(self, choices: Sequence[_Choice]) -> list[int]:
        """Stop or extend every beam; the former place of each that goes on, of which there may be none."""
        paths, self.paths = self.paths, []
        if len(paths[0].tokens) >= self._most_tokens:
            if not self._done:
                self._done.append(paths[0].reading(Ending.FULL))
            return []
        grown: list[tuple[Path, int]] = []
        for place, (path, choice) in enumerate(zip(paths, choices, strict=True)):
            if not self._is_done and not self._halts(path, choice):
                grown += [(said, place) for said in _continuations(path, choice, self.n_looked_at)]
        kept = self._best(grown)
        self.paths = [path for path, _ in kept]
        parents = [place for _, place in kept]
        if self.language is not None:
            self.language.follow(parents, [path.tokens[-1] for path in self.paths])
        return parents

    @property
    def _is_done(self) -> bool:
        return len(self._done) >= self.size

    def _halts(self, path: Path, choice: _Choice) -> bool:
        """Whether a beam stops before its next token."""
        token = choice.tokens[0]
        if token == self._eot:
            return False
        reading = self._rules.halt(path, choice.frame, self.n_frames, token)
        if reading is not None:
            self._done.append(reading)
        return reading is not None

    def _best(self, grown: list[tuple[Path, int]]) -> list[tuple[Path, int]]:
        """The best beams, and their former places; those that said the end of text, or loop, are done."""
        grown.sort(key=lambda item: item[0].rank, reverse=True)
        kept: list[tuple[Path, int]] = []
        for path, place in grown:
            if len(kept) == self.size:
                break
            if path.tokens[-1] == self._eot:
                self._done.append(path.reading(Ending.END_OF_TEXT, n_kept=-1))
            elif looped := self._rules.loop(path, self.prefix.committed):
                self._done.append(looped)
            else:
                kept.append((path, place))
        return [] if self._is_done else kept


class RunningReadings:
    """All that one model reads at a time: requests are admitted at any step, and leave when they are done.

    A step reads the prefixes of new requests and the newest token of every beam of the others, all in one
    pass. Readers may differ in beams and language models, not in model and vocabulary.
    """

    def __init__(self, backend: Backend, vocabulary: LiveVocabulary) -> None:
        self._backend = backend
        self._vocabulary = vocabulary
        self._rows = backend.rows()
        self._tracker = AttentionTracker()
        self._running: list[_Request] = []
        self._n_admitted = 0

    @property
    def n_requests(self) -> int:
        return len(self._running)

    @torch.inference_mode()
    def admit(self, reader: Reader, encoded: EncoderOutput, request: ReadRequest) -> int:
        """Take a request, to be read from the next step on; a ticket for its reading."""
        assert reader.vocabulary is self._vocabulary, "one vocabulary for all that is read together"
        running = _Request(self._n_admitted, reader, request, encoded.n_content_frames[0])
        self._rows.admit(encoded, request.bias, running.known_state)
        self._running.append(running)
        self._n_admitted += 1
        return running.ticket

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Reading]]:
        """Read a token of every request, or as many as were guessed; readings that are done, by ticket.

        Where it fails, nothing that is under way can go on.
        """
        self._read()
        ready = list(self._running)
        finished: list[tuple[int, Reading]] = []
        while ready:
            self._grow(ready)
            finished += [(one.ticket, one.reading) for one in ready if not one.paths]
            ready = [one for one in ready if one.paths and self._was_guessed(one)]
        return finished

    def _read(self) -> None:
        """One pass: the logits that follow every beam."""
        tokens: list[Sequence[int]] = []
        wanted: list[Sequence[int]] = []
        for one in self._running:
            if one.is_new:
                unread = one.prefix.tokens[one.n_known :]
                first = [one.prefix.sot - one.n_known] if one.hears_no_speech else []
                tokens.append([*unread, *one.guess])
                wanted.append([*first, *range(len(unread) - 1, len(unread) + len(one.guess))])
            else:
                tokens += [path.tokens[-1:] for path in one.paths]
                wanted += [[0]] * len(one.paths)
        heads, rows = self._backend.alignment_heads, self._vocabulary.rows
        output = self._rows.step(tokens, wanted, vocabulary=rows, capture=heads)
        n_old = self._tracker.n_rows
        if n_old:
            self._tracker.extend(range(n_old), output.attention[:n_old])
        attention = iter(output.attention[n_old:])
        at = 0
        for one in self._running:
            n_logits = 1 + one.hears_no_speech + len(one.guess) if one.is_new else len(one.paths)
            logits = output.logits[at : at + n_logits]
            at += n_logits
            if one.is_new:
                self._begin(one, logits, next(attention))
            else:
                one.logits = logits

    def _begin(self, one: _Request, logits: Tensor, attention: Tensor) -> None:
        """Take what a prefix and the tokens guessed after it gave."""
        n_unread = len(one.prefix.tokens) - one.n_known
        one.is_new = False
        if one.hears_no_speech:
            one.no_speech_prob = self._vocabulary.no_speech_probs(logits[:1])[0]
            logits = logits[1:]
        one.logits = logits[:1]
        known = None if one.known is None else one.known.attention
        self._tracker.admit(one.n_frames, attention[:, :n_unread], known)
        if one.n_to_keep:
            one.settled = statistics_of(attention[:, : one.n_to_keep - one.n_known], one.n_frames, known)
        for i, token in enumerate(one.guess):
            after = attention[:, n_unread + i : n_unread + i + 1]
            one.ahead.append(_Guessed(token, logits[1 + i : 2 + i], after))

    def _was_guessed(self, one: _Request) -> bool:
        """Whether what follows the newest token is known, since that was guessed; a wrong guess, and those
        after it, are forgotten."""
        one.logits = None
        if not one.ahead:
            return False
        guessed, row = one.ahead.popleft(), self._first_row(one)
        if guessed.token == one.paths[0].tokens[-1]:
            self._tracker.extend([row], [guessed.attention])
            one.logits = guessed.logits
            return True
        self._rows.cut(row, len(one.ahead) + 1)
        one.ahead.clear()
        return False

    def _first_row(self, one: _Request) -> int:
        return sum(len(other.paths) for other in self._running[: self._running.index(one)])

    def _grow(self, ready: Sequence[_Request]) -> None:
        """Let requests whose logits are known go on by a token; rows and statistics follow their beams."""
        places: dict[int, range] = {}
        at = 0
        for one in self._running:
            places[one.ticket] = range(at, at + len(one.paths))
            at += len(one.paths)
        choices = iter(self._choices(ready, [row for one in ready for row in places[one.ticket]]))
        parents = {one.ticket: one.grow([next(choices) for _ in one.paths]) for one in ready}
        rows: list[int] = []
        for one in self._running:
            own = places[one.ticket]
            if not one.paths and one.n_to_keep:
                one.keep(self._rows.keep(own[0], one.n_to_keep))
            rows += [own[parent] for parent in parents[one.ticket]] if one.ticket in parents else own
        self._running = [one for one in self._running if one.paths]
        if rows != list(range(at)):
            self._rows.select(rows)
            self._tracker.select(rows)

    def _choices(self, ready: Sequence[_Request], rows: Sequence[int]) -> list[_Choice]:
        """What may follow the beams of requests; what is decided by is read back once for all of them."""
        known = [one.logits for one in ready if one.logits is not None]
        first = [
            place for place, path in enumerate(path for one in ready for path in one.paths) if not path.tokens
        ]
        log_probs = self._vocabulary.log_probs(torch.cat(known).float(), first=first)
        entropies = -(log_probs.exp() * log_probs.clamp(min=LEAST_LOG_PROB)).sum(dim=-1)
        n_best = max(one.n_looked_at for one in ready)
        added = _added(ready, log_probs)
        best = (log_probs if added is None else log_probs + added).topk(n_best, dim=-1).indices
        logprobs = log_probs.gather(1, best)
        helped = torch.zeros_like(logprobs) if added is None else added.gather(1, best)
        frames, tokens = self._tracker.frontier(rows).to(logprobs), self._vocabulary.ids[best].to(logprobs)
        read_back = torch.cat([frames[:, None], entropies[:, None], tokens, logprobs, helped], dim=1).tolist()
        return [_choice(row, n_best) for row in read_back]


def _choice(values: Sequence[float], n_best: int) -> _Choice:
    frame, entropy, *others = values
    tokens, logprobs, language = (others[i * n_best : (i + 1) * n_best] for i in range(3))
    return _Choice(int(frame), entropy, tuple(map(int, tokens)), tuple(logprobs), tuple(language))


def _added(ready: Sequence[_Request], log_probs: Tensor) -> Tensor | None:
    """What language models add to log-probabilities (R, n) of all beams; None without any."""
    if all(one.language is None for one in ready):
        return None
    added = torch.zeros_like(log_probs)
    at = 0
    for one in ready:
        own = slice(at, at + len(one.paths))
        if one.language is not None:
            added[own] = one.language.added(log_probs[own])
        at += len(one.paths)
    return added


def _continuations(path: Path, choice: _Choice, n_best: int) -> list[Path]:
    return [
        path.said(token, choice.frame, value, choice.entropy, language)
        for token, value, language in zip(
            choice.tokens[:n_best], choice.logprobs[:n_best], choice.language[:n_best], strict=True
        )
    ]
