"""Fine-tune a Whisper checkpoint on a person's own manifest: all weights, or LoRA through `peft`.

The checkpoint is any that the library reads; what comes out is an OpenAI `.pt` file that the library and
openai-whisper load. Clips are at most 30 s and are padded to 30 s, as they are when they are recognised;
the loss is on text only, without timestamps. peft is an extra (`sottovoce[lora]`), imported when LoRA is
asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

from recipes.nano.clips import Clip, read_manifest
from recipes.nano.devices import leave_interrupts_to_the_parent, products_in
from recipes.nano.pieces import Pieces
from recipes.nano.samples import IGNORED
from recipes.nano.start import known_text
from sottovoce.audio.io import load_audio, probe_audio
from sottovoce.audio.mel import WINDOW_FRAMES, log_mel, normalize, pad_or_trim
from sottovoce.errors import ManifestError, MissingExtraError, OptionError
from sottovoce.models.caches import AudioContext, CacheShape, DecoderCache, RowGroups, decode_batch
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.openai import save_openai
from sottovoce.models.whisper import Whisper
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE

logger = logging.getLogger(__name__)

MAX_SECONDS = 30.0
LOG_EVERY = 20
LORA_TARGETS = ["query", "value"]
"""The projections that the LoRA paper adapts (Hu et al. 2021, section 4.2)."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """steps of batch_size clips; lora_rank 0 tunes all weights.

    device, dtype: where, and the format of products; weights stay float32. workers: processes that read.
    """

    steps: int = 500
    batch_size: int = 8
    learning_rate: float = 1e-5
    lora_rank: int = 0
    warm_up_steps: int = 20
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    dtype: torch.dtype = torch.float32
    workers: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_size) < 1 or self.learning_rate <= 0 or self.lora_rank < 0:
            raise OptionError(
                f"fine-tune: steps {self.steps}, batch size {self.batch_size} and learning rate "
                f"{self.learning_rate} must be positive, LoRA rank {self.lora_rank} not negative"
            )


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came of a fine-tuning.

    losses: of every step. held_out: mean loss on the clips of split "dev" before and after, if there are any.
    """

    checkpoint: Checkpoint
    losses: tuple[float, ...]
    held_out: tuple[float, ...]


class Pair(NamedTuple):
    """Normalised log-mel (n_mels, 3000), ids read (L,), and ids said (L,), IGNORED where they are given."""

    mel: Tensor
    inputs: Tensor
    targets: Tensor


class Pairs(Dataset[Pair]):
    """What there is to learn in clips with a text; audio is read when it is asked for."""

    def __init__(
        self, clips: Sequence[Clip], n_mels: int, tokenizer: Tokenizer, pieces: Pieces | None = None
    ) -> None:
        """pieces: for a model that writes with some of Whisper's tokens only, as nano does.

        Raises: ManifestError when a clip has no text, or none is at most 30 s; AudioError."""
        for clip in clips:
            if not clip.text:
                raise ManifestError(f"{clip.id}: no text, expected one to fine-tune on")
        self._clips = [clip for clip in clips if _is_short(clip)]
        if not self._clips:
            raise ManifestError(f"none of {len(clips)} clips is at most {MAX_SECONDS:g} s long")
        self._n_mels, self._tokenizer, self._pieces = n_mels, tokenizer, pieces

    def __len__(self) -> int:
        return len(self._clips)

    def __getitem__(self, index: int) -> Pair:
        clip, given = self._clips[index], self._tokenizer
        own = given.with_language(clip.language) if given.is_multilingual else given
        head = own.sot_sequence_including_notimestamps
        spoken = clip.text or ""
        if self._pieces is None:
            text = own.encode(f" {spoken}" if own.splits_on_spaces else spoken)
        else:
            text = self._pieces.encode(spoken, clip.language)
        tokens = torch.tensor([*head, *text, own.eot])
        targets = tokens[1:].clone()
        targets[: len(head) - 1] = IGNORED
        samples = load_audio(clip.file, duration_s=MAX_SECONDS)
        mel = normalize(log_mel(samples, self._n_mels, padding_samples=SAMPLE_RATE))
        return Pair(pad_or_trim(mel, WINDOW_FRAMES), tokens[:-1], targets)


def collated(pairs: Sequence[Pair]) -> Pair:
    """A batch: (B, n_mels, 3000), (B, L), (B, L)."""
    padded = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    return Pair(
        torch.stack([pair.mel for pair in pairs]),
        padded([pair.inputs for pair in pairs]),
        padded([pair.targets for pair in pairs], padding_value=IGNORED),
    )


def teacher_forced(model: Whisper, mel: Tensor, inputs: Tensor) -> Tensor:
    """Logits (B, L, n_vocab) of whole sequences: mel (B, n_mels, n_frames), inputs (B, L)."""
    states = model.encoder(mel)
    n_rows, dims = len(inputs), model.dims
    shape = CacheShape(dims.n_text_layer, n_rows, dims.n_text_head, dims.n_text_state // dims.n_text_head)
    cache = DecoderCache(shape, dtype=states.dtype, device=states.device)
    groups = RowGroups.of(range(n_rows), n_rows, states.device)
    audio = AudioContext(model.decoder.cross_keys_values(states), groups)
    hidden, _ = decode_batch(model.decoder, inputs, cache, audio)
    return model.decoder.logits(hidden)


def text_loss(model: Whisper, batch: Pair) -> Tensor:
    """Mean cross-entropy of text and end of text."""
    logits = teacher_forced(model, batch.mel, batch.inputs).float()
    return F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)


