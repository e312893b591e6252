"""Labels, words and made emissions for `benchmarks/ctc/speed.py`.

Emissions look like those of a trained CTC model: a spike of one or two frames for each piece of a text, and
blanks between; a few other labels share what the best leaves, and all the rest is far below. How much they
share, in nats below the best:

- clear: exponential with mean 6, three others; 98 % of frames have a label above 0.95, as the LibriSpeech
  emissions of pyctcdecode's tests have.
- doubtful: mean 2, five others; about half of the frames are that sure, and four to five labels lie above -5,
  as with nano's head on speech it has not heard.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from benchmarks.ctc.texts import write_ngrams
from sottovoce.lm.ngram import NgramModel

BLANK = 0
START = "▁"
Doubt = Literal["clear", "doubtful"]
_SHARING: dict[Doubt, tuple[int, float]] = {"clear": (3, 6.0), "doubtful": (5, 2.0)}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """labels: blank first; letters and a space, or word pieces with the mark of a word's beginning.

    words: those that can be spelled, with their label ids.
    """

    labels: list[str]
    words: dict[str, list[int]]

    @property
    def has_pieces(self) -> bool:
        return " " not in self.labels


def words_of_arpa(path: Path) -> list[str]:
    """The unigrams of an ARPA file in lower-case letters, likeliest first."""
    result: list[tuple[float, str]] = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("\\2-grams:"):
                break
            fields = line.split()
            if len(fields) >= 2 and fields[1].isascii() and fields[1].isalpha() and fields[1].islower():
                result.append((-float(fields[0]), fields[1]))
    return [word for _, word in sorted(result)]


def vocabulary(n: int, words: list[str]) -> Vocabulary:
    """n labels: letters and a space where that suffices, else word pieces: the beginnings and endings of the
    likeliest words, and letters."""
    letters = [chr(ord("a") + i) for i in range(26)]
    if n <= 64:
        labels = ["", " ", *letters, "'", *"0123456789"][:n]
        return Vocabulary(labels, {word: [labels.index(c) for c in word] for word in words})
    pieces = dict.fromkeys([START, *(START + c for c in letters), *letters])
    for length in (2, 3, 4, 5, 6, 7, 8):
        for word in words[: 4 * n]:
            pieces.update(dict.fromkeys((START + word[:length], word[-length:])))
            if len(pieces) >= (n - 1) * length / 8:
                break
    for word in words:
        if len(pieces) >= n - 1:
            break
        pieces[START + word] = None
    labels = ["", *list(pieces)[: n - 1]]
    ids = {label: i for i, label in enumerate(labels)}
    return Vocabulary(labels, {word: _cut(START + word, ids) for word in words})


@dataclass(frozen=True, slots=True)
class TokenModels:
    """One trigram model over labels, as ours, and as the file that NeMo reads."""

    ours: NgramModel
    nemo: Path


def token_models(known: Vocabulary, folder: Path, n_words: int = 40_000) -> TokenModels:
    """Count labels in made texts. NeMo calls label i, the blank last, chr(i + 100)."""
    generator = torch.Generator().manual_seed(len(known.labels))
    words = list(known.words.values())
    chosen = torch.multinomial(_zipf(len(words)), n_words, replacement=True, generator=generator).tolist()
    space = [] if known.has_pieces else [known.labels.index(" ")]
    rows = [
        [token for index in chosen[i : i + 8] for token in [*words[index], *space]]
        for i in range(0, n_words, 8)
    ]
    files = {}
    for name, names in (
        ("ours", [label if label != " " else "|" for label in known.labels]),
        ("nemo", [chr(i + 99) for i in range(len(known.labels))]),
    ):
        files[name] = folder / f"{name}-{len(known.labels)}.arpa"
        texts = [" ".join(names[token] for token in row) for row in rows]
        write_ngrams(texts, files[name], frequent=dict.fromkeys(names[1:], 1))
    return TokenModels(NgramModel.load(files["ours"]), files["nemo"])


def _zipf(n: int) -> Tensor:
    return 1 / torch.arange(1, n + 1)


def _cut(text: str, ids: dict[str, int]) -> list[int]:
    """The longest pieces that fit, from left to right."""
    result: list[int] = []
    while text:
        length = next(length for length in range(min(len(text), 12), 0, -1) if text[:length] in ids)
        result.append(ids[text[:length]])
        text = text[length:]
    return result


def made_emissions(known: Vocabulary, n_batch: int, n_frames: int, doubt: Doubt) -> Tensor:
    """Log-probabilities (B, T, V) of random words, likelier ones more often."""
    generator = torch.Generator().manual_seed(n_batch * 1000 + len(known.labels))
    words = list(known.words.values())
    chances = _zipf(len(words))
    n_others, mean = _SHARING[doubt]
    n_labels = len(known.labels)
    logits = -18 + 2.5 * torch.randn(n_batch, n_frames, n_labels, generator=generator)
    for row in range(n_batch):
        said = _frames(
            known, words, torch.multinomial(chances, n_frames, generator=generator), n_frames, generator
        )
        others = torch.randint(0, n_labels, (n_frames, n_others), generator=generator)
        # The neighbours of a spike are the likeliest to share it.
        others[1:, 0], others[:-1, 1] = said[:-1], said[1:]
        gaps = -mean * torch.empty(n_frames, n_others).exponential_(1.0, generator=generator)
        logits[row].scatter_reduce_(1, others, gaps, "amax")
        logits[row, torch.arange(n_frames), said] = 0.0
    return logits.log_softmax(dim=2)


def _frames(
    known: Vocabulary, words: list[list[int]], order: Tensor, n_frames: int, generator: torch.Generator
) -> Tensor:
    """The best label (T,) of every frame: spikes of one or two frames and one to three blanks between.

    Only whole words; blanks fill the end.
    """
    result: list[int] = []
    for index in order.tolist():
        word: list[int] = []
        for token in words[index] if known.has_pieces else [*words[index], known.labels.index(" ")]:
            n_said, n_blank = torch.randint(0, 3, (2,), generator=generator).tolist()
            word += [token] * (1 + int(n_said == 2)) + [BLANK] * (1 + n_blank)
        if len(result) + len(word) > n_frames:
            break
        result += word
    return torch.tensor(result + [BLANK] * (n_frames - len(result)))
