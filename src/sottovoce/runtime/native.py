"""Whisper on the kernels of `sottovoce-kernels`: a step of many rows is one native call.

Weights and activations of the decoder are int8, those of the encoder int16 and int8. A row's logits are
bitwise the same in any batch, so nothing is padded or masked.

Only this module and `native_encoder` pass addresses to the kernels: they check shapes and dtypes, and keep
arrays alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import sottovoce_kernels as kernels
from sottovoce_kernels.alignatt import N_COLUMNS, AlignAtt, end_step

from sottovoce.decoding.alignment import RunningStatistics
from sottovoce.decoding.filters import FORBIDDEN
from sottovoce.decoding.search import SPREAD_FLOOR, AlignAttEnd, BestTokensEnd
from sottovoce.errors import OptionError
from sottovoce.models.backend import (
    EncoderOutput,
    IncrementalResult,
    IncrementalWindow,
    RowPrefix,
    RowsOutput,
    StepEnd,
    StepGroup,
    StepPart,
    check_admitted,
    check_heads,
    check_selected,
    check_spans,
    check_step,
)
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.devices import CPU, beyond_kernels
from sottovoce.models.dims import AlignmentHeads, ModelDims, Span
from sottovoce.runtime.incremental_encoder import state_of
from sottovoce.runtime.native_encoder import (
    CrossKeysValues,
    NativeEncoder,
    NativeEncoderOutput,
    NativeEncoderState,
)
from sottovoce.runtime.packed import PackedPart, PackedTable, PackedWeights, stored
from sottovoce.threads import n_threads
from sottovoce.types import Bools, Features, Floats, Ints

LAYER_TABLES = (
    (("attn.query", "attn.key", "attn.value"), 3, 1),
    (("attn.out",), 1, 1),
    (("cross_attn.query",), 1, 1),
    (("cross_attn.key", "cross_attn.value"), 2, 1),
    (("cross_attn.out",), 1, 1),
    (("mlp.0",), 4, 1),
    (("mlp.2",), 1, 4),
)
"""Linear layers that share a table, in the order of the kernels; its outputs and inputs, in widths of the
decoder.
"""
FRAMES_PER_BLOCK = 16
"""Keys are packed in blocks, values in pairs of frames."""
NORMS = ("attn_ln", "cross_attn_ln", "mlp_ln")
"""In the order of the kernels."""
EMBEDDING = "decoder.token_embedding"
POSITIONS = "decoder.positional_embedding"


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Cross-attention keys and values of one window, packed for the kernels.

    layers: own the memory that `audio` points to. log_weights: (n_frames,) float32, added to the
    attention logits, or None.
    """

    audio: kernels.CrossKeysValues
    layers: Sequence[CrossKeysValues]
    log_weights: Floats | None

    @property
    def n_frames(self) -> int:
        return int(self.audio.n_frames)


@dataclass(frozen=True, slots=True, eq=False)
class _NativeRow:
    row: kernels.Row
    window: _Window


def _parts(dims: ModelDims) -> dict[str, PackedPart]:
    d = dims.n_text_state
    parts: dict[str, PackedPart] = {EMBEDDING: PackedTable((EMBEDDING,), (dims.n_vocab, d))}
    parts |= stored(POSITIONS, dims.n_text_ctx, d)
    norms = ["decoder.ln"]
    for layer in range(dims.n_text_layer):
        block = f"decoder.blocks.{layer}"
        norms += [f"{block}.{norm}" for norm in NORMS]
        for which, (layers, n_out, n_in) in enumerate(LAYER_TABLES):
            names = tuple(f"{block}.{name}" for name in layers)
            parts[f"{block}.{which}"] = PackedTable(names, (n_out * d, n_in * d))
    for norm in norms:
        parts |= stored(f"{norm}.weight", d) | stored(f"{norm}.bias", d)
    return parts


