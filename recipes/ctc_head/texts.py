"""Sentences to speak for the head: those whose letters say how they sound, in words that are whole."""

from __future__ import annotations

import gzip
import random
from collections.abc import Mapping
from pathlib import Path

from recipes.ctc_head.human import is_spelt
from recipes.nano.texts import Sentence, corpus, plain

LANGUAGE_FILES = {"es": "es_50k_top20k.txt.gz"}
"""Lists of frequent words for languages whose sentences have lost letters: others are not spoken."""
MAX_LETTERS = 110


def sentences_to_speak(data: Path | None, counts: Mapping[str, int], rng: random.Random) -> list[Sentence]:
    """So many sentences of each language, half of them as they are found and half of words drawn at random.

    data: the folder with `text/sentences` and `text/freqwords`; None: the few that are built in.
    """
    chosen: list[Sentence] = []
    for language, n in counts.items():
        found = corpus(data and data / "text" / "sentences", language, n, rng)
        known = _known(data, language)
        usable = [
            one
            for one in found
            if not one.held_out
            and is_spelt(language, one.text)
            and len(one.text) <= MAX_LETTERS
            and (known is None or known >= set(plain(one.text).split()))
        ]
        for kind in ("sentence", "words"):
            of_kind = [one for one in usable if one.kind == kind]
            chosen += rng.sample(of_kind, min(n // 2, len(of_kind)))
    return chosen


def _known(data: Path | None, language: str) -> frozenset[str] | None:
    if data is None or language not in LANGUAGE_FILES:
        return None
    path = data / "text" / "freqwords" / LANGUAGE_FILES[language]
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return frozenset(line.split()[0] for line in lines if line.strip())
