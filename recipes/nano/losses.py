"""What the model is taught at each step: text, spelling, language, and where to listen.

The cross-entropy of the decoder; CTC on the encoder; the language token from a window of the encoder; and
guidance: some heads are shown, by forced alignment of the CTC output, the frames of the token that comes
next, each another part of it, as a word of six letters cannot be read from one of them. A part of the
batch is even told them (oracle), so that reading is learnt before finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from recipes.nano.batches import Batch
from recipes.nano.model import IGNORED, NanoModel
from sottovoce.ctc.emissions import NEVER
from sottovoce.ctc.emissions import align as aligned
from sottovoce.models.dims import AlignmentHeads

LETTER_WIDTH, MARK_WIDTH = 1.6, 3.0
"""Standard deviation, in frames, of the place of a letter, and of a timestamp or the end of the text.

Letters follow one another every three or four frames: a wider place takes in the next one."""
HIDDEN = -1e4
UNKNOWN = -1.0
TIMESTAMP_SPREAD = 2.5
LANGUAGE_WEIGHT = 0.15
INTO_ENCODER = 0.1
"""How much of the decoder's gradient goes on into the encoder. All of it drowns the CTC gradient, which is
several times smaller, and the encoder stands still."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where each target is spoken, in encoder frames.

    centres: (B, n_heads, L), for each head its own part of the target, from its first symbol to its last;
    -1 for none. widths: (B, L) standard deviations.
    """

    centres: Tensor
    widths: Tensor

    @property
    def known(self) -> Tensor:
        """(B, L) bool: the targets that have a place."""
        return self.centres[:, -1] >= 0

    def heard(self, n_frames: int) -> Tensor:
        """Gaussian bumps (B, n_heads, L, n_frames), 1 at the centre; zeros for targets without a place."""
        frames = torch.arange(n_frames, dtype=torch.float32, device=self.centres.device)
        distance = (frames - self.centres[..., None]) / self.widths[:, None, :, None]
        return torch.exp(-0.5 * distance**2) * self.known[:, None, :, None]

    def previous(self) -> Places:
        """The end of the token that is read, instead of the one that is to be said: for all heads."""
        ends = F.pad(self.centres[:, -1:, :-1], (1, 0), value=-1.0)
        return Places(ends, F.pad(self.widths[:, :-1], (1, 0), value=1.0) + 1.0)


def guided_heads(n_layer: int) -> tuple[AlignmentHeads, AlignmentHeads]:
    """Heads 0 and 1 of the first layer follow what was said; those of the others what comes next."""
    first = ((0, 0), (0, 1))
    return first, tuple((layer, head) for layer in range(1, n_layer) for head in (0, 1))


def ctc_loss(log_probs: Tensor, symbols: list[list[int]]) -> Tensor:
    """Mean negative log-likelihood a symbol; rows without text, or too short for it, count nothing."""
    device = log_probs.device
    lengths = torch.tensor([len(row) for row in symbols], device=device)
    frames = torch.full_like(lengths, log_probs.shape[1])
    flat = torch.tensor([symbol for row in symbols for symbol in row], dtype=torch.int64, device=device)
    losses = F.ctc_loss(
        log_probs.transpose(0, 1), flat, frames, lengths, blank=0, reduction="none", zero_infinity=True
    )
    spoken = lengths > 0
    return (losses[spoken] / lengths[spoken]).sum() / max(1, int(spoken.sum()))


@torch.no_grad()
def align(log_probs: Tensor, symbols: Sequence[Sequence[int]]) -> Tensor:
    """Middle frame of each symbol on the likeliest path: (B, longest text) float32, on the same device.

    log_probs: (B, T, V) float32. UNKNOWN after the end of a text, and for texts with more symbols (and
    blanks between equal ones) than frames.
    """
    n_rows, n_frames = log_probs.shape[:2]
    n_symbols = np.array([len(row) for row in symbols])
    said = np.zeros((n_rows, max(1, n_symbols.max())), np.int64)
    for row, texts in zip(said, symbols, strict=True):
        row[: len(texts)] = texts
    emitted, lengths = log_probs.detach().cpu().numpy(), np.full(n_rows, n_frames)
    first, last, _, score = aligned(emitted, lengths, said, n_symbols, rows=np.arange(n_rows), blank=0)
    known = (np.arange(said.shape[1]) < n_symbols[:, None]) & (score > NEVER)[:, None]
    places = np.where(known, (first + last) / 2, UNKNOWN).astype(np.float32)
    return torch.from_numpy(places).to(log_probs.device)


@torch.no_grad()
def find_places(log_probs: Tensor, batch: Batch, n_heads: int) -> Places:
    """Align every row's symbols with its emissions; timestamps and the end point where they say.

    The heads share out the symbols of a token: the first head takes the first, the last the last.
    """
    frames = align(log_probs, batch.symbols)  # (B, n_symbols)
    first, last = batch.spans.clamp_min(0)[:, None].unbind(dim=-1)  # (B, 1, L)
    parts = torch.linspace(0, 1, n_heads, device=frames.device)[:, None]
    symbol = (first + parts * (last - first)).round().long()  # (B, n_heads, L)
    centres = frames.gather(1, symbol.flatten(1)).view_as(symbol)
    spoken = batch.spans[..., 0] >= 0
    return Places(
        torch.where(spoken[:, None], centres, batch.places[:, None]),
        torch.where(spoken, LETTER_WIDTH, MARK_WIDTH),
    )


def guidance_loss(attention: Tensor, places: Places) -> Tensor:
    """Negative log of the attention (B, n_heads, L, n_frames) that falls where it should."""
    share = (attention * places.heard(attention.shape[-1])).sum(dim=-1).clamp(min=1e-5)  # (B, n_heads, L)
    known = places.known[:, None].expand_as(share)
    return -(share.log() * known).sum() / known.sum().clamp(min=1)


def listening_bias(heard: Heard, oracle: float) -> Tensor | None:
    """What is added to the logits of the cross-attention: (B, 1, L or 1, n_frames), or None.

    A share of the rows, `oracle`, is told where to listen.
    """
    places, told = heard.places, None
    if oracle > 0:
        drawn = torch.rand(len(places.centres), device=places.centres.device) < oracle
        rows = drawn[:, None] & places.known
        bias = places.heard(heard.states.shape[1]).amax(dim=1).clamp(min=1e-4).log() * rows[:, :, None]
        told = bias[:, None]
    if heard.batch.hidden is None:
        return told
    n_tokens = heard.batch.inputs.shape[1]
    hidden = heard.batch.hidden[:, None, None].expand(-1, 1, n_tokens, -1)
    return hidden if told is None else hidden + told


def token_loss(model: NanoModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy over the learnt targets; a timestamp may be some 50 ms off."""
    learnt = targets != IGNORED
    log_probs = model.token_log_probs(hidden[learnt])
    wanted = targets[learnt]
    loss = -log_probs.gather(1, wanted[:, None])[:, 0]
    stamps = model.table.timestamp_rows
    timed = (wanted >= stamps.start) & (wanted < stamps.stop)
    if timed.any():
        loss = loss.masked_scatter(timed, _timestamp_loss(log_probs[timed], wanted[timed], stamps))
    return loss.mean()