class NativeDecoder:
    def __init__(self, checkpoint: Checkpoint) -> None:
        """Map packed weights, or pack them; the checkpoint's may have any floating dtype."""
        self.dims = dims = checkpoint.dims
        sizes = (dims.n_text_layer, dims.n_text_state, dims.n_text_head, dims.n_vocab, dims.n_text_ctx)
        self._decoder = kernels.Decoder(*sizes)
        self._weights = weights = PackedWeights(checkpoint, _parts(dims))
        d = dims.n_text_state
        for layer in range(dims.n_text_layer):
            block = f"decoder.blocks.{layer}"
            for which, (_, n_out, n_in) in enumerate(LAYER_TABLES):
                self._decoder.set_table(layer, which, weights[f"{block}.{which}"], (n_out * d, n_in * d))
            for which, norm in enumerate(NORMS):
                self._set_norm(layer, which, f"{block}.{norm}")
        self._decoder.set_table(-1, 0, weights[EMBEDDING], (dims.n_vocab, d))
        self._set_norm(-1, 0, "decoder.ln")
        self._decoder.set_positions(weights[POSITIONS])

    def _set_norm(self, layer: int, which: int, name: str) -> None:
        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        self._decoder.set_norm(layer, which, weight, bias)

    def windows(self, encoded: NativeEncoderOutput) -> list[_Window]:
        if encoded.cross_kv is None:
            encoded.cross_kv = self.keys_values(encoded.states)
        layers, weights = encoded.cross_kv, encoded.log_weights
        return [
            self._window(
                [CrossKeysValues(layer.keys[row], layer.values[row]) for layer in layers],
                encoded.n_frames,
                None if weights is None else np.ascontiguousarray(weights[row]),
            )
            for row in range(encoded.batch_size)
        ]

    @staticmethod
    def _window(layers: Sequence[CrossKeysValues], n_frames: int, weights: Floats | None) -> _Window:
        audio = kernels.CrossKeysValues(
            [layer.keys.ctypes.data for layer in layers],
            [layer.values.ctypes.data for layer in layers],
            n_frames,
        )
        return _Window(audio, layers, weights)

    def keys_values(
        self, states: Floats, kept: Sequence[CrossKeysValues] = (), n_kept: int = 0
    ) -> list[CrossKeysValues]:
        """Compute keys and values of each layer over states (B, n_frames, d).

        kept: of windows whose first n_kept frames had these states; only blocks behind are computed.
        """
        n_blocks = n_kept // FRAMES_PER_BLOCK
        states = np.ascontiguousarray(states[:, n_blocks * FRAMES_PER_BLOCK :])
        n_rows, n_frames = states.shape[:2]
        shapes = self._decoder.cross_shapes(n_frames)
        layers = [
            CrossKeysValues(*(np.zeros((n_rows, *shape), np.uint16) for shape in shapes))
            for _ in range(self.dims.n_text_layer)
        ]
        for row in range(n_rows):
            keys_at = [layer.keys[row].ctypes.data for layer in layers]
            values_at = [layer.values[row].ctypes.data for layer in layers]
            self._decoder.cross_keys_values(
                states[row].ctypes.data, n_frames, keys_at, values_at, n_threads()
            )
        if not n_blocks:
            return layers
        n_pairs = n_blocks * FRAMES_PER_BLOCK // 2
        return [
            CrossKeysValues(
                np.concatenate((old.keys[:, :, :n_blocks], new.keys), axis=2),
                np.concatenate((old.values[:, :, :n_pairs], new.values), axis=2),
            )
            for old, new in zip(kept, layers, strict=True)
        ]

    def step(
        self,
        rows: Sequence[_NativeRow],
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        logits: Floats,
        *,
        spans: Sequence[Span] | None = None,
        vocabulary: Sequence[int] = (),
        capture: AlignmentHeads = (),
        attention: Floats | None = None,
        choice: kernels.Choice | None = None,
    ) -> None:
        """Append new tokens to rows; write logits (n_wanted, n_rows) and attention (n_captured, n_tokens,
        frames of the longest window), 0 behind a window.
        """
        self._check_vocabulary(vocabulary)
        self._check_vocabulary([token for new in tokens for token in new])
        places, at = [], 0
        for new, positions in zip(tokens, wanted, strict=True):
            places += [at + position for position in positions]
            at += len(new)
        windows = [row.window for row in rows]
        self._decoder.step(
            [row.row for row in rows],
            [window.audio for window in windows],
            tokens,
            spans=spans or [(0, window.n_frames) for window in windows],
            bias=[0 if window.log_weights is None else window.log_weights.ctypes.data for window in windows],
            wanted=places if logits.shape[1] else [],
            vocabulary=vocabulary,
            logits=logits.ctypes.data,
            captured=capture,
            attention=0 if attention is None else attention.ctypes.data,
            longest=0 if attention is None else attention.shape[2],
            n_threads=n_threads(),
            choice=choice,
        )

    def _check_vocabulary(self, tokens: Sequence[int]) -> None:
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.dims.n_vocab:
            wrong = next(token for token in tokens if not 0 <= token < self.dims.n_vocab)
            raise OptionError(f"step: token {wrong} given, expected one of {self.dims.n_vocab}")


