"""FFmpeg's filters over samples: what FFmpeg makes of them, in any pieces, and never another length."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce import TranscribeOptions
from sottovoce.api import load_model
from sottovoce.audio.io import AudioFilter, Recording, Source, check_reading, load_audio, open_audio
from sottovoce.cli.main import run
from sottovoce.errors import OptionError
from sottovoce.types import SAMPLE_RATE, Samples
from tests.audio.media import ffmpeg, speechlike, wav_bytes

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"
KEEPING = (
    "highpass=f=200",
    "volume=0.5",
    "highpass=f=100, lowpass=f=3000",
    "aeval='max(val(0),0)'",
    r"aeval=max(val(0)\,0)",
)


@pytest.mark.parametrize(
    ("text", "within"),
    [
        *((text, 1e-5) for text in (*KEEPING, "afftdn", "acompressor")),
        ("speechnorm", 2e-3),  # FFmpeg 5.1 begins otherwise than the library in PyAV, whatever the pieces
    ],
)
def test_it_is_what_ffmpeg_makes_of_it(text: str, within: float) -> None:
    samples = speechlike(40_000)
    raw = "-f f32le -ar 16000 -ac 1"
    output = ffmpeg(f"{raw} -i - -af {text.replace(' ', '')} {raw} -", samples.tobytes())
    filtered = load_audio(Source(samples, audio_filter=text))
    expected = np.frombuffer(output, np.float32).clip(-1, 1)
    assert len(filtered) == len(expected) == len(samples)
    assert not np.array_equal(filtered, samples)
    np.testing.assert_allclose(filtered, expected, atol=within)


@given(st.lists(st.integers(1, 9_000), max_size=6), st.sampled_from([*KEEPING, "afftdn", "anull"]))
def test_pieces_make_no_difference(lengths: list[int], text: str) -> None:
    samples = speechlike(20_000)
    bounds = [0, *(int(end) for end in np.cumsum(lengths) if end < len(samples)), len(samples)]
    whole, cut = AudioFilter(text), AudioFilter(text)
    pieces = [cut.push(samples[start:end]) for start, end in pairwise(bounds)]
    filtered = np.concatenate([*pieces, cut.flush()])
    np.testing.assert_allclose(filtered, np.concatenate([whole.push(samples), whole.flush()]), atol=1e-5)
    assert text != "anull" or np.array_equal(filtered, samples)


def test_filtered_samples_are_clipped_at_full_scale() -> None:
    assert np.abs(load_audio(Source(speechlike(20_000), audio_filter="volume=1e30"))).max() == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got '' (no filter)"),
        ("nosuch", "got 'nosuch' (no filter nosuch)"),
        ("highpass=f=abc", "got 'highpass=f=abc'"),
        ("highpass,volume=bogus=1", "got 'volume=bogus=1'"),
        ("scale=10:10", "got 'scale=10:10'"),
        ("asplit", "got 'asplit'"),
        ("amovie=nothing.wav", "got 'amovie=nothing.wav'"),
        ("[in]highpass;afftdn", "got '[in]highpass;afftdn'"),
    ],
)
def test_no_filter_is_refused_before_anything_is_read(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=rf"^.*expected filters of FFmpeg.*{re.escape(message)}.*$"):
        check_reading(text, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("atempo=2", "expected one that keeps times, it made 0.6. s of 1.25 s"),
        ("adelay=500", "expected one that keeps times, it made 1.75 s of 1.25 s"),
        ("aeval=1/0", "expected finite samples"),
    ],
)
def test_a_filter_that_would_alter_times_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        load_audio(Source(speechlike(20_000), audio_filter=text))


def test_every_reading_and_every_channel_is_filtered() -> None:
    channels = np.stack([speechlike(30_000), 0.5 * speechlike(30_000, seed=1)])
    data = wav_bytes(channels)
    with Recording(Source(data, audio_filter="volume=0.5")) as recording:
        for _ in range(2):
            np.testing.assert_allclose(recording.beginning(9.0), 0.5 * load_audio(data), atol=1e-6)
        for number, side in enumerate(recording.channels()):
            expected = 0.5 * load_audio(data, channel=number)
            np.testing.assert_allclose(side.beginning(9.0), expected, atol=1e-6)
    with open_audio(Source(data, audio_filter="afftdn"), chunk_s=0.5) as reader:
        assert [len(chunk.samples) for chunk in reader] == [8_000, 8_000, 8_000, 6_000]


def test_a_transcript_is_that_of_the_filtered_recording() -> None:
    model = load_model("nano", device="cpu")
    speech = load_audio(CLIP)
    hum = 0.3 * np.sin(2 * np.pi * 20 * np.arange(len(speech)) / SAMPLE_RATE)
    spoilt: Samples = (speech + hum).astype(np.float32)

    def text(sound: Samples, **options: str) -> str:
        wish = TranscribeOptions(**options)  # type: ignore[arg-type]
        return model.transcribe(sound, language="en", options=wish).text

    clean = text(speech, audio_filter="anull")
    assert clean == text(speech)
    assert text(speech, audio_filter="volume=0") != clean
    chain = ",".join(["highpass=f=60"] * 4)
    assert text(spoilt, audio_filter=chain) == text(load_audio(Source(spoilt, audio_filter=chain)))
    assert text(spoilt, audio_filter=chain, mode="vad") == text(
        load_audio(Source(spoilt, audio_filter=chain)), mode="vad"
    )
    for _, transcript in model.transcribe_files(
        [spoilt], language="en", options=TranscribeOptions(audio_filter=chain)
    ):
        assert not isinstance(transcript, Exception)
        assert transcript.text == text(spoilt, audio_filter=chain)


def test_the_command_takes_filters(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["transcribe", str(CLIP), "-m", "nano", "--device", "cpu", "-l", "en", "--audio-filter"]
    assert run([*base, "highpass=f=80,afftdn"]) == 0
    assert capsys.readouterr().out.strip()
    assert run([*base, "highpas"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip().splitlines()[-1].endswith("got 'highpas' (no filter highpas)")
