"""Whisper on PyTorch: CPU, CUDA or MPS, in floats or with int8 weights."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import torch

from sottovoce.errors import OptionError
from sottovoce.models.backend import EncoderOutput, IncrementalResult, IncrementalWindow
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.devices import MOST_RECORDINGS, NumberFormat, encoder_work, plan_memory
from sottovoce.models.dims import default_encoder_mode, upper_half_heads
from sottovoce.models.whisper import KeysValues, Whisper, attention_plans, whisper_from_tensors
from sottovoce.runtime.incremental_encoder import CachedWindow, content_frames, plan_updates
from sottovoce.runtime.rows import RowMemory, TorchRows, cross_keys_values
from sottovoce.runtime.static_rows import RowPool, StaticRows
from sottovoce.runtime.torch_encoder import (
    Encoder,
    EncoderKvCache,
    StaticEncoder,
    TorchEncoderOutput,
    recorder_of,
)
from sottovoce.threads import tell_torch
from sottovoce.types import Features

logger = logging.getLogger(__name__)
tell_torch()


class TorchEncoderState(CachedWindow[EncoderKvCache]):
    __slots__ = ()


DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _free_bytes(device: torch.device) -> float:
    """Return the free memory of a CUDA device in bytes; infinite for others, which do not tell."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf


class TorchBackend:
    def __init__(
        self,
        model: Whisper,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        int8: bool = False,
        most_recordings: int = MOST_RECORDINGS,
    ) -> None:
        """dtype: of the activations. int8: large tables are int8. most_recordings: decoded at a time on an
        accelerator. Logits and attention are always float32.
        """
        self.network = model
        self.name, self.dims, self.tail_s = checkpoint.name, checkpoint.dims, checkpoint.tail_s
        self.alignment_heads = checkpoint.alignment_heads or upper_half_heads(self.dims)
        self.encoder_mode = checkpoint.encoder_mode or default_encoder_mode(self.dims)
        self.device, self.dtype = model.encoder.positional_embedding.device, dtype
        self.runtime = f"torch, {'int8 weights, ' * int8}{name_of(dtype)}"
        self.own_threads = self.device.type != "cpu"
        self.pool: RowPool | None = None
        """Static memory of rows; None: rows grow, as on a CPU, where a launch costs nothing."""
        if self.device.type != "cpu":
            self.pool = RowPool(self.dims, dtype, self.device, recorder_of(self.device), most_recordings)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        int8: bool = False,
        most_bytes: float | None = None,
    ) -> TorchBackend:
        """Load a checkpoint's weights onto a device.

        most_bytes: of an accelerator's memory, for weights and rows; None: what is free.

        Raises:
            OptionError: a dtype without kernels, or a model that does not fit into the memory.
        """
        if dtype not in DTYPES:
            raise OptionError(f"dtype {dtype} given, expected one of {', '.join(map(str, DTYPES))}")
        most_recordings = MOST_RECORDINGS
        if device.type != "cpu":
            most = min(_free_bytes(device), math.inf if most_bytes is None else most_bytes)
            plan = plan_memory(checkpoint.dims, NumberFormat(name_of(dtype), int8), most, checkpoint.name)
            logger.info("%s on %s: %s", checkpoint.name, device, plan)
            most_recordings = plan.n_recordings
        tensors = checkpoint.tensors
        model = whisper_from_tensors(checkpoint.dims, tensors, device=device, dtype=dtype, int8=int8)
        return cls(model, checkpoint, dtype=dtype, int8=int8, most_recordings=most_recordings)

    @property
    def _encoder(self) -> Encoder:
        if self.pool is None:
            return Encoder(self.network)
        if self.pool.encoder is None:
            work = encoder_work(self.dims, self.dtype.itemsize)
            self.pool.encoder = StaticEncoder(self.network, self.pool.record, work)
        return self.pool.encoder

    def encode(self, features: Features) -> EncoderOutput:
        n_content = content_frames(features, self.dims, self.name)
        states, keys_values = self._encoder.encode(features.mel)
        return TorchEncoderOutput(states, n_content, keys_values)

    def encode_incremental(self, windows: Sequence[IncrementalWindow]) -> list[IncrementalResult]:
        planned = plan_updates(windows, TorchEncoderState, dims=self.dims, name=self.name)
        with attention_plans(self.device, False):
            caches = self._encoder.encode_incremental([update for _, update in planned])
        results = []
        for (plan, update), cache in zip(planned, caches, strict=True):
            weights = None if update.log_weights is None else torch.from_numpy(update.log_weights)[None]
            n_content, state = (plan.cache.n_content,), TorchEncoderState(plan.cache, cache)
            encoded = TorchEncoderOutput(cache.states, n_content, cache.cross_layers, weights)
            results.append(IncrementalResult(encoded, state, plan.n_computed, plan.start))
        return results

    def rows(self) -> TorchRows:
        if self.pool is not None:
            return StaticRows(self.network.decoder, self.pool, self.name)
        memory = RowMemory(self.dims, self.dtype, self.device)
        return TorchRows(self.network.decoder, memory, self.name)

    def keys_values(self, encoded: EncoderOutput) -> Sequence[KeysValues]:
        """Return cross-attention keys and values, per layer (B, H, n_frames, d_head)."""
        return cross_keys_values(self.network.decoder, TorchEncoderOutput.checked(encoded))
