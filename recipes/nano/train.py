"""A training of nano: the parts put together, the loop, and the checkpoint at its end.

Learning rate and curriculum follow the share of the time given that is used up, so a run ends when it
should on any machine. The decoder needs more steps than the encoder and costs a quarter of it: states of
recent batches are kept and decoded again.
"""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipes.nano.augment import Augmenter, NoiseBank, Strengths
from recipes.nano.batches import Batch, BatchMaker, SampleMaker, utterances
from recipes.nano.clips import FeatureStore
from recipes.nano.losses import Heard, decoder_loss, guided_heads, total_loss
from recipes.nano.model import NANO_DIMS, NanoModel, TokenTable, known_text, start_from
from recipes.nano.pieces import CtcSymbols, frequent_words
from recipes.nano.texts import spelled
from sottovoce.errors import CheckpointError, ManifestError
from sottovoce.models.checkpoint.base import Array, Checkpoint, floats
from sottovoce.models.checkpoint.compact import read_compact, save_compact
from sottovoce.models.devices import cpu_has_bfloat16
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Floats

logger = logging.getLogger(__name__)

N_BABBLE_CLIPS = 60
LOG_EVERY = 50
MIN_WORD_COUNT = 60
"""Rarer words are written by letters."""
SEED = 5
ENCODER_SHARE = 0.8
"""Of the learning rate, which is the decoder's."""
CONSTANT_UNTIL, WARM_UP_STEPS = 0.25, 150
"""Progress at which the cosine begins, and steps until the full rate."""
ORACLE, ORACLE_UNTIL = 0.4, 0.4
REPLAYS_UNTIL = 0.8
"""Progress until which every step is followed by one of the decoder on kept states."""
AVERAGE = 0.9985
"""Decay of the moving average."""


def rate_at(progress: float, step: int) -> float:
    """Share of the learning rate: warm-up by steps, constant, then a half cosine to 1.5 % and on to 0."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    past = min(1.0, max(0.0, (progress - CONSTANT_UNTIL) / (1 - CONSTANT_UNTIL)))
    return warm * (0.4925 * (1 + math.cos(math.pi * past)) + 0.015 * (1 - past))


def loss_weights(progress: float) -> tuple[float, float]:
    """Weight of the guidance, which loosens towards the end, and share of told rows, which fades out."""
    return 0.6 if progress < 0.6 else 0.3, max(0.0, ORACLE * (1 - progress / ORACLE_UNTIL))


def set_up(
    store: FeatureStore, shares: Mapping[str, float], rng: random.Random, *, start: Checkpoint | None = None
) -> tuple[NanoModel, BatchMaker, tuple[str, ...]]:
    """Choose pieces and symbols by the training texts, and make model and batches; returns the languages too.

    start: go on from these weights, with their pieces and symbols.

    Raises: ManifestError when no training clip has a text.
    """
    chosen = [i for i, clip in enumerate(store.clips) if not clip.split.startswith(("test", "dev"))]
    texts = [(c.language, c.text) for c in (store.clips[i] for i in chosen) if c.text is not None]
    if not texts:
        raise ManifestError(f"none of {len(store)} clips is for training and has a text")
    languages = tuple(dict.fromkeys(store.clips[index].language for index in chosen))
    tokenizer = Tokenizer.for_model(NANO_DIMS.n_vocab)
    if start is None:
        pieces = frequent_words(tokenizer, texts, MIN_WORD_COUNT)
        symbols = CtcSymbols.of(spelled(*text) for text in texts)
    else:
        pieces, symbols = known_text(start)
        languages = start.languages or languages
    tokens = {token for language, text in texts for token in pieces.encode(text, language)}
    table = TokenTable.of(tokenizer, tokens | pieces.kept, languages)
    model = NanoModel(NANO_DIMS, table, symbols.symbols) if start is None else start_from(start, table)
    babble = rng.sample(chosen, min(N_BABBLE_CLIPS, len(chosen)))
    noises = NoiseBank([store.log_mel(index).astype(np.float32) for index in babble], rng)
    space = symbols.symbols.index(" ") if " " in symbols.symbols else 0
    augmenter = Augmenter(Strengths(), noises, rng)
    maker = SampleMaker(store, tokenizer, augmenter, rng, separator=space)
    clips = utterances(store, chosen, pieces, symbols)
    of_language = [index for index in chosen if store.clips[index].language in tokenizer.language_codes]
    batches = BatchMaker(clips, of_language, maker, table, shares, rng)
    if start is None:
        model.fit_convolutions(next(iter(batches)).mel)
    return model, batches, languages


class Trainer:
    def __init__(self, model: NanoModel, minutes: float, learning_rate: float, rng: random.Random) -> None:
        self.model, self._minutes, self._learning_rate, self._rng = model, minutes, learning_rate, rng
        # Products are in bfloat16 where the processor has it; weights and losses stay float32.
        has_bfloat16 = cpu_has_bfloat16()
        self._products = partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=has_bfloat16)
        self._optimizer = torch.optim.AdamW(self._groups(), lr=0.0, betas=(0.9, 0.98), eps=1e-8)
        self._halves = [
            [p for name, p in model.named_parameters() if _hears(name) == hears] for hears in (True, False)
        ]
        self._average = [parameter.detach().clone() for parameter in model.parameters()]
        self._kept: deque[Heard] = deque(maxlen=100)
        self.n_updates = 0
        self.seconds_heard = 0.0

    def run(self, batches: BatchMaker, log: Path) -> None:
        """Train until the time is up; a line of `log` every so many steps. Interrupted, it ends early."""
        start = time.monotonic()
        rows: list[dict[str, float]] = []
        with suppress(KeyboardInterrupt):
            for step, batch in enumerate(batches, 1):
                batches.progress = (time.monotonic() - start) / (60 * self._minutes)
                if batches.progress >= 1:
                    break
                rows.append(self._step(batch, batches.progress))
                if len(rows) == LOG_EVERY:
                    means = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
                    self._log(log, step, time.monotonic() - start, means)
                    rows = []

    def averaged(self) -> NanoModel:
        """The model with its moving average as weights: what is exported. Ends the training."""
        with torch.no_grad():
            for parameter, average in zip(self.model.parameters(), self._average, strict=True):
                parameter.copy_(average)
        return self.model.eval()

    def _step(self, batch: Batch, progress: float) -> dict[str, float]:
        weights = loss_weights(progress)
        with self._products():
            loss, parts, heard = total_loss(self.model, batch, *weights)
        self._update(loss, progress)
        self.seconds_heard += batch.seconds
        self._kept.append(heard.detached())
        if progress < REPLAYS_UNTIL:
            with self._products():
                replayed, _ = decoder_loss(self.model, self._rng.choice(self._kept), *weights)
            self._update(replayed, progress)
        return parts

    def _update(self, loss: Tensor, progress: float) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        norms = [torch.nn.utils.clip_grad_norm_(half, 1.0) for half in self._halves]
        if all(torch.isfinite(norm) for norm in norms):
            rate = self._learning_rate * rate_at(progress, self.n_updates)
            for group in self._optimizer.param_groups:
                group["lr"] = rate * group["share"]
            self._optimizer.step()
            self._move_average()
        else:
            logger.warning("update %d left out: the gradient is not finite", self.n_updates)
        self._optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def _move_average(self) -> None:
        self.n_updates += 1
        decay = min(AVERAGE, self.n_updates / (self.n_updates + 20))
        current = [parameter.detach() for parameter in self.model.parameters()]
        torch._foreach_lerp_(self._average, current, 1 - decay)

    def _groups(self) -> list[dict[str, object]]:
        """Encoder and decoder with their shares of the rate; only matrices decay."""
        groups: dict[tuple[bool, bool], list[Tensor]] = {}
        for name, parameter in self.model.named_parameters():
            groups.setdefault((_hears(name), parameter.dim() > 1), []).append(parameter)
        return [
            {
                "params": parameters,
                "share": ENCODER_SHARE if encoder else 1.0,
                "weight_decay": 0.02 if matrix else 0.0,
            }
            for (encoder, matrix), parameters in groups.items()
        ]

    def _log(self, log: Path, step: int, elapsed_s: float, means: dict[str, float]) -> None:
        rounded = {name: round(value, 4) for name, value in means.items()}
        hours = round(self.seconds_heard / 3600, 3)
        logger.info("step %d, %.1f h heard: %s", step, hours, rounded)
        row = {"step": step, "updates": self.n_updates, "seconds": round(elapsed_s, 1), "hours": hours}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({**row, **rounded}) + "\n")


def _hears(name: str) -> bool:
    """Whether a parameter belongs to the encoder's half. The halves are clipped each by itself."""
    return name.startswith(("whisper.encoder", "ctc_head"))


