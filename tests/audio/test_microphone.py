"""Chunks of a microphone, with a device made for the test."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from sottovoce.audio.io import Microphone
from sottovoce.errors import AudioError, MissingExtraError, OptionError

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
