"""The network that is trained: the library's Whisper over a small token table, with a CTC head.

The table holds the pieces in use, the special tokens and the timestamps; one more row stands for all ids
of Whisper's vocabulary that are never said. Timestamp rows are a linear map of Whisper's sinusoids, so
that a time never seen lies between its neighbours. `to_checkpoint` spreads the table over the whole
vocabulary again, and `start_from` takes the rows in use out of it, to go on from a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from recipes.nano.pieces import CtcSymbols, Pieces
from sottovoce.errors import CheckpointError
from sottovoce.models.checkpoint.base import Array, Checkpoint, CtcWeights, floats, sinusoids
from sottovoce.models.dims import AlignmentHeads, ModelDims
from sottovoce.models.whisper import KeysValues, MultiHeadAttention, Whisper, head_weights
from sottovoce.text.tokenizer import N_TIMESTAMPS, Tokenizer

IGNORED = -100
"""The target of a token that is not learnt."""
EMBEDDING = "decoder.token_embedding.weight"
NANO_DIMS = ModelDims(
    n_mels=80,
    n_audio_ctx=1500,
    n_audio_state=256,
    n_audio_head=4,
    n_audio_layer=4,
    n_vocab=51865,
    n_text_ctx=448,
    n_text_state=256,
    n_text_head=4,
    n_text_layer=3,
)


@dataclass(frozen=True, slots=True)
class TokenTable:
    """Which of Whisper's ids have a row: `ids` ascending, then all timestamps, then one for the rest."""

    tokenizer: Tokenizer
    ids: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, pieces: Iterable[int], languages: Sequence[str]) -> TokenTable:
        """Rows for pieces, the languages, and the special tokens of a transcript."""
        t = tokenizer
        special = (t.eot, t.sot, t.sot_prev, t.transcribe, t.no_speech, t.no_timestamps)
        codes = map(t.language_token, languages)
        return cls(t, tuple(sorted({*pieces, *special, *codes})))

    @property
    def n_rows(self) -> int:
        return len(self.ids) + N_TIMESTAMPS + 1

    @property
    def n_unused(self) -> int:
        """Ids that share the last row."""
        return self.tokenizer.n_vocab - len(self.ids) - N_TIMESTAMPS

    @property
    def timestamp_rows(self) -> range:
        return range(len(self.ids), len(self.ids) + N_TIMESTAMPS)

    def rows_of(self, tokens: Sequence[int]) -> list[int]:
        """Rows of Whisper's ids; IGNORED stays, ids without a row get the last one."""
        places = {token: row for row, token in enumerate(self.ids)}
        first = self.tokenizer.timestamp_begin
        return [
            token
            if token == IGNORED
            else token - first + len(self.ids)
            if token >= first
            else places.get(token, self.n_rows - 1)
            for token in tokens
        ]

    def language_row(self, language: str) -> int:
        return self.rows_of([self.tokenizer.language_token(language)])[0]