@dataclass(eq=False)
class _Statistics:
    """`RunningStatistics` of rows. n_tokens: (n,). sums: (n, 2, n_heads, n_frames), mean and squares."""

    n_tokens: Floats
    sums: Floats

    @classmethod
    def zeros(cls, n_rows: int, n_heads: int, n_frames: int) -> _Statistics:
        return cls(np.zeros(n_rows, np.float32), np.zeros((n_rows, 2, n_heads, n_frames), np.float32))

    @property
    def n_rows(self) -> int:
        return len(self.n_tokens)

    @property
    def n_frames(self) -> int:
        return self.sums.shape[3]

    def grown(self, n_rows: int, n_heads: int, n_frames: int) -> _Statistics:
        """Return them with room for so many rows and frames."""
        if n_rows <= self.n_rows and n_frames <= self.n_frames:
            return self
        larger = _Statistics.zeros(max(2 * n_rows, self.n_rows), n_heads, max(n_frames, self.n_frames))
        if self.n_rows:
            larger.n_tokens[: self.n_rows] = self.n_tokens
            larger.sums[: self.n_rows, :, :, : self.n_frames] = self.sums
        return larger

    def begin(self, row: int, statistics: object) -> None:
        self.n_tokens[row], self.sums[row] = 0.0, 0.0
        if isinstance(statistics, RunningStatistics):
            self.n_tokens[row] = statistics.n_tokens
            self.sums[row, 0, :, : statistics.mean.shape[1]] = statistics.mean
            self.sums[row, 1, :, : statistics.mean.shape[1]] = statistics.squares

    def of_row(self, row: int, n_frames: int) -> RunningStatistics:
        mean, squares = self.sums[row, :, :, :n_frames]
        return RunningStatistics(self.n_tokens[row], mean, squares)


