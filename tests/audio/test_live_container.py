"""Containers that come piece by piece are decoded as files are, and a decoder holds up and keeps nobody."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from sottovoce.audio.container import MOST_AT_ONCE_S, THREAD_NAME, LiveContainer
from sottovoce.audio.io import load_audio
from sottovoce.audio.samples import Pcm16Resampler
from sottovoce.errors import AudioError
from sottovoce.types import SAMPLE_RATE, Samples
from tests.audio.media import encoded_bytes, from_live

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"


class Written(io.BytesIO):
    """A file that cannot be sought in, as a recorder of a browser writes it."""

    def seekable(self) -> bool:
        return False


def recorded(samples: Samples, container: str, codec: str = "libopus") -> bytes:
    """Samples (n,) at 16 kHz in a container that was written live, at 48 kHz."""
    return encoded_bytes(
        samples, sample_rate=SAMPLE_RATE, rate=48_000, container=container, codec=codec, file=Written()
    )


def taken(container: LiveContainer) -> Iterator[Samples]:
    is_more = True
    while is_more:
        samples, is_more = container.take()
        assert len(samples) < (MOST_AT_ONCE_S + 1) * SAMPLE_RATE
        yield samples


@pytest.mark.parametrize(
    ("kind", "codec"), [("webm", "libopus"), ("ogg", "libopus"), ("flac", "flac"), ("wav", "pcm_s16le")]
)
@pytest.mark.parametrize("piece", [700, 10_000_000])
def test_samples_are_those_of_the_file_however_it_is_cut(kind: str, codec: str, piece: int) -> None:
    data = recorded(load_audio(CLIP), kind, codec)
    assert np.array_equal(np.concatenate(from_live(data, piece)), load_audio(io.BytesIO(data)))


@pytest.mark.parametrize(("kind", "after_s"), [("webm", 1.0), ("ogg", 2.0)])
def test_samples_come_before_more_bytes_are_fed(kind: str, after_s: float) -> None:
    """Within what few bytes of a pause are, and in Ogg within a page, which is a second."""
    data = recorded(load_audio(CLIP), kind)
    pieces = from_live(data, len(data) // 100)
    seconds = len(load_audio(CLIP)) / SAMPLE_RATE
    heard_s = np.cumsum([len(samples) for samples in pieces])[:100] / SAMPLE_RATE
    assert (heard_s >= np.arange(1, 101) / 100 * seconds - after_s).all()


@pytest.mark.long
def test_hours_of_silence_in_few_bytes_come_in_parts() -> None:
    silence = recorded(np.zeros(600 * SAMPLE_RATE, np.float32), "ogg")
    container = LiveContainer()
    container.feed(silence)
    for n, _ in enumerate(taken(container), start=1):
        if n == 3:
            break
    container.close()  # in the middle: nothing is left
    assert is_alone()


def is_alone() -> bool:
    """Whether the threads of all containers end."""
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join(10.0)
    return not any(thread.name == THREAD_NAME for thread in threading.enumerate())


@pytest.mark.parametrize("fault", [MemoryError("too much"), ValueError("no"), av.FFmpegError(1, "broken")])
def test_a_fault_of_the_decoder_is_no_end_of_the_audio(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    resampled = Pcm16Resampler.resampled

    def faulty(self: Pcm16Resampler, frames: Iterable[av.AudioFrame]) -> Iterator[Any]:
        yield from islice(resampled(self, frames), 3)
        raise fault

    data = recorded(load_audio(CLIP), "ogg")
    monkeypatch.setattr(Pcm16Resampler, "resampled", faulty)
    with pytest.raises(type(fault), match=re.escape(str(fault))):
        from_live(data)
    assert is_alone()


def test_close_waits_neither_for_the_decoder_nor_leaves_a_reader_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = recorded(load_audio(CLIP), "ogg")
    is_decoding, may_end = threading.Event(), threading.Event()

    def stuck(self: Pcm16Resampler, frames: Iterable[av.AudioFrame]) -> Iterator[Any]:
        is_decoding.set()
        may_end.wait(10.0)
        yield from ()

    monkeypatch.setattr(Pcm16Resampler, "resampled", stuck)
    container = LiveContainer()
    container.feed(data)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(container.take)
        assert is_decoding.wait(10.0)
        container.close()
        assert not may_end.is_set()
        assert len(reader.result(timeout=10.0)[0]) == 0
        may_end.set()
    assert is_alone()


@pytest.mark.parametrize("data", [b"no audio at all" * 1000, b"#EXTM3U\n/etc/passwd\n", b"OggS" + bytes(99)])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(AudioError):
        from_live(data, 1000)


def test_one_that_got_nothing_has_no_thread_and_no_samples() -> None:
    container = LiveContainer()
    container.end()
    assert len(container.take()[0]) == 0
    container.close()
    container.close()