class WholeSequences:
    """`DecoderAttention` of whole sequences (B, n_tokens), each over its own window, for training.

    keys_values: per layer, (B, H, n_frames, d_head) twice. bias, capture: as in `NanoModel.decode`.
    """

    def __init__(
        self, keys_values: Sequence[KeysValues], n_tokens: int, bias: Tensor | None, capture: AlignmentHeads
    ) -> None:
        self._keys_values, self._bias, self._capture = keys_values, bias, capture
        self._weights: dict[tuple[int, int], Tensor] = {}
        self.positions = torch.arange(n_tokens, device=keys_values[0][0].device)

    def over_text(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        attended: Tensor = attention(attention.queries(x), *attention.keys_values(x), causal=True)
        return attended

    def over_audio(self, layer: int, attention: MultiHeadAttention, x: Tensor) -> Tensor:
        queries, (keys, values) = attention.queries(x), self._keys_values[layer]
        heads = [head for at, head in self._capture if at == layer]
        if heads:
            weights = head_weights(queries, keys, heads, self._bias)
            self._weights.update(zip([(layer, head) for head in heads], weights.unbind(2), strict=True))
        mask = None if self._bias is None else self._bias.to(x.dtype)
        attended: Tensor = attention(queries, keys, values, mask=mask)
        return attended

    @property
    def captured(self) -> Tensor | None:
        """(B, n_captured, n_tokens, n_frames) in the order of `capture`, or None."""
        weights = [self._weights[head] for head in self._capture]
        return torch.stack(weights, dim=1) if weights else None


class NanoModel(nn.Module):
    """Whisper's encoder and decoder with a CTC head on the encoder, and the small token table."""

    def __init__(self, dims: ModelDims, table: TokenTable, symbols: Sequence[str]) -> None:
        super().__init__()
        self.dims, self.table, self.symbols = dims, table, tuple(symbols)
        self.whisper = Whisper(replace(dims, n_vocab=len(table.ids)))
        self.ctc_head = nn.Linear(dims.n_audio_state, len(symbols))
        self.timestamp_map = nn.Linear(dims.n_text_state, dims.n_text_state)
        self.unused_row = nn.Parameter(0.02 * torch.randn(1, dims.n_text_state))
        clock = torch.from_numpy(sinusoids(N_TIMESTAMPS, dims.n_text_state))
        self.register_buffer("clock", clock, persistent=False)
        self._initialise()

    def encode(self, mel: Tensor) -> Tensor:
        """(B, n_mels, T) -> (B, T / 2, d)."""
        states: Tensor = self.whisper.encoder(mel)
        return states

    def emissions(self, states: Tensor) -> Tensor:
        """CTC log-probabilities (B, n_frames, V)."""
        log_probs: Tensor = self.ctc_head(states).float().log_softmax(dim=-1)
        return log_probs

    def rows(self) -> Tensor:
        """The token table (n_rows, d)."""
        clock = self.clock
        assert isinstance(clock, Tensor)
        pieces = self.whisper.decoder.token_embedding.weight
        assert isinstance(pieces, Tensor)
        return torch.cat([pieces, self.timestamp_map(clock), self.unused_row])

    def decode(
        self, tokens: Tensor, states: Tensor, *, bias: Tensor | None = None, capture: AlignmentHeads = ()
    ) -> tuple[Tensor, Tensor | None]:
        """Read whole sequences: hidden states (B, L, d), and attention (B, n_captured, L, n_frames).

        tokens: (B, L) rows. bias: (B, 1, L, n_frames) added to the cross-attention, or None.
        """
        decoder = self.whisper.decoder
        attention = WholeSequences(decoder.cross_keys_values(states), tokens.shape[1], bias, capture)
        weights = {"token_embedding.weight": self.rows()}
        hidden = functional_call(decoder, weights, (tokens, attention))
        return hidden, attention.captured

    def token_log_probs(self, hidden: Tensor) -> Tensor:
        """(n, d) -> (n, n_rows) over Whisper's whole vocabulary: the last row counts for all unused ids."""
        logits = F.linear(hidden, self.rows()).float()
        shared = logits[:, -1:] + math.log(self.table.n_unused)
        return torch.cat([logits[:, :-1], shared], dim=1).log_softmax(dim=-1)

    @torch.no_grad()
    def fit_convolutions(self, mel: Tensor) -> None:
        """Scale the convolutions so that the audio is as loud as the positions added to it.

        With the default initialisation it is 15 dB quieter, and nothing is learnt for a long time.
        mel: (B, n_mels, T), a first batch.
        """
        encoder = self.whisper.encoder
        raw = F.conv1d(mel, encoder.conv1.weight, padding=1)
        spread = raw.std(dim=(0, 2)) + 1e-4
        encoder.conv1.weight /= spread[:, None, None]
        encoder.conv1.bias = nn.Parameter(-raw.mean(dim=(0, 2)) / spread)
        heard = F.gelu(encoder.conv1(mel))
        raw = F.conv1d(heard, encoder.conv2.weight, stride=2, padding=1)
        spread = raw.std(dim=(0, 2)) / 1.6 + 1e-4
        encoder.conv2.weight /= spread[:, None, None]
        encoder.conv2.bias = nn.Parameter(-raw.mean(dim=(0, 2)) / spread + 0.3)

    @torch.no_grad()
    def to_checkpoint(self, name: str, languages: Sequence[str], heads: AlignmentHeads) -> Checkpoint:
        """The model in Whisper's own shape, every id of the vocabulary with a row."""
        tensors = {key: array_of(value) for key, value in self.whisper.state_dict().items()}
        rows = self.rows().detach()
        embedding = rows[-1].repeat(self.dims.n_vocab, 1)
        embedding[list(self.table.ids)] = rows[: len(self.table.ids)]
        first = self.table.tokenizer.timestamp_begin
        embedding[first : first + N_TIMESTAMPS] = rows[len(self.table.ids) : -1]
        tensors[EMBEDDING] = embedding.numpy()
        head = self.ctc_head
        stamps = range(first, first + N_TIMESTAMPS)
        return Checkpoint(
            name=name,
            dims=self.dims,
            tensors=tensors,
            alignment_heads=heads,
            ctc_head=CtcWeights(array_of(head.weight), array_of(head.bias), self.symbols, 0),
            trained_tokens=(*self.table.ids, *stamps),
            languages=tuple(languages),
        )

    @torch.no_grad()
    def _initialise(self) -> None:
        """Small embeddings, positions near the sinusoids, residual branches scaled by the depth."""
        encoder, decoder = self.whisper.encoder, self.whisper.decoder
        n_state = self.dims.n_text_state
        encoder.positional_embedding.copy_(
            torch.from_numpy(sinusoids(self.dims.n_audio_ctx, self.dims.n_audio_state))
        )
        places = 0.03 * torch.from_numpy(sinusoids(self.dims.n_text_ctx, n_state))
        decoder.positional_embedding.copy_(places + 0.02 * torch.randn_like(places))
        pieces = decoder.token_embedding.weight
        assert isinstance(pieces, Tensor)
        nn.init.normal_(pieces, std=0.05)
        self.timestamp_map.weight.copy_(0.05 * torch.eye(n_state))
        for blocks in (encoder.blocks, decoder.blocks):
            for name, module in blocks.named_modules():
                if isinstance(module, nn.Linear):
                    ends_branch = name.endswith(("out", "mlp.2"))
                    scale = 0.7 / math.sqrt(2 * len(blocks)) if ends_branch else 0.7
                    nn.init.normal_(module.weight, std=scale * module.in_features**-0.5)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)