def language_loss(model: NanoModel, states: Tensor, batch: Batch) -> Tensor:
    """The language token after SOT alone, from one window of the encoder's frames a row."""
    frames = torch.arange(states.shape[1], device=states.device)
    inside = (frames >= batch.windows[:, :1]) & (frames < batch.windows[:, 1:])  # (B, n_frames)
    bias = torch.where(inside, 0.0, HIDDEN)[:, None, None]
    (sot,) = model.table.rows_of([model.table.tokenizer.sot])
    hidden, _ = model.decode(batch.inputs.new_full((len(states), 1), sot), states, bias=bias)
    log_probs = model.token_log_probs(hidden[:, 0])
    known = batch.languages != IGNORED
    if not known.any():
        return log_probs.sum() * 0.0
    return F.nll_loss(log_probs, batch.languages, ignore_index=IGNORED)


@dataclass(frozen=True, slots=True)
class Heard:
    """A batch with its encoder states (B, n_frames, d) and the places of its tokens."""

    states: Tensor
    batch: Batch
    places: Places

    def detached(self) -> Heard:
        """The same without the encoder's gradient, for steps of the decoder alone."""
        return replace(self, states=self.states.detach())


def total_loss(
    model: NanoModel, batch: Batch, guidance: float, oracle: float
) -> tuple[Tensor, dict[str, float], Heard]:
    """The weighted sum of all parts, the value of each for the log, and the encoded batch.

    guidance: weight of that part. oracle: share of rows whose attention is told.
    """
    states = model.encode(batch.mel)
    emissions = model.emissions(states)
    n_heads = len(guided_heads(model.dims.n_text_layer)[1])
    heard = Heard(states, batch, find_places(emissions, batch, n_heads))
    ctc = ctc_loss(emissions, batch.symbols)
    language = language_loss(model, states, batch)
    softened = states.detach() + INTO_ENCODER * (states - states.detach())
    decoder, parts = decoder_loss(model, replace(heard, states=softened), guidance, oracle)
    loss = decoder + ctc + LANGUAGE_WEIGHT * language
    return loss, {**parts, "ctc": float(ctc.detach()), "language": float(language.detach())}, heard


def decoder_loss(
    model: NanoModel, heard: Heard, guidance: float, oracle: float
) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy and guidance over encoder states, which may be kept from an earlier step."""
    first, later = guided_heads(model.dims.n_text_layer)
    states, places = heard.states, heard.places
    bias = listening_bias(heard, oracle)
    hidden, attention = model.decode(heard.batch.inputs, states, bias=bias, capture=(*first, *later))
    assert attention is not None
    tokens = token_loss(model, hidden, heard.batch.targets)
    said = guidance_loss(attention[:, : len(first)], places.previous())
    shown = said + (guidance_loss(attention[:, len(first) :], places) if later else 0.0)
    parts = {"tokens": float(tokens.detach()), "guidance": float(shown.detach())}
    return tokens + guidance * shown, parts


def _timestamp_loss(log_probs: Tensor, wanted: Tensor, stamps: range) -> Tensor:
    """Cross-entropy against a bump of a few frames around the wanted timestamp."""
    offsets = torch.arange(-6, 7, device=log_probs.device)
    bump = torch.exp(-0.5 * (offsets / TIMESTAMP_SPREAD) ** 2)
    near = wanted[:, None] + offsets
    weight = bump * ((near >= stamps.start) & (near < stamps.stop))
    weight = weight / weight.sum(dim=1, keepdim=True)
    near = near.clamp(stamps.start, stamps.stop - 1)
    return -(log_probs.gather(1, near) * weight).sum(dim=1)
