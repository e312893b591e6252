"""Speak the demo's clips with espeak-ng: one per language, and one that switches languages.

The voices and sentences are not in nano's training data. Writes FLAC files and `manifest.jsonl`
(reference text, language spans) into `examples/clips`. Needs espeak-ng and the package pypinyin.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt

RATE = 16_000
LOUD = 0.01
"""Of full scale: what is taken for speech when the spans are drawn."""
CLIPS = Path(__file__).parent / "clips"
VOICES = {
    "en": "en-us+m7",
    "de": "de+f4",
    "es": "es+m3",
    "fr": "fr-fr+f2",
    "zh": "cmn-latn-pinyin+m6",
}
SENTENCES = {
    "en": "The garden is quiet in the morning.",
    "de": "Wir haben heute viel Zeit.",
    "es": "La casa está en silencio por la mañana.",
    "fr": "La maison est calme le matin.",
    "zh": "今天早上我们在公园里走路。",
}
MIXED = [
    ("en", "We walked along the river and talked about the summer."),
    ("de", "Wir haben heute viel Zeit."),
    ("es", "Hablamos mucho tiempo sobre el verano."),
    ("fr", "La maison est calme le matin."),
]


@dataclass(frozen=True, slots=True)
class Spoken:
    """One sentence as sound."""

    language: str
    text: str
    samples: npt.NDArray[np.float32]


def espeak(language: str, text: str) -> npt.NDArray[np.float32]:
    """Samples (n,) of `text`; Chinese is spoken from its pinyin, which espeak-ng reads best."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        said = pinyin(text) if language == "zh" else text
        command = ["espeak-ng", "-v", VOICES[language], "-s", "150", "-w", file.name, said]
        subprocess.run(command, check=True)
        return read_wave(file.name)


def pinyin(text: str) -> str:
    from pypinyin import Style, lazy_pinyin

    syllables = lazy_pinyin(text.rstrip("。"), style=Style.TONE3, neutral_tone_with_five=True)
    return " ".join(syllables) + "."


def read_wave(path: str) -> npt.NDArray[np.float32]:
    """Mono 16 kHz samples of a 16-bit wave file at any rate."""
    with wave.open(path) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
    parts = [part.to_ndarray()[0] for f in (frame, None) for part in resampler.resample(f)]
    return np.concatenate(parts).astype(np.float32)


def join(
    parts: list[Spoken], pause_s: float = 0.6
) -> tuple[npt.NDArray[np.float32], list[dict[str, object]]]:
    """One recording of all parts with pauses between them, and where each part lies."""
    pause = np.zeros(int(pause_s * RATE), np.float32)
    pieces, spans, at = [pause[: RATE // 4]], [], RATE // 4
    for part in parts:
        loud = np.nonzero(np.abs(part.samples) > LOUD)[0]  # the voices end in half a second of silence
        spans.append(
            {
                "start": round((at + int(loud[0])) / RATE, 2),
                "end": round((at + int(loud[-1])) / RATE, 2),
                "language": part.language,
                "text": part.text,
            }
        )
        pieces += [part.samples, pause]
        at += len(part.samples) + len(pause)
    return np.concatenate(pieces), spans


def write_flac(path: Path, samples: npt.NDArray[np.float32]) -> None:
    pcm = (np.clip(samples, -1, 1) * 32767).astype(np.int16)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("flac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)


def make(name: str, parts: list[Spoken]) -> dict[str, object]:
    """Write one clip; return its line of the manifest."""
    samples, spans = join(parts)
    write_flac(CLIPS / f"{name}.flac", samples)
    languages = {part.language for part in parts}
    joiner = "" if languages == {"zh"} else " "
    return {
        "id": f"demo/{name}",
        "file": f"{name}.flac",
        "duration": round(len(samples) / RATE, 3),
        "language": parts[0].language if len(languages) == 1 else spans,
        "text": joiner.join(part.text for part in parts),
        "segments": spans,
    }


def main() -> None:
    CLIPS.mkdir(exist_ok=True)
    lines = []
    for language, text in SENTENCES.items():
        lines.append(make(language, [Spoken(language, text, espeak(language, text))]))
    mixed = [Spoken(language, text, espeak(language, text)) for language, text in MIXED]
    lines.append(make("mixed", mixed))
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (CLIPS / "manifest.jsonl").write_text(text, encoding="utf-8")
    sys.stderr.write(f"{len(lines)} clips in {CLIPS}\n")


if __name__ == "__main__":
    main()
