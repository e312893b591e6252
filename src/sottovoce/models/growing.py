"""Whisper's encoder on audio that grows: new frames computed against the keys and values of older ones.

The encoder is not causal, so what is kept of older frames is what they were when the audio ended sooner.
Positions are absolute: what is kept is of use only while the window begins at the same sample. Not known
here: when something is computed anew, what is behind the audio, levels and modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from sottovoce.models.whisper import AudioEncoder, KeysValues, Whisper

MELS_PER_FRAME = 2


@dataclass(frozen=True, slots=True, eq=False)
class EncodedFrames:
    """Encoder frames of one window, in every layer; shared by whoever holds it, and never written to.

    keys_values: per encoder layer, (1, H, n, d_head) twice. states: (1, n, d), the encoder's output.
    cross: per decoder layer, keys and values (1, H, n, d_head) over these states.
    """

    keys_values: tuple[KeysValues, ...]
    states: Tensor
    cross: tuple[KeysValues, ...]

    @property
    def n_frames(self) -> int:
        return int(self.states.shape[1])

    def part(self, start: int, end: int) -> EncodedFrames:
        """Frames [start, end), over the same memory."""
        return EncodedFrames(
            tuple((keys[:, :, start:end], values[:, :, start:end]) for keys, values in self.keys_values),
            self.states[:, start:end],
            tuple((keys[:, :, start:end], values[:, :, start:end]) for keys, values in self.cross),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Growth:
    """What is computed of one window: encoder frames [start, end), and single frames of padding beyond.

    mel: (n_mels, n) normalised, of the whole window; beyond it 0.0 is taken. ends: whether the window ends at
        `end`, and the convolutions with it. places: of the single frames, whose surroundings are padding too.
    before: what is kept of frames [0, start). after: kept frames that stand behind the others, wherever
        their positions are. log_weights: (n_attended,) float32, added to the attention to each frame.
    """

    mel: Tensor
    start: int
    end: int
    ends: bool
    places: tuple[int, ...] = ()
    before: EncodedFrames | None = None
    after: EncodedFrames | None = None
    log_weights: Tensor | None = None

    @property
    def n_frames(self) -> int:
        """Frames that are computed."""
        return self.end - self.start + len(self.places)

    @property
    def n_attended(self) -> int:
        """Frames in all."""
        return self.n_frames + sum(kept.n_frames for kept in (self.before, self.after) if kept is not None)

    def line_up(self, own: Tensor, kept: Callable[[EncodedFrames], Tensor], *, dim: int) -> Tensor:
        """What was computed, along `dim` and padded at its end, between what is kept before and after."""
        before = [] if self.before is None else [kept(self.before)]
        after = [] if self.after is None else [kept(self.after)]
        return torch.cat([*before, own.narrow(dim, 0, self.n_frames), *after], dim=dim)

    def line_up_pair(self, own: KeysValues, kept: Callable[[EncodedFrames], KeysValues]) -> KeysValues:
        """The same of keys and values (1, H, n, d_head)."""
        keys = self.line_up(own[0], lambda frames: kept(frames)[0], dim=2)
        return keys, self.line_up(own[1], lambda frames: kept(frames)[1], dim=2)


@torch.no_grad()
def grow(model: Whisper, growths: Sequence[Growth]) -> list[EncodedFrames]:
    """Compute frames of several windows at once: each window's frames before, these, and those after.

    A window gives the same alone and in a batch. Best for windows that compute about as many frames against
    about as many others: rows are padded, and the padding is masked.
    """
    states, layers = _run_layers(model.encoder, growths)
    cross = model.decoder.cross_keys_values(states)
    return [
        EncodedFrames(
            tuple(rows[row] for rows in layers),
            growth.line_up(states[row : row + 1], lambda kept: kept.states, dim=1),
            tuple(growth.line_up_pair(_row(pair, row), _cross(layer)) for layer, pair in enumerate(cross)),
        )
        for row, growth in enumerate(growths)
    ]


def _run_layers(encoder: AudioEncoder, growths: Sequence[Growth]) -> tuple[Tensor, list[list[KeysValues]]]:
    """States (B, n, d) of the frames that are computed, and by layer and row the keys and values of all."""
    x = _embedded(encoder, growths)
    mask = _mask(growths, x)
    layers: list[list[KeysValues]] = []
    for layer, block in enumerate(encoder.layers):
        normed = block.attn_ln(x)
        own = block.attn.keys_values(normed)
        rows = [growth.line_up_pair(_row(own, row), _encoder(layer)) for row, growth in enumerate(growths)]
        keys, values = (_stacked([row[which] for row in rows]) for which in (0, 1))
        x = block.add_mlp(x + block.attn(block.attn.queries(normed), keys, values, mask=mask))
        layers.append(rows)
    states: Tensor = encoder.ln_post(x)
    return states, layers


def _encoder(layer: int) -> Callable[[EncodedFrames], KeysValues]:
    return lambda kept: kept.keys_values[layer]


def _cross(layer: int) -> Callable[[EncodedFrames], KeysValues]:
    return lambda kept: kept.cross[layer]


def _row(pair: KeysValues, row: int) -> KeysValues:
    """One row of a batch, over the same memory."""
    return pair[0][row : row + 1], pair[1][row : row + 1]


def _embedded(encoder: AudioEncoder, growths: Sequence[Growth]) -> Tensor:
    """What the first layer sees: (B, n, d), rows padded at their ends."""
    n_frames = max(growth.end - growth.start for growth in growths)
    mel = torch.stack([_mel_around(growth, n_frames) for growth in growths]).to(encoder.conv1.weight)
    x = F.gelu(encoder.conv1(mel)) * _inside(growths, mel)
    x = F.gelu(encoder.conv2(x)).transpose(1, 2)[:, 1:-1]
    rows = [_placed(encoder, growth, x[row]) for row, growth in enumerate(growths)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(mel.dtype)


def _placed(encoder: AudioEncoder, growth: Growth, x: Tensor) -> Tensor:
    """One row's frames (n, d), the single ones of padding included, at their positions."""
    table = encoder.positional_embedding
    placed = x[: growth.end - growth.start] + table[growth.start : growth.end]
    if not growth.places:
        return placed
    places = torch.tensor(growth.places, device=table.device)
    return torch.cat([placed, _frame_of_padding(encoder) + table[places]])