class NativeRows:
    """`RunningRows` of one decoder, which choose the tokens of a search: they are `EndingRows` too."""

    def __init__(self, decoder: NativeDecoder, name: str) -> None:
        self._decoder = decoder
        self._name = name
        self._rows: list[_NativeRow] = []
        self._logits = np.empty(0, np.float32)
        self._forbidden = np.zeros(0, np.int32)
        """Ids (n,) of tokens that may follow no row."""
        self._statistics = self._scratch = _Statistics.zeros(0, 0, 0)

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def has_room(self, n_windows: int) -> bool:
        return True

    def admit(self, encoded: EncoderOutput, prefix: RowPrefix | None = None) -> None:
        cached = check_admitted(encoded, prefix, kernels.Row, self._name)
        for window in self._decoder.windows(NativeEncoderOutput.checked(encoded)):
            row = kernels.Row() if cached is None else cached.first(cached.n_tokens)
            self._rows.append(_NativeRow(row, window))

    def select(self, rows: Sequence[int]) -> None:
        check_selected(rows, self.n_rows)
        taken: set[int] = set()
        chosen = []
        for index in rows:
            chosen_row = self._rows[index]
            if index in taken:  # both share the cache so far
                chosen_row = replace(chosen_row, row=chosen_row.row.first(chosen_row.row.n_tokens))
            chosen.append(chosen_row)
            taken.add(index)
        self._rows = chosen

    def cut(self, row: int, n_tokens: int) -> None:
        state = self._rows[row].row
        state.truncate(state.n_tokens - n_tokens)

    def prefixes_of(self, rows: Sequence[tuple[int, int]]) -> list[RowPrefix]:
        return [self._rows[row].row.first(n_tokens) for row, n_tokens in rows]

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        *,
        vocabulary: Ints | None = None,
        capture: AlignmentHeads = (),
        spans: Sequence[Span] | None = None,
    ) -> RowsOutput:
        n_frames, dims = self._checked(tokens, wanted, spans), self._decoder.dims
        check_heads(capture, dims)
        n_new = list(map(len, tokens))
        some: list[int] = [] if vocabulary is None else vocabulary.tolist()
        n_vocab = dims.n_vocab if vocabulary is None else len(some)
        logits = np.empty((sum(map(len, wanted)), n_vocab), np.float32)
        attention = np.empty((len(capture), sum(n_new), max(n_frames)), np.float32)
        self._decoder.step(
            self._rows,
            tokens,
            wanted,
            logits,
            spans=spans,
            vocabulary=some,
            capture=capture,
            attention=attention,
        )
        if spans is not None:
            for row, n in enumerate(n_new):
                self.cut(row, n)
        return RowsOutput(logits, attention, n_new, n_frames)

    def computes(self, end: StepEnd) -> bool:
        return isinstance(end, AlignAttEnd) or (isinstance(end, BestTokensEnd) and end.fusion is None)

    def begin(self, end: StepEnd, kept: Mapping[int, object]) -> None:
        if isinstance(end, BestTokensEnd):
            self._forbidden = end.forbidden.astype(np.int32)
            return
        assert isinstance(end, AlignAttEnd)
        self._forbidden = end.vocabulary.forbidden.astype(np.int32)
        before = [each.mean.shape[1] for each in kept.values() if isinstance(each, RunningStatistics)]
        self._statistics = self._statistics.grown(1 + max(kept), len(end.capture), max(before, default=1))
        for row, statistics in kept.items():
            self._statistics.begin(row, statistics)

    def steps(
        self, tokens: Sequence[Sequence[int]], groups: Sequence[StepGroup], n_steps: int = 1
    ) -> Iterator[Sequence[StepPart]]:
        end = groups[0].end
        if isinstance(end, BestTokensEnd):
            yield [self._best_tokens(tokens, groups[0], end)]
        else:
            yield self._align_att(tokens, groups)

    def _best_tokens(self, tokens: Sequence[Sequence[int]], group: StepGroup, end: BestTokensEnd) -> StepPart:
        self._checked(tokens, group.wanted, None)
        n_rows, n_best = self.n_rows, end.n_best + 1  # one more shows whether the last is unique
        logits = self._room_for_logits(n_rows, self._decoder.dims.n_vocab)
        best = np.empty((n_rows, n_best), np.float32)
        tokens_found, is_clear = np.empty((n_rows, n_best), np.int32), np.empty(n_rows, np.int32)
        rules = group.columns[:, :3].astype(np.int32)
        places = (self._forbidden, rules, best, tokens_found, is_clear)
        requested = kernels.Choice(
            n_best, len(self._forbidden), end.time_begin, *(array.ctypes.data for array in places)
        )
        self._decoder.step(self._rows, tokens, group.wanted, logits, choice=requested)
        if is_clear.all():
            chosen = np.concatenate((best[:, :-1], tokens_found[:, :-1].astype(np.float32)), axis=1)
            return StepPart(range(n_rows), range(n_rows), (chosen,))
        # on ties, or if fewer may follow
        return StepPart(range(n_rows), range(n_rows), (logits,), has_logits=True)

    def _room_for_logits(self, n_rows: int, n_vocab: int) -> Floats:
        if len(self._logits) < n_rows * n_vocab:
            self._logits = np.empty(n_rows * n_vocab, np.float32)  # of every later step
        return self._logits[: n_rows * n_vocab].reshape(n_rows, n_vocab)

    def _align_att(self, tokens: Sequence[Sequence[int]], groups: Sequence[StepGroup]) -> list[StepPart]:
        end = _align_att_end(groups[0])
        wanted = [sorted({*places}) for group in groups for places in group.wanted]
        n_frames = self._checked(tokens, wanted, None)
        some: list[int] = [] if end.vocabulary.rows is None else end.vocabulary.rows.tolist()
        n_new, n_wanted = np.array([*map(len, tokens)]), np.array([*map(len, wanted)])
        logits = self._room_for_logits(int(n_wanted.sum()), len(some) or self._decoder.dims.n_vocab)
        attention = np.empty((len(end.capture), n_new.sum(), max(n_frames)), np.float32)
        self._decoder.step(
            self._rows, tokens, wanted, logits, vocabulary=some, capture=end.capture, attention=attention
        )
        n_entries = 1 + max(int(group.columns[:, :2].max()) for group in groups)
        self._statistics = self._statistics.grown(n_entries, len(end.capture), max(n_frames))
        self._scratch = self._scratch.grown(len(tokens), len(end.capture), self._statistics.n_frames)
        first, last = n_new.cumsum() - n_new, n_wanted.cumsum() - 1
        return [
            self._ended(group, attention, logits, first[rows], last[rows], n_wanted[rows] > 1)
            for group in groups
            for rows in [[*group.rows]]
        ]

    def _ended(
        self, group: StepGroup, attention: Floats, logits: Floats, first: Ints, last: Ints, has_sot: Bools
    ) -> StepPart:
        """Compute an end.

        attention: (n_heads, n_tokens, n_frames). first, last: (n_rows,) int64, where each row's first new
        token is in the attention, and its last logits. has_sot: (n_rows,), whether it has two.
        """
        end, columns, n_rows = _align_att_end(group), group.columns, len(group.rows)
        vocabulary, n_best = end.vocabulary, end.n_best
        rows = np.full((n_rows, N_COLUMNS), -1, np.int32)
        rows[:, 0], rows[:, 1], rows[:, 2:6] = first, last, columns[:, :4]
        ends, n_kept = np.zeros((n_rows, 4), np.float32), 0
        if end.reads_prefixes:
            n_kept, measures = n_rows, columns[:, 5] > 0
            rows[:, 6], rows[:, 7], rows[:, 8] = columns[:, 4], range(n_rows), vocabulary.blank_row
            if has_sot.any():
                ends[has_sot, 0] = vocabulary.no_speech_probs(logits[last[has_sot] - 1])
            if measures.any():
                ends[measures, 1:] = vocabulary.text_ends(logits[last[measures]])
        n_heads, n_tokens, longest = attention.shape
        state, kept = self._statistics, _Statistics.zeros(n_kept, n_heads, longest)
        frames, forbidden = np.empty(n_rows, np.int32), self._forbidden
        best, tokens = np.full((n_rows, n_best), FORBIDDEN, np.float32), np.zeros((n_rows, n_best), np.int32)
        arrays: Sequence[npt.NDArray[np.generic]] = (
            *(rows, attention, state.sums, state.n_tokens, self._scratch.sums, kept.sums, kept.n_tokens),
            *(logits, forbidden, frames, best, tokens),
        )
        end_step(
            AlignAtt(
                *(n_rows, n_heads, n_tokens, longest, state.n_frames, longest),
                *(logits.shape[1], vocabulary.n_text, len(forbidden), n_best, n_threads()),
                SPREAD_FLOOR,
                *(array.ctypes.data for array in arrays),
            )
        )
        ids = tokens if vocabulary.rows is None else vocabulary.ids[tokens]
        outputs = [np.column_stack((frames, ends, ids, best)).astype(np.float32)]
        if end.returns_log_probs:
            outputs.append(vocabulary.log_probs(logits[last], begins=end.reads_prefixes))
        of_rows = [kept.of_row(row, n) for row, n in enumerate(columns[:n_kept, 2].tolist())]
        return StepPart(group.rows, range(n_rows), outputs, of_rows)

    def _checked(
        self,
        tokens: Sequence[Sequence[int]],
        wanted: Sequence[Sequence[int]],
        spans: Sequence[Span] | None,
    ) -> list[int]:
        cached = [row.row.n_tokens for row in self._rows]
        n_frames = [row.window.n_frames for row in self._rows]
        check_step(tokens, wanted, cached, longest=self._decoder.dims.n_text_ctx, name=self._name)
        check_spans(spans, n_frames)
        return n_frames


