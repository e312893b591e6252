"""A backend that follows a script: what searches, sessions and servers are tested against.

It computes nothing, yet behaves like a model in all that the seam promises: it says the scripted
tokens in order, attends to where they stand, names the language of the frames that it may see, and
hears nothing in frames that are hidden or not there. All it knows of the audio lies in the encoder
states, so slicing or joining them is safe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from sottovoce.audio.mel import normalize
from sottovoce.errors import OptionError
from sottovoce.models.backend import (
    EncoderOutput,
    IncrementalResult,
    IncrementalWindow,
    RowPrefix,
    RowsOutput,
    check_admitted,
    check_heads,
    check_selected,
    check_spans,
    check_step,
)
from sottovoce.models.devices import CPU
from sottovoce.models.dims import EXACT, AlignmentHeads, ModelDims, Span
from sottovoce.runtime.incremental_encoder import (
    EncodedWindows,
    EncoderCacheInfo,
    check_windows,
    content_frames,
    plan_update,
    state_of,
)
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Features, Floats, Ints

FAKE_DIMS = ModelDims(
    n_mels=80,
    n_audio_ctx=1500,
    n_audio_state=4,
    n_audio_head=2,
    n_audio_layer=1,
    n_vocab=51865,
    n_text_ctx=448,
    n_text_state=4,
    n_text_head=2,
    n_text_layer=2,
)
SURE = 20.0
"""Logit of what is expected; everything else has 0."""
UNSURE = 13.0
"""The same, when the prompt names another language than the one spoken."""
FOCUS_FRAMES = 2.0
"""Standard deviation of the attention around a token."""
LATEST_BEGIN = 50
"""A first timestamp lies within one second: Whisper's filters allow no later one."""
NOTHING = -1.0
_TOKEN, _LANGUAGE = 0, 1


@dataclass(frozen=True, slots=True)
class ScriptedToken:
    """A token, and the encoder frame (20 ms) at which it is said."""

    id: int
    frame: int


@dataclass(frozen=True, slots=True)
class SpokenLanguage:
    """Frames [start, end) in which a language is spoken; outside of all there is no speech."""

    code: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Script:
    """What is said in one window.

    tokens: text ids, and timestamps if wanted, at rising frames. When none is a timestamp and the
    prompt asks for them, one is said before the first token and one after the last.
    """

    tokens: tuple[ScriptedToken, ...] = ()
    languages: tuple[SpokenLanguage, ...] = ()

    def __post_init__(self) -> None:
        frames = [token.frame for token in self.tokens]
        if frames != sorted(set(frames)) or (frames and frames[0] < 0):
            raise OptionError(f"script: frames {frames} given, expected them to rise from 0 or later")


Hear: TypeAlias = Callable[[Floats, int], Script]
"""From a log-mel window (n_mels, n_frames) and its row in the batch to what is said in it."""


def by_row(*scripts: Script) -> Hear:
    """Row b of every batch says script b; the last one goes on for the rows beyond."""
    return lambda _, row: scripts[min(row, len(scripts) - 1)]


class FakeEncoderOutput(EncodedWindows[Floats, tuple[Floats, Floats]]):
    """States in which the script is written."""

    __slots__ = ()

    @staticmethod
    def pair(keys: Floats, values: Floats) -> tuple[Floats, Floats]:
        return keys, values

    @staticmethod
    def concatenated(arrays: Sequence[Floats], axis: int = 0) -> Floats:
        joined: Floats = np.concatenate(arrays, axis)
        return joined

    def filled(self, shape: tuple[int, ...], value: float) -> Floats:
        return np.full(shape, value, np.float32)

    def states_on_host(self) -> Floats:
        return self.states


@dataclass(slots=True)
class _FakeRow:
    """States (n_frames, d) of a window, its frames of audio, and the tokens read so far."""

    states: Floats
    n_content: int
    read: list[int]


@dataclass(frozen=True, slots=True)
class _Heard:
    """What one row makes out of the audio, given the bias on its frames.

    tokens: (id, frame) pairs. language_mass: share of the visible frames by language token.
    """

    tokens: tuple[tuple[int, int], ...]
    language_mass: dict[int, float]
    bias: Floats
    language_at: list[int]


@dataclass(frozen=True, slots=True)
class FakeEncoderState:
    """What the cache of a window would hold."""

    cache: EncoderCacheInfo

    @property
    def n_content_frames(self) -> int:
        return self.cache.n_content