def with_lora(model: Whisper, rank: int) -> nn.Module:
    """The model with LoRA adapters on queries and values, the only weights that still learn.

    The model itself is changed: its projections become peft's layers.

    Raises: MissingExtraError without peft.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtraError("peft", "lora", "LoRA fine-tuning") from error
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=LORA_TARGETS)
    adapted: nn.Module = inject_adapter_in_model(config, model)
    return adapted


@torch.no_grad()
def merge_adapters(model: Whisper) -> None:
    """Add every LoRA adapter into the weights that it adapts."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.merge()


def openai_state(model: Whisper) -> dict[str, Tensor]:
    """The state dict under OpenAI's names, without what peft has added."""
    state = {name: tensor for name, tensor in model.state_dict().items() if ".lora_" not in name}
    return {name.replace(".base_layer", ""): tensor.detach().cpu().clone() for name, tensor in state.items()}


def fine_tune(checkpoint: Checkpoint, clips: Sequence[Clip], options: TuneOptions) -> Tuned:
    """The checkpoint, tuned on the clips of split "train".

    Interrupted, it ends with what was learnt so far.

    Raises: ManifestError for clips that cannot be learnt from; MissingExtraError for LoRA without peft.
    """
    torch.manual_seed(options.seed)
    tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
    parts = {name: [clip for clip in clips if clip.split == name] for name in ("train", "dev")}
    if not parts["train"]:
        raise ManifestError(f"none of {len(clips)} clips is for training")
    pieces = None if checkpoint.trained_tokens is None else known_text(checkpoint)[0]
    learnt = Pairs(parts["train"], checkpoint.dims.n_mels, tokenizer, pieces)
    held_out = Pairs(parts["dev"], checkpoint.dims.n_mels, tokenizer, pieces) if parts["dev"] else None
    told = []
    model = Whisper(checkpoint.dims)
    model.load_state_dict({name: tensor.float() for name, tensor in checkpoint.tensors.items()})
    if options.lora_rank:
        with_lora(model, options.lora_rank)
    model.to(options.device)
    if held_out is not None:
        told.append(_mean_loss(model, held_out, options))
    losses: list[float] = []
    with suppress(KeyboardInterrupt):
        for loss in _steps(model, learnt, options):
            losses.append(loss)
            if len(losses) % LOG_EVERY == 0:
                recent = sum(losses[-LOG_EVERY:]) / LOG_EVERY
                logger.info("step %d of %d: loss %.3f", len(losses), options.steps, recent)
    if len(losses) < options.steps:
        logger.warning("stopped after %d of %d steps", len(losses), options.steps)
    if held_out is not None:
        told.append(_mean_loss(model, held_out, options))
    if options.lora_rank:
        merge_adapters(model)
    tuned = replace(checkpoint, tensors=openai_state(model))
    return Tuned(tuned, tuple(losses), tuple(told))


def fine_tune_file(checkpoint: Checkpoint, manifest: Path, target: Path, options: TuneOptions) -> Tuned:
    """Fine-tune on the clips of a manifest and write a `.pt` file."""
    tuned = fine_tune(checkpoint, read_manifest(manifest), options)
    save_openai(tuned.checkpoint, target)
    return tuned


def _steps(model: Whisper, learnt: Pairs, options: TuneOptions) -> Iterator[float]:
    """Train; every clip once before any comes again. Yields the loss of each step."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=options.learning_rate, weight_decay=0.0)
    drawn = RandomSampler(learnt, num_samples=options.steps * options.batch_size)
    for step, batch in enumerate(_batches(learnt, options, drawn), 1):
        loss = _loss(model.train(), batch, options)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.param_groups[0]["lr"] = options.learning_rate * min(1.0, step / options.warm_up_steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield float(loss.detach())


@torch.no_grad()
def _mean_loss(model: Whisper, pairs: Pairs, options: TuneOptions) -> float:
    model.eval()
    losses = [float(_loss(model, batch, options)) for batch in _batches(pairs, options)]
    return sum(losses) / len(losses)


def _loss(model: Whisper, batch: Pair, options: TuneOptions) -> Tensor:
    with products_in(options.dtype, options.device):
        return text_loss(model, Pair(*(part.to(options.device) for part in batch)))


def _batches(pairs: Pairs, options: TuneOptions, drawn: RandomSampler | None = None) -> DataLoader[Pair]:
    return DataLoader(
        pairs,
        batch_size=options.batch_size,
        sampler=drawn,
        collate_fn=collated,
        num_workers=options.workers,
        worker_init_fn=leave_interrupts_to_the_parent,
    )


def _is_short(clip: Clip) -> bool:
    seconds = probe_audio(clip.file).duration_s
    if seconds is None:
        seconds = len(load_audio(clip.file)) / SAMPLE_RATE
    if seconds > MAX_SECONDS:
        logger.warning("%s is longer than %g s and is left out", clip.id, MAX_SECONDS)
    return seconds <= MAX_SECONDS
