"""Chunks of a microphone, with a device made for the test."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest

from sottovoce.audio.microphone import Deliver, Microphone
from sottovoce.errors import AudioError, MissingExtraError, OptionError


class FakeDevice:
    """Delivers its blocks when started; can be opened as a Microphone opens a device."""

    def __init__(self, n_blocks: int, *, loses: bool = False) -> None:
        self.n_blocks = n_blocks
        self.loses = loses
        self.is_closed = False

    def open(self, chunk_samples: int, device: int | str | None, deliver: Deliver) -> FakeDevice:
        self.chunk_samples, self.deliver = chunk_samples, deliver
        return self

    def start(self) -> None:
        for block in range(self.n_blocks):
            self.deliver(np.full(self.chunk_samples, block, np.float32), self.loses)

    def close(self) -> None:
        self.is_closed = True


def test_chunks_come_in_order_until_closed() -> None:
    device = FakeDevice(3)
    with Microphone(chunk_s=0.05, open_stream=device.open) as microphone:
        microphone.close()
        chunks = list(microphone)
    assert [chunk.start_sample for chunk in chunks] == [0, 800, 1_600]
    assert [float(chunk.samples[0]) for chunk in chunks] == [0.0, 1.0, 2.0]


def test_an_interrupt_closes_the_device() -> None:
    device = FakeDevice(3)

    def interrupted() -> None:
        with Microphone(open_stream=device.open) as microphone:
            for _ in microphone:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert device.is_closed


def test_losses_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Microphone(open_stream=FakeDevice(2, loses=True).open):
        pass
    assert "lost samples 2 times" in caplog.text


def test_reading_that_falls_behind_is_refused() -> None:
    device = FakeDevice(700)
    with Microphone(open_stream=device.open) as microphone, pytest.raises(AudioError, match="60 s behind"):
        list(microphone)


def test_bad_chunks_are_refused() -> None:
    with pytest.raises(OptionError, match="chunk_s"):
        Microphone(chunk_s=0.0, open_stream=FakeDevice(0).open)


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sottovoce\[mic\]'"):
        Microphone()