class FakeBackend:
    """A backend that says what its script says; see the module.

    hear: what is said in a window, or one script for every window.
    """

    def __init__(self, hear: Hear | Script, *, dims: ModelDims = FAKE_DIMS, name: str = "fake") -> None:
        self._hear = by_row(hear) if isinstance(hear, Script) else hear
        self.dims, self.name, self.runtime = dims, name, "a script"
        self.device, self.own_threads = CPU, False
        self.tail_s, self.encoder_mode = 0.0, EXACT
        self.alignment_heads = ((dims.n_text_layer - 1, 0), (dims.n_text_layer - 1, 1))
        self._tokenizer = Tokenizer.for_model(dims.n_vocab)
        self.n_encoded = 0
        """Windows encoded so far."""
        self.n_keyed = 0
        """Windows whose keys and values were computed so far."""

    def encode(self, features: Features) -> EncoderOutput:
        """Write each row's script into its states: channel 0 the token at a frame, 1 the language."""
        n_content = content_frames(features, self.dims, self.name)
        n_rows, _, n_frames = features.mel.shape
        self.n_encoded += n_rows
        rows = [self._written(self._hear(mel, row), n_frames // 2) for row, mel in enumerate(features.mel)]
        return FakeEncoderOutput(np.stack(rows), n_content)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        """Write the script that is heard in each window, and say what a network would have computed."""
        check_windows(windows, self.dims, self.name)
        return [self._grown(window, row) for row, window in enumerate(windows)]

    def rows(self) -> FakeRows:
        """Rows that come and go; see `Backend.rows`."""
        return FakeRows(self)

    def note_step(self, tokens: Sequence[Sequence[int]]) -> None:
        """Called with the new tokens of all rows before each step, for tests."""

    def _grown(self, window: IncrementalWindow, row: int) -> IncrementalResult:
        state = state_of(window, FakeEncoderState)
        plan = plan_update(window, None if state is None else state.cache, self.dims.n_audio_ctx)
        n_frames = plan.cache.n_content + plan.cache.padding.n_frames
        self.n_encoded += 1
        states = self._written(self._hear(normalize(window.log_mel), row), n_frames)[None]
        weights = plan.cache.padding.log_weights(plan.cache.n_content)
        log_weights = None if weights is None else np.array([weights], np.float32)
        encoded = FakeEncoderOutput(states, (plan.cache.n_content,), log_weights=log_weights)
        return IncrementalResult(encoded, FakeEncoderState(plan.cache), plan.n_computed)

    def _written(self, script: Script, n_frames: int) -> Floats:
        states = np.full((n_frames, self.dims.n_audio_state), NOTHING, np.float32)
        for spoken in script.languages:
            states[spoken.start : spoken.end, _LANGUAGE] = self._tokenizer.language_token(spoken.code)
        for token in script.tokens:
            if token.frame < n_frames:
                states[token.frame, _TOKEN] = token.id
        return states

    def _heard(self, states: Floats, n_content: int, span: Span | None) -> _Heard:
        """What a row makes of the states (n_frames, d) of a window, within a span."""
        audible = np.arange(len(states)) < n_content
        bias = np.zeros(len(states), np.float32)
        if span is not None:
            bias[: span[0]] = bias[span[1] :] = -np.inf
            audible &= np.isfinite(bias)
        (said,) = ((states[:, _TOKEN] >= 0) & audible).nonzero()
        tokens = tuple(zip(states[said, _TOKEN].astype(int).tolist(), said.tolist(), strict=True))
        languages = states[:, _LANGUAGE].astype(int)
        codes, counts = np.unique(languages[audible], return_counts=True)
        mass = dict(zip(codes.tolist(), (counts / max(1, counts.sum())).tolist(), strict=True))
        return _Heard(tokens, mass, bias, languages.tolist())

    def _say(self, heard: _Heard, context: list[int], logits: Floats) -> int:
        """Write the logits that follow a context; return the frame that is attended to."""
        names = self._tokenizer
        if not context or names.sot not in context:
            return 0
        after = context[len(context) - context[::-1].index(names.sot) :]
        if not after:
            self._name_language(heard, logits)
            return 0
        token, frame = self._next(heard, after)
        language = heard.language_at[frame] if frame < len(heard.language_at) else -1
        forced = [t for t in after if t in names.language_tokens]
        foreign = bool(forced) and language >= 0 and forced[-1] != language and token < names.eot
        logits[token] = UNSURE if foreign else SURE
        return frame

    def _name_language(self, heard: _Heard, logits: Floats) -> None:
        for language, mass in heard.language_mass.items():
            token = self._tokenizer.no_speech if language < 0 else language
            logits[token] = SURE + math.log(mass)

    def _next(self, heard: _Heard, after: list[int]) -> tuple[int, int]:
        """The token that follows, and its frame."""
        names = self._tokenizer
        timed = names.no_timestamps not in after
        literal = any(names.is_timestamp(token) for token, _ in heard.tokens)
        wanted = [pair for pair in heard.tokens if timed or not names.is_timestamp(pair[0])]
        last_frame = wanted[-1][1] if wanted else 0
        may_say = (names.sot_lm,)  # a turn, for checkpoints that know it
        said = [t for t in after if t < names.eot or names.is_timestamp(t) or t in may_say]
        if timed and not literal and wanted:
            begin = min(wanted[0][1], LATEST_BEGIN)
            first = (names.timestamp_begin + begin, wanted[0][1])
            last = (names.timestamp_begin + last_frame + 1, last_frame)
            wanted = [first, *wanted, last]
        return wanted[len(said)] if len(said) < len(wanted) else (names.eot, last_frame)


class FakeRows:
    """`RunningRows` that say what the script of their window says."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self._rows: list[_FakeRow] = []

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def has_room(self, n_windows: int) -> bool:
        return True

    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        check_admitted(encoded, prefix, type(None), self._backend.name)
        if encoded.cross_kv is None:
            self._backend.n_keyed += encoded.batch_size
            encoded.cross_kv = [(encoded.states[:, None], encoded.states[:, None])]
        for states, n_content in zip(encoded.states, encoded.n_content_frames, strict=True):
            self._rows.append(_FakeRow(states, n_content, []))

    def select(self, rows: Sequence[int]) -> None:
        check_selected(rows, self.n_rows)
        chosen = [self._rows[row] for row in rows]
        self._rows = [replace(item, read=list(item.read)) for item in chosen]

    def cut(self, row: int, n_tokens: int) -> None:
        read = self._rows[row].read
        del read[max(0, len(read) - n_tokens) :]

    def prefixes_of(self, rows: Sequence[tuple[int, int]]) -> list[None]:
        """Return None for each; see `RunningRows.prefixes_of`."""
        return [None] * len(rows)

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Ints | None = None,
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> RowsOutput:
        dims = self._backend.dims
        cached = [len(row.read) for row in self._rows]
        check_step(tokens, wanted, cached, longest=dims.n_text_ctx, name=self._backend.name)
        check_heads(capture, dims)
        check_spans(spans, [len(row.states) for row in self._rows])
        self._backend.note_step(tokens)
        logits, attention = [np.zeros((0, dims.n_vocab), np.float32)], []
        for at, (row, new, places) in enumerate(zip(self._rows, tokens, wanted, strict=True)):
            heard = self._backend._heard(row.states, row.n_content, None if spans is None else spans[at])
            result = np.zeros((len(new), dims.n_vocab), np.float32)
            contexts = [row.read + list(new[: i + 1]) for i in range(len(new))]
            frames = [self._backend._say(heard, *each) for each in zip(contexts, result, strict=True)]
            logits.append(result[list(places)])
            attention.append(_attention(frames, heard.bias, len(capture)))
            if spans is None:
                row.read += new
        every = np.concatenate(logits)
        n_frames = [item.shape[2] for item in attention]
        joined = [np.pad(item, ((0, 0), (0, 0), (0, max(n_frames) - item.shape[2]))) for item in attention]
        logits_of = every if vocabulary is None else every[:, vocabulary]
        return RowsOutput(logits_of, np.concatenate(joined, axis=1), list(map(len, tokens)), n_frames)


def _attention(frames: list[int], bias: Floats, n_heads: int) -> Floats:
    """Attention (n_heads, n_new, n_frames) around these frames."""
    centres = np.array(frames, np.float32)[:, None]  # (n_new, 1)
    logits = bias - 0.5 * ((np.arange(len(bias), dtype=np.float32) - centres) / FOCUS_FRAMES) ** 2
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    return np.repeat(weights[None], n_heads, axis=0)
