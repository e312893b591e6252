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
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from recipes.nano.augment import Augmenter, NoiseBank, Strengths
from recipes.nano.batches import Batch, BatchMaker, Curriculum
from recipes.nano.clips import FeatureStore
from recipes.nano.losses import Heard, Weights, decoder_loss, guided_heads, total_loss
from recipes.nano.model import NANO_DIMS, NanoModel, TokenTable, known_text, start_from
from recipes.nano.pieces import CtcSymbols, Pieces, frequent_words
from recipes.nano.samples import SampleMaker, TaskMix, utterances
from recipes.nano.texts import spelled
from sottovoce.backends.registry import choose_dtype
from sottovoce.errors import CheckpointError, ManifestError
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.load import read_compact, save_compact
from sottovoce.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

N_BABBLE_CLIPS = 60
LOG_EVERY = 50


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a run spends its time.

    minutes: wall clock. learning_rate: the decoder's highest; the encoder's is encoder_share of it.
    constant_until: progress at which the cosine begins. replays_until: progress until which every step is
    followed by one of the decoder on kept states. average: decay of the moving average.
    """

    minutes: float = 80.0
    learning_rate: float = 5e-4
    encoder_share: float = 0.8
    constant_until: float = 0.25
    warm_up_steps: int = 150
    replays_until: float = 0.8
    oracle: float = 0.4
    oracle_until: float = 0.4
    average: float = 0.9985

    def rate(self, progress: float, step: int) -> float:
        """Learning rate: warm-up by steps, then constant, then a half cosine to 1.5 % and on to 0."""
        warm = min(1.0, (step + 1) / self.warm_up_steps)
        past = min(1.0, max(0.0, (progress - self.constant_until) / (1 - self.constant_until)))
        return self.learning_rate * warm * (0.4925 * (1 + math.cos(math.pi * past)) + 0.015 * (1 - past))

    def weights(self, progress: float) -> Weights:
        """Loss weights: the oracle fades out, guidance loosens towards the end."""
        oracle = max(0.0, self.oracle * (1 - progress / self.oracle_until))
        return Weights(guidance=0.6 if progress < 0.6 else 0.3, oracle=oracle)


@dataclass(frozen=True, slots=True)
class Setup:
    """A model with the batches it is trained on."""

    model: NanoModel
    batches: BatchMaker
    languages: tuple[str, ...]


def set_up(
    store: FeatureStore,
    curriculum: Curriculum,
    rng: random.Random,
    *,
    min_word_count: int = 60,
    start: Checkpoint | None = None,
) -> Setup:
    """Choose pieces and symbols by the training texts, and make model and batches.

    min_word_count: rarer words are written by letters. start: go on from these weights, with their pieces
    and symbols.

    Raises: ManifestError when no training clip has a text.
    """
    chosen = [i for i, clip in enumerate(store.clips) if not clip.split.startswith(("test", "dev"))]
    texts = [(c.language, c.text) for c in (store.clips[i] for i in chosen) if c.text is not None]
    if not texts:
        raise ManifestError(f"none of {len(store)} clips is for training and has a text")
    languages = tuple(dict.fromkeys(store.clips[index].language for index in chosen))
    tokenizer = Tokenizer.for_model(NANO_DIMS.n_vocab)
    if start is None:
        pieces = frequent_words(tokenizer, texts, min_word_count)
        symbols = CtcSymbols.of(spelled(*text) for text in texts)
    else:
        pieces, symbols = known_text(start)
        languages = start.languages or languages
    table = TokenTable.of(tokenizer, _tokens(pieces, texts) | pieces.kept, languages)
    model = NanoModel(NANO_DIMS, table, symbols.symbols) if start is None else start_from(start, table)
    babble = rng.sample(chosen, min(N_BABBLE_CLIPS, len(chosen)))
    noises = NoiseBank([store.log_mel(index).astype(np.float32) for index in babble], rng)
    space = symbols.symbols.index(" ") if " " in symbols.symbols else 0
    augmenter = Augmenter(Strengths(), noises, rng)
    maker = SampleMaker(store, tokenizer, augmenter, TaskMix(), rng, separator=space)
    clips = utterances(store, chosen, pieces, symbols)
    of_language = [index for index in chosen if store.clips[index].language in tokenizer.language_codes]
    batches = BatchMaker(clips, of_language, maker, table, curriculum, rng)
    if start is None:
        model.fit_convolutions(next(iter(batches)).mel)
    return Setup(model, batches, languages)


def _tokens(pieces: Pieces, texts: Iterable[tuple[str, str]]) -> set[int]:
    return {token for language, text in texts for token in pieces.encode(text, language)}


class Trainer:
    """A model, its optimiser and its moving average."""

    def __init__(self, model: NanoModel, schedule: Schedule, rng: random.Random) -> None:
        self.model, self._schedule, self._rng = model, schedule, rng
        self._dtype = choose_dtype("auto", torch.device("cpu"))
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
                batches.progress = (time.monotonic() - start) / (60 * self._schedule.minutes)
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
        weights = self._schedule.weights(progress)
        with self._products():
            loss, parts, heard = total_loss(self.model, batch, weights)
        self._update(loss, progress)
        self.seconds_heard += batch.seconds
        self._kept.append(heard.detached())
        if progress < self._schedule.replays_until:
            with self._products():
                replayed, _ = decoder_loss(self.model, self._rng.choice(self._kept), weights)
            self._update(replayed, progress)
        return parts

    def _products(self) -> torch.autocast:
        """Products in bfloat16 where the processor has it; weights and losses stay float32."""
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._dtype == torch.bfloat16)

    def _update(self, loss: Tensor, progress: float) -> None:
        loss.backward()  # type: ignore[no-untyped-call]
        norms = [torch.nn.utils.clip_grad_norm_(half, 1.0) for half in self._halves]
        if all(torch.isfinite(norm) for norm in norms):
            rate = self._schedule.rate(progress, self.n_updates)
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
        decay = min(self._schedule.average, self.n_updates / (self.n_updates + 20))
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
                "share": self._schedule.encoder_share if encoder else 1.0,
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
    schedule: Schedule,
    curriculum: Curriculum,
    *,
    min_word_count: int = 60,
    seed: int = 5,
    start: Checkpoint | None = None,
) -> None:
    """Train on the features in `folder`; write `nano.safetensors` and `log.jsonl` into `output`."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    setup = set_up(FeatureStore(folder), curriculum, rng, min_word_count=min_word_count, start=start)
    torch.manual_seed(seed)
    rng.seed(seed)
    output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(setup.model, schedule, random.Random(seed))
    trainer.run(setup.batches, output / "log.jsonl")
    model = trainer.averaged()
    heads = guided_heads(model.dims.n_text_layer)[1]
    save_compact(model.to_checkpoint("nano", setup.languages, heads), output / "nano.safetensors")
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


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([tensor.float() for tensor in tensors]).mean(dim=0)
