"""Greedy CTC decoding: the likeliest label of every frame, without repeats and blanks."""

from __future__ import annotations

import torch
from torch import Tensor

from sottovoce.decoding.ctc.emissions import EmissionScaling, checked
from sottovoce.decoding.ctc.text import Labels
from sottovoce.types import Hypothesis, Word


@torch.no_grad()
def greedy_decode(
    labels: Labels,
    log_probs: Tensor,
    lengths: Tensor | None = None,
    *,
    frame_s: float = 0.02,
    scaling: EmissionScaling | None = None,
) -> list[Hypothesis]:
    """Decode log-probabilities (B, T, V) or (T, V), all utterances at once; one hypothesis each.

    lengths: (B,) frames of each utterance; None: all. frame_s: seconds per frame. scaling: None: emissions as
    they are. The score is that of the single path.

    Raises: InputError unless these are log-probabilities of these labels.
    """
    scaling = scaling or EmissionScaling()
    emissions, lengths = checked(log_probs, lengths, len(labels), is_normalised=scaling.is_normalised)
    log_probs = scaling.probabilities(emissions)
    if not log_probs.shape[1]:
        return [Hypothesis(text="", tokens=(), score=0.0) for _ in range(len(log_probs))]
    best, path = scaling.scores(emissions).max(dim=2)  # (B, T)
    acoustic = log_probs.gather(2, path[:, :, None])[:, :, 0]
    valid = torch.arange(path.shape[1], device=path.device) < lengths[:, None]
    path = path.masked_fill(~valid, labels.blank)
    changes = torch.ones_like(valid)
    changes[:, 1:] = path[:, 1:] != path[:, :-1]
    starts = changes & (path != labels.blank)
    scores = best.masked_fill(~valid, 0.0).sum(dim=1).tolist()
    rows = zip(path.cpu(), starts.cpu(), changes.cpu(), acoustic.cpu(), scores, strict=True)
    return [_hypothesis(labels, *row, frame_s=frame_s) for row in rows]


def _hypothesis(
    labels: Labels,
    path: Tensor,
    starts: Tensor,
    changes: Tensor,
    acoustic: Tensor,
    score: float,
    *,
    frame_s: float,
) -> Hypothesis:
    frames = starts.nonzero()[:, 0]
    turns = changes.nonzero()[:, 0].tolist()
    tokens = path[frames].tolist()
    ends = dict(zip(turns, (*turns[1:], len(path)), strict=True))
    first = frames.tolist()
    words = [
        Word(
            word=word.text,
            start=first[word.first] * frame_s,
            end=ends[first[word.end - 1]] * frame_s,
            probability=float(acoustic[frames[word.first : word.end]].mean().exp()),
        )
        for word in labels.words(tokens)
    ]
    return Hypothesis(
        text=labels.spell(tokens),
        tokens=tuple(tokens),
        score=score,
        acoustic_score=score,
        words=tuple(words),
        token_frames=tuple(first),
    )