def _frame_of_padding(encoder: AudioEncoder) -> Tensor:
    """What the convolutions make of 0.0 far from any audio: (1, d)."""
    nothing = encoder.conv1.weight.new_zeros(1, encoder.conv1.in_channels, 5 * MELS_PER_FRAME)
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(nothing)))).transpose(1, 2)
    return x[0, 2:3]


def _mel_around(growth: Growth, n_frames: int) -> Tensor:
    """The log-mel of n_frames encoder frames from `start` on, with one more on either side."""
    first = MELS_PER_FRAME * (growth.start - 1)
    n_columns = MELS_PER_FRAME * (n_frames + 2)
    last = MELS_PER_FRAME * growth.end if growth.ends else first + n_columns
    mel = growth.mel[:, max(0, first) : min(last, first + n_columns)]
    n_before = max(0, -first)
    return F.pad(mel, (n_before, n_columns - n_before - mel.shape[1]))


def _inside(growths: Sequence[Growth], mel: Tensor) -> Tensor:
    """1 for the columns of `_mel_around` that lie within the window, 0 where it has not begun or has ended.

    (B, 1, n_columns): beyond its edges the second convolution sees zeros, not what the first makes of them.
    """
    columns = torch.arange(mel.shape[2], device=mel.device)
    firsts = [MELS_PER_FRAME * (growth.start - 1) for growth in growths]
    ends = [
        MELS_PER_FRAME * growth.end if growth.ends else first + len(columns)
        for growth, first in zip(growths, firsts, strict=True)
    ]
    places = torch.tensor(firsts, device=mel.device)[:, None] + columns
    inside = (places >= 0) & (places < torch.tensor(ends, device=mel.device)[:, None])
    return inside[:, None].to(mel.dtype)


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Rows (1, H, n_i, d_head) as a batch (B, H, max n_i, d_head), with zeros at their ends."""
    if len(rows) == 1:
        return rows[0]
    longest = max(row.shape[2] for row in rows)
    return torch.cat([F.pad(row, (0, 0, 0, longest - row.shape[2])) for row in rows])


def _mask(growths: Sequence[Growth], x: Tensor) -> Tensor | None:
    """What is added to the attention to each key: (B, 1, 1, max n_attended); None if that is nothing.

    -inf where a row has no key.
    """
    plain = all(growth.log_weights is None for growth in growths)
    if plain and len({growth.n_attended for growth in growths}) == 1:
        return None
    mask = x.new_full((len(growths), max(growth.n_attended for growth in growths)), -torch.inf)
    for row, growth in zip(mask, growths, strict=True):
        row[: growth.n_attended] = 0.0 if growth.log_weights is None else growth.log_weights
    return mask[:, None, None]
