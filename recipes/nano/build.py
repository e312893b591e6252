"""Puts the parts together: features of manifests, pieces and symbols, model, batches.

Everything that training, evaluation and tests need to agree on is made here once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from recipes.nano.augment import Augmenter, NoiseBank, Strengths
from recipes.nano.batches import BatchMaker, Curriculum, language_indices
from recipes.nano.clips import FeatureStore, read_manifest, write_store
from recipes.nano.model import NanoModel, TokenTable
from recipes.nano.pieces import CtcSymbols, Pieces, frequent_words
from recipes.nano.samples import SampleMaker, TaskMix, utterances
from recipes.nano.speech import write_corpus
from recipes.nano.start import known_text, start_from
from recipes.nano.texts import corpus, spelled
from sottovoce.errors import ManifestError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.dims import ModelDims
from sottovoce.text.tokenizer import Tokenizer

N_BABBLE_CLIPS = 60


@dataclass(frozen=True, slots=True)
class DataPlan:
    """What to speak: languages, random word sequences for each, and how many words they draw from.

    texts: folder of `<language>.txt`, or None for the built-in sentences.
    """

    languages: tuple[str, ...]
    n_sequences: int = 2000
    n_words: int | None = 225
    texts: Path | None = None
    seed: int = 11


@dataclass(frozen=True, slots=True)
class Setup:
    """A model with the batches it is trained on."""

    model: NanoModel
    batches: BatchMaker
    pieces: Pieces
    languages: tuple[str, ...]


def make_data(plan: DataPlan, manifests: Sequence[Path], folder: Path) -> FeatureStore:
    """Speak the corpus into `folder/speech`, and compute features of it and of other manifests."""
    rng = random.Random(plan.seed)
    sentences = [
        sentence
        for language in plan.languages
        for sentence in corpus(plan.texts, language, plan.n_sequences, rng, n_words=plan.n_words)
    ]
    spoken = write_corpus(sentences, folder / "speech", rng)
    clips = [clip for manifest in (spoken, *manifests) for clip in read_manifest(manifest)]
    return write_store((clip for clip in clips if clip.language in plan.languages), folder)


def training_indices(store: FeatureStore) -> list[int]:
    """Clips that may be trained on: those not marked as test of any kind."""
    return [i for i, clip in enumerate(store.clips) if not clip.split.startswith(("test", "dev"))]


def set_up(
    store: FeatureStore,
    dims: ModelDims,
    *,
    curriculum: Curriculum,
    mix: TaskMix,
    strengths: Strengths,
    min_word_count: int = 60,
    seed: int = 5,
    start: Checkpoint | None = None,
) -> Setup:
    """Choose pieces and symbols by the training texts, and make model and batches.

    start: go on from these weights, with their pieces and symbols.

    Raises: ManifestError when no training clip has a text.
    """
    rng = random.Random(seed)
    torch.manual_seed(seed)
    chosen = training_indices(store)
    texts = [(c.language, c.text) for c in (store.clips[i] for i in chosen) if c.text is not None]
    if not texts:
        raise ManifestError(f"none of {len(store)} clips is for training and has a text")
    languages = tuple(dict.fromkeys(store.clips[index].language for index in chosen))
    tokenizer = Tokenizer.for_model(dims.n_vocab)
    if start is None:
        pieces = frequent_words(tokenizer, texts, min_word_count)
        symbols = CtcSymbols.of(spelled(*text) for text in texts)
    else:
        pieces, symbols = known_text(start)
        languages = start.languages or languages
    table = TokenTable.of(tokenizer, _tokens(pieces, texts) | pieces.kept, languages)
    model = NanoModel(dims, table, symbols.symbols) if start is None else start_from(start, table)
    augmenter = Augmenter(strengths, _noises(store, chosen, rng), rng)
    space = symbols.symbols.index(" ") if " " in symbols.symbols else 0
    maker = SampleMaker(store, tokenizer, augmenter, mix, rng, separator=space)
    clips = utterances(store, chosen, pieces, symbols)
    of_language = language_indices(store, chosen, tokenizer)
    return Setup(model, BatchMaker(clips, of_language, maker, table, curriculum, rng), pieces, languages)


def _tokens(pieces: Pieces, texts: Iterable[tuple[str, str]]) -> set[int]:
    return {token for language, text in texts for token in pieces.encode(text, language)}


def _noises(store: FeatureStore, chosen: Sequence[int], rng: random.Random) -> NoiseBank:
    some = rng.sample(chosen, min(N_BABBLE_CLIPS, len(chosen)))
    return NoiseBank([store.log_mel(index).astype(np.float32) for index in some], rng)
