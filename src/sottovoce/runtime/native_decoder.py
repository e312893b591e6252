"""The decoder of the kernels behind tensors.

Only this module and `native_encoder` pass addresses to the kernels: they check shapes and dtypes, and keep
tensors alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sottovoce_kernels as kernels
import torch
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.models.backend import AlignmentHeads, BestTokens, ModelDims, Span, TokenChoice
from sottovoce.threads import n_threads
from sottovoce.types import EncoderOutput

ATTENTION_TABLES = (
    ("attn.out", 1),
    ("cross_attn.query", 2),
    ("cross_attn.out", 4),
    ("mlp.0", 5),
    ("mlp.2", 6),
)
NORMS = (("attn_ln", 0), ("cross_attn_ln", 1), ("mlp_ln", 2))


@dataclass(frozen=True, slots=True, eq=False)
class WindowKv:
    """Cross-attention keys and values of one window, packed for the kernels.

    tensors: own the memory that `audio` points to. log_weights: (n_frames,) float32, added to the
    attention logits, or None.
    """

    audio: kernels.CrossKeysValues
    tensors: tuple[Tensor, ...]
    log_weights: Tensor | None

    @property
    def n_frames(self) -> int:
        return int(self.audio.n_frames)


@dataclass(frozen=True, slots=True, eq=False)
class RowInput:
    """One row of a step.

    tokens: new ones, of any number. wanted: positions among these that get logits. span: the frames to
    attend to; None: all.
    """

    row: kernels.Row
    window: WindowKv
    tokens: Sequence[int]
    wanted: Sequence[int]
    span: Span | None = None


class NativeDecoder:
    def __init__(self, dims: ModelDims, tensors: Mapping[str, Tensor]) -> None:
        """Pack weights. tensors: names and shapes of OpenAI's state dict, (n_out, n_in), any floating
        dtype.
        """
        self.dims = dims
        sizes = (dims.n_text_layer, dims.n_text_state, dims.n_text_head, dims.n_vocab, dims.n_text_ctx)
        self._decoder = kernels.Decoder(*sizes)
        for layer in range(dims.n_text_layer):
            self._set_layer(layer, tensors)
        self._set_table(-1, 0, floats(tensors["decoder.token_embedding.weight"]), None)
        self._set_norm(-1, 0, tensors, "decoder.ln")
        positions = floats(tensors["decoder.positional_embedding"])
        self._decoder.set_positions(positions.data_ptr())

    def _set_layer(self, layer: int, tensors: Mapping[str, Tensor]) -> None:
        name = f"decoder.blocks.{layer}"
        for which, part, projections in (
            (0, "attn", ("query", "key", "value")),
            (3, "cross_attn", ("key", "value")),
        ):
            weights = [tensors[f"{name}.{part}.{one}.weight"] for one in projections]
            biases = [
                tensors.get(f"{name}.{part}.{one}.bias", torch.zeros(self.dims.n_text_state))
                for one in projections
            ]
            self._set_table(layer, which, floats(torch.cat(weights)), floats(torch.cat(biases)))
        for part, which in ATTENTION_TABLES:
            weight, bias = tensors[f"{name}.{part}.weight"], tensors[f"{name}.{part}.bias"]
            self._set_table(layer, which, floats(weight), floats(bias))
        for part, which in NORMS:
            self._set_norm(layer, which, tensors, f"{name}.{part}")

    def _set_table(self, layer: int, which: int, weight: Tensor, bias: Tensor | None) -> None:
        address = 0 if bias is None else bias.data_ptr()
        n_out, n_in = weight.shape
        self._decoder.set_table(layer, which, weight.data_ptr(), address, (n_out, n_in))

    def _set_norm(self, layer: int, which: int, tensors: Mapping[str, Tensor], name: str) -> None:
        weight, bias = floats(tensors[f"{name}.weight"]), floats(tensors[f"{name}.bias"])
        self._decoder.set_norm(layer, which, weight.data_ptr(), bias.data_ptr())

    def windows(self, encoded: EncoderOutput) -> list[WindowKv]:
        """Return the windows of an encoder output; keys and values are computed at the first use."""
        if encoded.cross_kv is None:
            encoded.cross_kv = self._keys_values(encoded.states)
        weights = encoded.log_weights
        return [
            self._window(
                [(keys[row], values[row]) for keys, values in encoded.cross_kv], encoded.n_frames, one
            )
            for row, one in enumerate([None] * encoded.batch_size if weights is None else weights.float())
        ]

    def _window(
        self, layers: Sequence[tuple[Tensor, Tensor]], n_frames: int, weights: Tensor | None
    ) -> WindowKv:
        keys = [one.contiguous() for one, _ in layers]
        values = [one.contiguous() for _, one in layers]
        audio = kernels.CrossKeysValues(
            [one.data_ptr() for one in keys], [one.data_ptr() for one in values], n_frames
        )
        return WindowKv(audio, (*keys, *values), None if weights is None else weights.contiguous())

    def _keys_values(self, states: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Compute keys and values (B, n_head, ...) bfloat16 of each layer, packed for the kernels."""
        n_rows, n_frames = states.shape[:2]
        shapes = self._decoder.cross_shapes(n_frames)
        layers = []
        for _ in range(self.dims.n_text_layer):
            keys, values = (torch.zeros(n_rows, *shape, dtype=torch.bfloat16) for shape in shapes)
            layers.append((keys, values))
        for row in range(n_rows):
            of_row = floats(states[row])
            keys_at, values_at = ([pair[which][row].data_ptr() for pair in layers] for which in (0, 1))
            self._decoder.cross_keys_values(of_row.data_ptr(), n_frames, keys_at, values_at, n_threads())
        return layers

    def step(
        self, batch: Sequence[RowInput], *, vocabulary: Tensor | None = None, capture: AlignmentHeads = ()
    ) -> tuple[Tensor, Tensor]:
        """Append new tokens to rows.

        Returns logits (n_wanted, n_rows) float32 of the wanted positions of all rows; and the attention of
        the captured heads (n_captured, n_tokens, n_frames) float32, with the frames of the longest window,
        padded with 0.

        Raises:
            OptionError: a token outside the vocabulary.
        """
        some: list[int] = [] if vocabulary is None else vocabulary.tolist()
        self._check_vocabulary(some)
        n_out = self.dims.n_vocab if vocabulary is None else len(some)
        longest = max(row_input.window.n_frames for row_input in batch)
        logits = torch.empty(sum(len(row_input.wanted) for row_input in batch), n_out)
        attention = torch.empty(len(capture), sum(len(row_input.tokens) for row_input in batch), longest)
        self._run(
            batch,
            wanted=_places(batch) if n_out else [],
            vocabulary=some,
            logits=logits.data_ptr(),
            captured=capture,
            attention=attention.data_ptr(),
            longest=longest,
        )
        return logits, attention

    def step_best(
        self, batch: Sequence[RowInput], choice: TokenChoice, logits: Tensor
    ) -> BestTokens | Tensor:
        """Append new tokens to rows; see `ChoosingRows.step_best`.

        logits: (n_wanted, n_vocab) float32, written, and returned on ties.

        Raises:
            OptionError: a token outside the vocabulary.
        """
        n_wanted, n_best = len(logits), choice.n_best + 1  # one more shows whether the last is unique
        best, tokens = torch.empty(n_wanted, n_best), torch.empty(n_wanted, n_best, dtype=torch.int32)
        rules = torch.tensor(choice.allowed, dtype=torch.int32)
        is_clear = torch.empty(n_wanted, dtype=torch.int32)
        places = (choice.forbidden, rules, best, tokens, is_clear)
        requested = kernels.Choice(
            n_best, len(choice.forbidden), choice.time_begin, *(one.data_ptr() for one in places)
        )
        self._run(batch, wanted=_places(batch), logits=logits.data_ptr(), choice=requested)
        if not all(is_clear.tolist()):
            return logits
        return BestTokens(tokens[:, : choice.n_best].long(), best[:, : choice.n_best])

    def _run(
        self,
        batch: Sequence[RowInput],
        *,
        wanted: Sequence[int],
        logits: int,
        vocabulary: Sequence[int] = (),
        captured: AlignmentHeads = (),
        attention: int = 0,
        longest: int = 0,
        choice: kernels.Choice | None = None,
    ) -> None:
        tokens = [row_input.tokens for row_input in batch]
        self._check_vocabulary([token for new in tokens for token in new])
        weights = [row_input.window.log_weights for row_input in batch]
        self._decoder.step(
            [row_input.row for row_input in batch],
            [row_input.window.audio for row_input in batch],
            tokens,
            spans=[row_input.span or (0, row_input.window.n_frames) for row_input in batch],
            bias=[0 if one is None else one.data_ptr() for one in weights],
            wanted=wanted,
            vocabulary=vocabulary,
            logits=logits,
            captured=captured,
            attention=attention,
            longest=longest,
            n_threads=n_threads(),
            choice=choice,
        )

    def _check_vocabulary(self, tokens: Sequence[int]) -> None:
        if tokens and not 0 <= min(tokens) <= max(tokens) < self.dims.n_vocab:
            wrong = next(token for token in tokens if not 0 <= token < self.dims.n_vocab)
            raise OptionError(f"step: token {wrong} given, expected one of {self.dims.n_vocab}")


def _places(batch: Sequence[RowInput]) -> list[int]:
    places, at = [], 0
    for row_input in batch:
        places += [at + position for position in row_input.wanted]
        at += len(row_input.tokens)
    return places


def floats(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32).contiguous()
