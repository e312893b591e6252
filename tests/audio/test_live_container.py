"""Containers that come piece by piece are decoded as files are; chunks of a microphone."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import pytest

from sottovoce.audio.container import MOST_AT_ONCE_S, THREAD_NAME, LiveContainer
from sottovoce.audio.io import Microphone, load_audio
from sottovoce.audio.samples import Pcm16Resampler
from sottovoce.errors import AudioError, MissingExtraError, OptionError
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


DEVICES = ({"name": "Headset", "max_input_channels": 1}, {"name": "Screen", "max_input_channels": 0})


class FakeDevice:
    """Stands for `sounddevice.InputStream`: delivers its blocks when started."""

    def __init__(self, n_blocks: int, *, loses: bool = False) -> None:
        self.n_blocks = n_blocks
        self.loses = loses
        self.is_closed = False

    def open(self, *, blocksize: int, callback: Callable[..., None], **_: object) -> FakeDevice:
        self.blocksize, self.callback = blocksize, callback
        return self

    def start(self) -> None:
        for block in range(self.n_blocks):
            samples = np.full((self.blocksize, 1), block, np.float32)
            self.callback(samples, self.blocksize, None, self.loses)

    def close(self) -> None:
        self.is_closed = True


Plug = Callable[[FakeDevice], FakeDevice]


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Plug:
    def plugged(device: FakeDevice) -> FakeDevice:
        module = SimpleNamespace(
            InputStream=device.open, PortAudioError=OSError, query_devices=lambda *_: DEVICES[0]
        )
        monkeypatch.setitem(sys.modules, "sounddevice", module)
        return device

    return plugged


def test_chunks_come_in_order_until_closed(plug: Plug) -> None:
    plug(FakeDevice(3))
    with Microphone(chunk_s=0.05) as microphone:
        microphone.close()
        chunks = list(microphone)
    assert [chunk.start_sample for chunk in chunks] == [0, 800, 1_600]
    assert [float(chunk.samples[0]) for chunk in chunks] == [0.0, 1.0, 2.0]


def test_an_interrupt_closes_the_device(plug: Plug) -> None:
    device = plug(FakeDevice(3))

    def interrupted() -> None:
        with Microphone() as microphone:
            for _ in microphone:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert device.is_closed


def test_losses_are_reported(plug: Plug, caplog: pytest.LogCaptureFixture) -> None:
    plug(FakeDevice(2, loses=True))
    with caplog.at_level(logging.WARNING), Microphone():
        pass
    assert "lost samples 2 times" in caplog.text


def test_reading_that_falls_behind_is_refused(plug: Plug) -> None:
    plug(FakeDevice(700))
    with Microphone() as microphone, pytest.raises(AudioError, match="60 s behind"):
        list(microphone)


def test_a_microphone_that_cannot_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="chunk_s"):
        Microphone(chunk_s=0.0)
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[mic\]'"):
        Microphone()

    def refuse(**_: object) -> None:
        raise ValueError("No input device matching 'Tape'")

    module = SimpleNamespace(InputStream=refuse, PortAudioError=OSError, query_devices=lambda: DEVICES)
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    with pytest.raises(AudioError, match=r"16 kHz mono \(0 Headset\), got 'Tape': No input device"):
        Microphone("Tape")
