"""Why two programs with the same weights wrote different tokens: how near the choice was to a tie.

Both read the same tokens up to the first difference. Two networks that add the same numbers in another order
differ by some 1e-5 in their logits; where the two readings are no further apart than that noise, either of
them is right. For beam search, whose choice is between whole texts, the texts' mean log-probabilities count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from sottovoce.backends.base import Backend
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput

if TYPE_CHECKING:
    import whisper

LARGEST_NOISE = 1e-3
"""Above this the two networks are not the same, whatever the margin."""


@dataclass(frozen=True, slots=True)
class Sides:
    """The two networks, and the window as each encoded it: states (1, n_frames, d)."""

    backend: Backend
    reference: whisper.model.Whisper
    encoded: EncoderOutput
    states: Tensor

    def logits(self, tokens: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Logits (n_tokens, n_vocab) after every token, by each network."""
        row = torch.tensor([tokens])
        with torch.inference_mode():
            state = self.backend.start(self.encoded)
            ours = self.backend.step(row, state, positions=None).logits[0].float()
            theirs = self.reference.logits(row, self.states)[0].float()
        return ours, theirs


class Decoded(NamedTuple):
    """The tokens that each program wrote; greedy: token by token, not whole texts."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    greedy: bool


def explain(sides: Sides, tokenizer: Tokenizer, decoded: Decoded) -> str:
    """A tie with its margin, or "unexplained" with it."""
    start = tuple(tokenizer.sot_sequence)
    if decoded.greedy:
        margins, noise = _choice_margins(sides, tokenizer, start, decoded)
    else:
        margins, noise = _text_margins(sides, tokenizer, start, decoded)
    is_tie = noise < LARGEST_NOISE and min(map(abs, margins)) <= 2 * noise
    shown = f"ours is ahead by {margins[0]:.1e} to us and {margins[1]:.1e} to them, noise {noise:.1e}"
    return f"{'tie' if is_tie else 'unexplained'}: {shown}"


def _choice_margins(
    sides: Sides, tokenizer: Tokenizer, start: tuple[int, ...], decoded: Decoded
) -> tuple[tuple[float, float], float]:
    """How much more our token weighs than theirs where they part, and the networks' difference there.

    Between text and timestamps Whisper compares the sum of all timestamps with the likeliest text token.
    """
    ours, theirs = ((*side, tokenizer.eot) for side in decoded[:2])
    parting = next(at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    pair = [side[-1] for side in sides.logits((*start, *ours[:parting]))]
    logprobs = [side.log_softmax(dim=0) for side in pair]
    tokens = ours[parting], theirs[parting]
    mixed = tokenizer.is_timestamp(tokens[0]) != tokenizer.is_timestamp(tokens[1])

    def weight(side: Tensor, token: int) -> float:
        if mixed and tokenizer.is_timestamp(token):
            return float(side[tokenizer.timestamp_begin :].logsumexp(dim=0))
        return float(side[token])

    ahead = [weight(side, tokens[0]) - weight(side, tokens[1]) for side in logprobs]
    noise = max(abs(weight(logprobs[0], token) - weight(logprobs[1], token)) for token in tokens)
    return (ahead[0], ahead[1]), noise


def _text_margins(
    sides: Sides, tokenizer: Tokenizer, start: tuple[int, ...], decoded: Decoded
) -> tuple[tuple[float, float], float]:
    """How much more our text weighs than theirs, each by its mean log-probability, and the noise."""
    means: list[list[float]] = []
    for text in decoded[:2]:
        written = (*text, tokenizer.eot)
        chosen = torch.tensor(written)[:, None]
        means.append(
            [
                float(side[len(start) - 1 :].log_softmax(dim=1).gather(1, chosen).mean())
                for side in sides.logits((*start, *text))
            ]
        )
    ahead = means[0][0] - means[1][0], means[0][1] - means[1][1]
    return ahead, max(abs(one[0] - one[1]) for one in means)
