"""The backends that every contract is checked on, and how their results are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

from sottovoce.models.backend import Backend, EncoderOutput
from sottovoce.types import Features, Floats
from tests.models import tiny
from tests.runtime.fake import FAKE_DIMS, FakeBackend, Script, ScriptedToken, SpokenLanguage, by_row

N_FRAMES = 60
TOLERANCE = 2e-5
"""float32 sums in another order (another batch size, another length of the cache)."""
STATIC = "torch, static"
ON_CUDA = "torch on CUDA"
HAS_CUDA = find_spec("torch") is not None and import_module("torch").cuda.is_available()
NAMES = (
    *("torch", STATIC, "native", "fake"),
    *([pytest.param(ON_CUDA, marks=pytest.mark.cuda)] if HAS_CUDA else ()),
)
FIRST = Script(
    (ScriptedToken(100, 3), ScriptedToken(200, 9), ScriptedToken(300, 21)),
    (SpokenLanguage("en", 0, 15), SpokenLanguage("de", 15, 30)),
)
SECOND = Script((ScriptedToken(400, 1), ScriptedToken(500, 25)), (SpokenLanguage("fr", 0, 30),))


@dataclass(frozen=True)
class Subject:
    """A backend, and a prompt that means something to it."""

    backend: Backend
    prompt: tuple[int, ...] = (7, 250, 31, 4, 99)


def subject_of(name: str) -> Subject:
    if name == "fake":
        return Subject(FakeBackend(by_row(FIRST, SECOND)), (50258, 50259, 50359, 100, 200))
    return Subject(_random(name))


def short_backend(name: str, n_audio_ctx: int) -> Backend:
    """A backend with a full window of so many encoder frames."""
    if name == "fake":
        return FakeBackend(FIRST, dims=replace(FAKE_DIMS, n_audio_ctx=n_audio_ctx))
    return _random(name, n_audio_ctx=n_audio_ctx)


def _random(name: str, **dims: int) -> Backend:
    if name == "torch":
        return tiny.backend(tiny.dims(**dims))
    if name == STATIC:
        backend = tiny.backend(tiny.dims(**dims))
        from sottovoce.runtime.static_rows import RowPool
        from sottovoce.runtime.torch_encoder import eagerly

        backend.pool = RowPool(backend.dims, backend.dtype, backend.device, eagerly)
        return backend
    if name == ON_CUDA:
        return tiny.backend(tiny.dims(**dims), device="cuda")
    native = pytest.importorskip("sottovoce.runtime.native", reason="sottovoce-kernels is not installed")
    created: Backend = native.NativeBackend.from_checkpoint(tiny.checkpoint(tiny.dims(**dims)))
    return created


def windows(backend: Backend, n_rows: int = 2, n_frames: int = N_FRAMES) -> Features:
    return Features(noise(n_rows, backend.dims.n_mels, n_frames), (n_frames,) * n_rows)


def noise(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def one_row(encoded: EncoderOutput, row: int) -> EncoderOutput:
    return encoded.rows([row])


def difference(a: object, b: object) -> float:
    """The largest difference, relative to 1 + |b|; infinite for another shape or dtype."""
    a, b = (np.asarray(each.cpu() if hasattr(each, "cpu") else each) for each in (a, b))
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    differs = a != b  # -inf equals -inf
    return float((np.abs(a[differs] - b[differs]) / (1 + np.abs(b[differs]))).max(initial=0))
