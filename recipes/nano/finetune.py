"""Fine-tune a Whisper checkpoint on a person's own manifest: all weights, or LoRA through `peft`.

The checkpoint is any that the library reads; what comes out is an OpenAI `.pt` file that the library and
openai-whisper load. Clips are at most 30 s; the loss is on text only, without timestamps. peft is an
extra (`sottovoce[lora]`), imported when LoRA is asked for.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recipes.nano.clips import Clip, read_manifest
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, normalize, pad_or_trim
from sottovoce.errors import ManifestError, MissingExtraError, OptionError
from sottovoce.models.cache import CacheShape, DecoderCache, RowGroups
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.checkpoint.openai import save_openai
from sottovoce.models.whisper import AudioContext, Whisper
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE

logger = logging.getLogger(__name__)

MAX_SECONDS = 30.0
IGNORED = -100
LORA_TARGETS = ["query", "value"]
"""The projections that the LoRA paper adapts (Hu et al. 2021, section 4.2)."""


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """steps of batch_size clips; lora_rank 0 tunes all weights."""

    steps: int = 500
    batch_size: int = 8
    learning_rate: float = 1e-5
    lora_rank: int = 0
    warm_up_steps: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch_size) < 1 or self.learning_rate <= 0 or self.lora_rank < 0:
            raise OptionError(
                f"fine-tune: steps {self.steps}, batch size {self.batch_size} and learning rate "
                f"{self.learning_rate} must be positive, LoRA rank {self.lora_rank} not negative"
            )


@dataclass(frozen=True, slots=True)
class Pair:
    """Normalised log-mel (n_mels, 3000 or less) and the ids from SOT to end of text."""

    mel: Tensor
    tokens: list[int]


def pairs_of(clips: Sequence[Clip], n_mels: int, tokenizer: Tokenizer) -> list[Pair]:
    """What there is to learn in clips with a text.

    Raises: ManifestError when a clip has no text, or none is at most 30 s.
    """
    pairs = []
    for clip in clips:
        if not clip.text:
            raise ManifestError(f"{clip.id}: no text, expected one to fine-tune on")
        samples = load_audio(clip.file)
        if len(samples) > MAX_SECONDS * SAMPLE_RATE:
            logger.warning("%s is longer than %g s and is left out", clip.id, MAX_SECONDS)
            continue
        own = tokenizer.with_language(clip.language) if tokenizer.is_multilingual else tokenizer
        text = own.encode(f" {clip.text}" if own.splits_on_spaces else clip.text)
        tokens = [*own.sot_sequence_including_notimestamps, *text, own.eot]
        pairs.append(Pair(normalize(log_mel(samples, n_mels, padding_samples=SAMPLE_RATE)), tokens))
    if not pairs:
        raise ManifestError(f"none of {len(clips)} clips is at most {MAX_SECONDS:g} s long")
    return pairs


def teacher_forced(model: Whisper, mel: Tensor, inputs: Tensor) -> Tensor:
    """Logits (B, L, n_vocab) of whole sequences: mel (B, n_mels, n_frames), inputs (B, L)."""
    states = model.encoder(mel)
    n_rows, dims = len(inputs), model.dims
    shape = CacheShape(dims.n_text_layer, n_rows, dims.n_text_head, dims.n_text_state // dims.n_text_head)
    cache = DecoderCache(shape, dtype=states.dtype, device=states.device)
    groups = RowGroups.of(range(n_rows), n_rows, states.device)
    hidden, _ = model.decoder(inputs, cache, AudioContext(model.decoder.cross_keys_values(states), groups))
    return model.decoder.logits(hidden)


def text_loss(model: Whisper, pairs: Sequence[Pair], n_head_tokens: int) -> Tensor:
    """Mean cross-entropy of text and end of text; the first n_head_tokens are given, not learnt."""
    n_frames = max(pair.mel.shape[1] for pair in pairs)
    mel = torch.stack([pad_or_trim(pair.mel, n_frames + n_frames % 2) for pair in pairs])
    length = max(len(pair.tokens) for pair in pairs) - 1
    inputs = torch.tensor([_padded(pair.tokens[:-1], length, 0) for pair in pairs])
    masked = [[*[IGNORED] * (n_head_tokens - 1), *pair.tokens[n_head_tokens:]] for pair in pairs]
    targets = torch.tensor([_padded(row, length, IGNORED) for row in masked])
    logits = teacher_forced(model, mel, inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


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
    return {name.replace(".base_layer", ""): tensor.detach().clone() for name, tensor in state.items()}


def fine_tune(
    checkpoint: Checkpoint, clips: Sequence[Clip], options: TuneOptions
) -> tuple[Checkpoint, list[float]]:
    """The tuned checkpoint, and the loss of every step.

    Raises: ManifestError for clips that cannot be learnt from; MissingExtraError for LoRA without peft.
    """
    torch.manual_seed(options.seed)
    model = Whisper(checkpoint.dims)
    model.load_state_dict({name: tensor.float() for name, tensor in checkpoint.tensors.items()})
    tokenizer = Tokenizer.for_model(checkpoint.dims.n_vocab)
    pairs = pairs_of(clips, checkpoint.dims.n_mels, tokenizer)
    if options.lora_rank:
        with_lora(model, options.lora_rank)
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=options.learning_rate, weight_decay=0.0)
    n_head = 4 if tokenizer.is_multilingual else 2
    losses = []
    for step, batch in enumerate(_batches(pairs, options)):
        loss = text_loss(model.train(), batch, n_head)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.param_groups[0]["lr"] = options.learning_rate * min(1.0, (step + 1) / options.warm_up_steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    if options.lora_rank:
        merge_adapters(model)
    return replace(checkpoint, tensors=openai_state(model)), losses


def fine_tune_file(checkpoint: Checkpoint, manifest: Path, target: Path, options: TuneOptions) -> list[float]:
    """Fine-tune on the training clips of a manifest and write a `.pt` file; returns the losses."""
    clips = [clip for clip in read_manifest(manifest) if clip.split == "train"]
    if not clips:
        raise ManifestError(f"{manifest}: no clip for training")
    tuned, losses = fine_tune(checkpoint, clips, options)
    save_openai(tuned, target)
    return losses


def _batches(pairs: Sequence[Pair], options: TuneOptions) -> Iterator[list[Pair]]:
    """As many batches as there are steps; every pair once before any comes again."""
    rng = random.Random(options.seed)
    waiting: list[Pair] = []
    for _ in range(options.steps):
        while len(waiting) < options.batch_size:
            waiting += rng.sample(list(pairs), len(pairs))
        yield waiting[: options.batch_size]
        waiting = waiting[options.batch_size :]


def _padded(row: Sequence[int], length: int, padding: int) -> list[int]:
    return [*row, *[padding] * (length - len(row))]