def known_text(checkpoint: Checkpoint) -> tuple[Pieces, CtcSymbols]:
    """The pieces that a checkpoint writes with, and the symbols of its CTC head.

    Raises: CheckpointError for a checkpoint that has no CTC head or does not say which tokens it knows.
    """
    if checkpoint.trained_tokens is None or checkpoint.ctc_head is None:
        raise CheckpointError(f"{checkpoint.name}: expected a CTC head and a list of trained tokens")
    tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
    kept = frozenset(token for token in checkpoint.trained_tokens if token < tokenizer.eot)
    return Pieces(tokenizer, kept), CtcSymbols(checkpoint.ctc_head.labels)


def array_of(tensor: Tensor) -> Array:
    copied: Array = tensor.detach().numpy().copy()
    return copied


@torch.no_grad()
def start_from(checkpoint: Checkpoint, table: TokenTable) -> NanoModel:
    """A model with the weights of a checkpoint that `known_text` accepts.

    Rows that it never trained begin near the mean of the others.
    """
    assert checkpoint.trained_tokens is not None
    assert checkpoint.ctc_head is not None
    head = checkpoint.ctc_head
    model = NanoModel(checkpoint.dims, table, head.labels)
    tensors = {name: torch.from_numpy(floats(array)) for name, array in checkpoint.tensors.items()}
    embedding = tensors.pop(EMBEDDING)
    tensors[EMBEDDING] = _rows(embedding, table, set(checkpoint.trained_tokens))
    model.whisper.load_state_dict(tensors)
    model.ctc_head.load_state_dict(
        {"weight": torch.from_numpy(floats(head.weight)), "bias": torch.from_numpy(floats(head.bias))}
    )
    unused = next(i for i in range(len(embedding)) if i not in set(checkpoint.trained_tokens))
    model.unused_row.copy_(embedding[unused])
    first = table.tokenizer.timestamp_begin
    _fit_timestamps(model, embedding[first : first + N_TIMESTAMPS])
    return model


def _rows(embedding: Tensor, table: TokenTable, trained: set[int]) -> Tensor:
    known = torch.tensor([token in trained for token in table.ids])
    rows = embedding[list(table.ids)].clone()
    rows[~known] = rows[known].mean(dim=0) + 0.03 * torch.randn(int((~known).sum()), rows.shape[1])
    return rows


def _fit_timestamps(model: NanoModel, rows: Tensor) -> None:
    """The linear map of the clock that gives the timestamps' rows, by least squares."""
    clock = model.clock
    assert isinstance(clock, Tensor)
    wide = torch.cat([clock, torch.ones(len(clock), 1)], dim=1).double()
    ridge = 1e-6 * torch.eye(wide.shape[1], dtype=torch.float64)
    solution = torch.linalg.solve(wide.T @ wide + ridge, wide.T @ rows.double()).float()
    model.timestamp_map.weight.copy_(solution[:-1].T)
    model.timestamp_map.bias.copy_(solution[-1])
