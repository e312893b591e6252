"""How many tokens of a greedy reading a draft would have right, and what verifying it in one pass would save.

    python -m benchmarks files drafts ../shared --part dev --clips 24 --costs 5.1,7.0

Nothing is drafted in the decoder: the texts are read as ever, and then gone through as a decoder would that
reads its token and a draft behind it in one pass, and keeps what its own choice agrees with. "letters": what
the CTC head spells behind the place that fits the text so far, as tokens. "n-grams": what followed the last
time that the last two tokens came in this window. --costs: milliseconds of a pass of one token, and of five
(`files kernels`); those of other lengths lie on the line through both. The time of the CTC head is measured
and added. Prints a table and one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import clips, spread
from benchmarks.harness.tables import show_heads, show_json, show_row
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.decoding.decode import decode
from sottovoce.options.decoding import DecodingOptions
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE

LENGTHS = (2, 4, 8)
Draft = Callable[[Sequence[int], int], list[int]]
"""The next tokens, so many at most, behind those so far."""


def fitting_place(said: str, letters: str) -> int:
    """How much of `letters` the text so far covers: where its edit distance to a beginning is least."""
    row = list(range(len(letters) + 1))
    for n, letter in enumerate(said, 1):
        before, row[0] = row[0], n
        for m, other in enumerate(letters, 1):
            before, row[m] = row[m], min(before + (letter != other), row[m] + 1, row[m - 1] + 1)
    return min(range(len(row)), key=row.__getitem__)


def letters_draft(tokenizer: Tokenizer, spelled: str) -> Draft:
    """Draft what the CTC head spells; a capital after the end of a sentence."""

    def draft(so_far: Sequence[int], n: int) -> list[int]:
        if not so_far:
            return [tokenizer.timestamp_begin]
        text = tokenizer.decode([token for token in so_far if token < tokenizer.eot])
        kept = "".join(one for one in text.lower() if one.isalnum() or one == " ").strip()
        rest = spelled[fitting_place(kept, spelled) :]
        words = rest.split()[: n + 1]
        if not words:
            return []
        if not text or text.rstrip()[-1:] in ".?!":
            words[0] = words[0].capitalize()
        glue = "" if kept and not rest.startswith(" ") else " "
        return tokenizer.encode(glue + " ".join(words))[:n]

    return draft


def ngram_draft() -> Draft:
    """Draft what followed the last two tokens when they came before."""

    def draft(so_far: Sequence[int], n: int) -> list[int]:
        for at in range(len(so_far) - 3, -1, -1):
            if len(so_far) > 2 and tuple(so_far[at : at + 2]) == tuple(so_far[-2:]):
                return list(so_far[at + 2 : at + 2 + n])
        return []

    return draft


def passes(tokens: Sequence[int], draft: Draft, n: int) -> list[int]:
    """Tokens of each pass that reads a text and its end: one, and the draft behind it."""
    lengths, at = [], 0
    while at < len(tokens):
        guess = draft(tokens[:at], n)
        right = 0
        while right < len(guess) and at + right < len(tokens) and guess[right] == tokens[at + right]:
            right += 1
        lengths.append(1 + len(guess))
        at += right + 1
    return lengths


class Readings:
    """Greedy texts of clips, and what the CTC head spells."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.tokens: list[tuple[int, ...]] = []
        self.spelled: list[str] = []
        self.head_s = 0.0

    def add(self, path: Path, language: str) -> None:
        model, head = self._model, self._model.ctc_head
        assert head is not None
        mel = log_mel(load_audio(path)[: 30 * SAMPLE_RATE], model.backend.dims.n_mels)
        encoded = model.backend.encode(window_features([mel]))
        (found,) = decode(model.backend, model.tokenizer, encoded, [DecodingOptions(language=language)])
        began = time.thread_time()
        best = head.emissions_of(encoded).log_probs[0].argmax(-1)[: mel.shape[1] // 2]
        labels = torch.unique_consecutive(best).tolist()
        self.spelled.append("".join(head.labels[one] for one in labels if one != head.blank))
        self.head_s += time.thread_time() - began
        self.tokens.append((*found.tokens, model.tokenizer.eot))


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser, "dev")
    parser.add_argument("--clips", type=int, default=24)
    parser.add_argument("--languages", default="en,de")
    parser.add_argument("--model", default="base")
    parser.add_argument(
        "--costs", type=lambda text: [float(one) for one in text.split(",")], default=[5.1, 7.0]
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    readings = Readings(load_model(given.model))
    languages = given.languages.split(",")
    for language in languages:
        chosen = clips(given.shared / "data", given.part, language=language, with_text=True)
        for clip in spread(chosen, given.clips // len(languages)):
            readings.add(clip.file, language)
    tokenizer, one_ms = readings._model.tokenizer, given.costs[0]
    more_ms = (given.costs[1] - one_ms) / 4
    n_tokens = sum(map(len, readings.tokens))
    show_heads("draft", "at most", "tokens a pass", "of the time of passes", "with the head")
    figures = {}
    for name in ("letters", "n-grams"):
        for n in LENGTHS:
            lengths: list[int] = []
            for tokens, spelled in zip(readings.tokens, readings.spelled, strict=True):
                draft = letters_draft(tokenizer, spelled) if name == "letters" else ngram_draft()
                lengths += passes(tokens, draft, n)
            took = sum(one_ms + more_ms * (length - 1) for length in lengths) / (n_tokens * one_ms)
            head = readings.head_s / (n_tokens * one_ms / 1e3) if name == "letters" else 0.0
            show_row(name, n, f"{n_tokens / len(lengths):.2f}", f"{took:.0%}", f"{took + head:.0%}")
            figures[f"{name} {n}"] = [n_tokens / len(lengths), took, took + head]
    show_json("files drafts", {"tokens": n_tokens, "head_s": readings.head_s, "drafts": figures})


if __name__ == "__main__":
    main()