def train(
    folder: Path,
    output: Path,
    *,
    minutes: float,
    learning_rate: float,
    shares: Mapping[str, float],
    start: Checkpoint | None = None,
) -> None:
    """Train on the features in `folder`; write `nano.safetensors` and `log.jsonl` into `output`."""
    rng = random.Random(SEED)
    torch.manual_seed(SEED)
    model, batches, languages = set_up(FeatureStore(folder), shares, rng, start=start)
    torch.manual_seed(SEED)
    rng.seed(SEED)
    output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(model, minutes, learning_rate, random.Random(SEED))
    trainer.run(batches, output / "log.jsonl")
    model = trainer.averaged()
    heads = guided_heads(model.dims.n_text_layer)[1]
    save_compact(model.to_checkpoint("nano", languages, heads), output / "nano.safetensors")
    logger.info("%.1f h heard, %d updates", trainer.seconds_heard / 3600, trainer.n_updates)


def average(sources: Sequence[Path], target: Path) -> None:
    """Write the mean of the weights of small files.

    The mean of the beginning and the end of a fine-tuning keeps more of what was known before (Wortsman et
    al. 2022, "Robust fine-tuning of zero-shot models").

    Raises: CheckpointError when they differ in more than their weights.
    """
    found = [read_compact(source) for source in sources]
    first = found[0]
    for source, other in zip(sources[1:], found[1:], strict=True):
        if _shape(other) != _shape(first):
            raise CheckpointError(f"{source}: other dimensions, tokens or symbols than {sources[0]}")
    tensors = {name: _mean([each.tensors[name] for each in found]) for name in first.tensors}
    heads = [each.ctc_head for each in found if each.ctc_head is not None]
    if heads:
        weight, bias = _mean([head.weight for head in heads]), _mean([head.bias for head in heads])
        first = replace(first, ctc_head=replace(heads[0], weight=weight, bias=bias))
    save_compact(replace(first, tensors=tensors), target)


def _shape(checkpoint: Checkpoint) -> tuple[object, ...]:
    head = checkpoint.ctc_head
    return checkpoint.dims, checkpoint.trained_tokens, head and (head.labels, head.blank)


def _mean(arrays: Sequence[Array]) -> Array:
    mean: Floats = np.mean([floats(array) for array in arrays], axis=0, dtype=np.float32)
    return mean