def _align_att_end(group: StepGroup) -> AlignAttEnd:
    assert isinstance(group.end, AlignAttEnd), "`computes` tells which ends are taken"
    return group.end


class NativeBackend:
    """A backend on the processor. States, logits and attention are float32."""

    def __init__(self, encoder: NativeEncoder, decoder: NativeDecoder) -> None:
        self._encoder = encoder
        self._decoder = decoder
        self.name, self.dims, self.tail_s = encoder.name, encoder.dims, encoder.tail_s
        self.alignment_heads, self.encoder_mode = encoder.alignment_heads, encoder.encoder_mode
        self.device, self.own_threads = CPU, True
        self.dtype = np.dtype(np.int16)
        """Of the widest tables."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> NativeBackend:
        """Map packed weights, or pack a checkpoint's.

        Raises:
            OptionError: sizes that the kernels do not take.
        """
        dims = checkpoint.dims
        if (sizes := beyond_kernels(dims)) is not None:
            raise OptionError(f"native backend: expected another model, got {sizes}")
        return cls(NativeEncoder(checkpoint), NativeDecoder(checkpoint))

    @property
    def runtime(self) -> str:
        return f"native, {kernels.in_use()}; decoder int8, encoder int8 and int16"

    def encode(self, features: Features) -> NativeEncoderOutput:
        return self._encoder.encode(features)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        results = self._encoder.encode_incremental(windows)
        return [self._with_keys_values(*each) for each in zip(results, windows, strict=True)]

    def _with_keys_values(self, result: IncrementalResult, window: IncrementalWindow) -> IncrementalResult:
        before, after = state_of(window, NativeEncoderState), result.state
        encoded = NativeEncoderOutput.checked(result.encoded)
        assert isinstance(after, NativeEncoderState)
        kept = () if before is None else before.cross_kv
        encoded.cross_kv = self._decoder.keys_values(encoded.states, kept, result.n_kept)
        return replace(result, state=replace(after, cross_kv=encoded.cross_kv))

    def rows(self) -> NativeRows:
        return NativeRows(self._decoder, self.name)
