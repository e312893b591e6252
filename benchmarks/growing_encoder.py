"""What an encoder of growing audio may leave out: errors, distance and work by mode, on people's speech.

    python benchmarks/growing_encoder.py ../shared                      # the reported clips
    python benchmarks/growing_encoder.py ../shared --part dev --clips 20    # others, to choose numbers on

Every clip is one utterance that grows by `--every` seconds and is read once at its end, as a whole, without
timestamps, greedily, in its own language. Beside errors and loops (half as many words again as were said) the
table has how far the encoder's states and the decoder's choices (its probabilities along the text read from
the full window) are from those of the full window, encoder frames that were computed for a frame of audio,
and processor seconds a second of audio. Windows computed whole do not depend on earlier updates: only
the last one is, and the cost of the others follows from their frames. Prints a table and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from human_clips import Clip, clips, spread
from torch import Tensor

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel
from sottovoce.backends.base import EXACT, EncoderMode, EncoderState, GrowingWindow, Grown
from sottovoce.decoding.decode import decode
from sottovoce.decoding.options import DecodingOptions
from sottovoce.evaluation.wer import ScoreOptions, Utterance, score
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE

LEFT_OUT = ("hi",)
"""Languages in which base errs in more than every second word whatever the encoder sees."""
LONGEST_S = 29.0
ANCHORS = (
    *(
        110,
        174,
        175,
        231,
        232,
        247,
        248,
        256,
        297,
        305,
        311,
        312,
        313,
        319,
        320,
        361,
        362,
        363,
        378,
        384,
        457,
    ),
    *(458, 530, 531, 538, 539, 579, 580, 588, 594, 595, 683, 733, 734, 798, 1024, 1025, 1032, 1033, 1243),
    *(1250, 1371, 1372, 1380, 1445, 1446, 1452, 1453, 1477, 1493, 1494),
)


def thin(
    stride: int, recompute_s: float | None = None, refresh_s: float = 0.0, drift: float = 0.5
) -> EncoderMode:
    return EncoderMode(None, stride, ANCHORS, recompute_s=recompute_s, refresh_s=refresh_s, level_drift=drift)


MODES = {
    "thin 30": thin(30),
    "thin 60": thin(60),
    "thin 30, newest 2.5 s, each": thin(30, 2.5),
    "thin 30, newest 2.5 s, at 1 s": thin(30, 2.5, 1.0),
    "thin 30, newest 2.5 s, at 2 s": thin(30, 2.5, 2.0),
    "thin 30, newest 1.5 s, at 1 s": thin(30, 1.5, 1.0),
    "thin 30, newest 1 s, at 1 s": thin(30, 1.0, 1.0),
    "thin 30, newest 1.5 s, at 1 s, drift .2": thin(30, 1.5, 1.0, 0.2),
    "thin 30, newest 1.5 s, at 1 s, drift 9": thin(30, 1.5, 1.0, 9.0),
    "thin 30, newest 4.5 s, at 1 s": thin(30, 4.5, 1.0),
    "30 s": EXACT,
    "3 s of padding": EncoderMode(tail_s=3.0),
    "5 s of padding": EncoderMode(tail_s=5.0),
    "8 s of padding": EncoderMode(tail_s=8.0),
    "newest 1.5 s, 5 s refreshed at 2 s": EncoderMode(tail_s=5.0, recompute_s=1.5, refresh_s=2.0),
    "newest 2.5 s, 5 s refreshed at 2 s": EncoderMode(tail_s=5.0, recompute_s=2.5, refresh_s=2.0),
    "newest 2.5 s, 5 s refreshed each time": EncoderMode(tail_s=5.0, recompute_s=2.5, refresh_s=0.0),
    "newest 4.5 s, 5 s refreshed at 2 s": EncoderMode(tail_s=5.0, recompute_s=4.5, refresh_s=2.0),
    "newest 2.5 s, 8 s refreshed at 4 s": EncoderMode(tail_s=8.0, recompute_s=2.5, refresh_s=4.0),
}


@dataclass(slots=True)
class Tally:
    """What a mode came to over all clips."""

    utterances: list[Utterance] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    n_computed: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """A clip, and what comes of it in the full window."""

    clip: Clip
    log_mel: Tensor
    states: Tensor
    tokens: tuple[int, ...]
    log_probs: Tensor

    @property
    def n_frames(self) -> int:
        return self.log_mel.shape[1] // 2


def subject(model: Model, clip: Clip) -> Subject:
    """A clip as openai-whisper sees it: the last frames look into silence."""
    audio = load_audio(clip.file)[: int(LONGEST_S * SAMPLE_RATE)]
    mel = log_mel(audio, model.backend.dims.n_mels, padding_samples=SAMPLE_RATE)
    mel = mel[:, : len(audio) // 320 * 2]
    (grown,) = model.backend.encode_growing([GrowingWindow(mel, EXACT)])
    tokens = read(model, clip, grown)[0]
    states = grown.encoded.states[:, : mel.shape[1] // 2].float()
    return Subject(clip, mel, states, tokens, along(model, clip, grown, tokens))


def read(model: Model, clip: Clip, grown: Grown) -> tuple[tuple[int, ...], str]:
    options = DecodingOptions(language=clip.language, without_timestamps=True)
    result = decode(model.backend, model.tokenizer, grown.encoded, [options])[0]
    return result.tokens, result.text


@torch.inference_mode()
def along(model: Model, clip: Clip, grown: Grown, tokens: Sequence[int]) -> Tensor:
    """Log-probabilities (n + 1, n_vocab) after each token of a text, the end included."""
    names = model.tokenizer.with_language(clip.language)
    prompt = [names.sot, names.language_token(clip.language), names.transcribe, names.no_timestamps]
    read = torch.tensor([[*prompt, *tokens]], device=model.backend.device)
    state = model.backend.start(grown.encoded)
    said = model.backend.step(read, state, positions=range(len(prompt) - 1, read.shape[1]))
    return said.logits[0].log_softmax(-1)


def last_update(model: Model, mel: Tensor, mode: EncoderMode, every: int) -> tuple[Grown, int, float]:
    """The last of a window's updates; frames computed and processor seconds of all of them."""
    lengths = [*range(every, mel.shape[1] // 2, every), mel.shape[1] // 2]
    if mode.recompute_s is None:
        n_full = model.backend.dims.n_audio_ctx
        n_all = sum(n + mode.padding(n, n_full).n_frames for n in lengths)
        start = time.process_time()
        (grown,) = model.backend.encode_growing([GrowingWindow(mel, mode)])
        return grown, n_all, (time.process_time() - start) * n_all / grown.n_computed
    state: EncoderState | None = None
    n_all = 0
    start = time.process_time()
    for length in lengths:
        (grown,) = model.backend.encode_growing([GrowingWindow(mel[:, : 2 * length], mode, state)])
        state = grown.state
        n_all += grown.n_computed
    return grown, n_all, time.process_time() - start


def measure(model: Model, one: Subject, mode: EncoderMode, tally: Tally, every_s: float) -> None:
    """Add a clip to a mode's tally."""
    every = round(every_s * FRAMES_PER_SECOND)
    grown, n_computed, cpu_s = last_update(model, one.log_mel, mode, every)
    states = grown.encoded.states[:, : one.n_frames].float()
    apart = (states - one.states).norm(dim=-1).mean() / one.states.norm(dim=-1).mean()
    log_probs = along(model, one.clip, grown, one.tokens)
    divergence = (one.log_probs.exp() * (one.log_probs - log_probs)).sum(-1).mean()
    text = read(model, one.clip, grown)[1]
    tally.utterances.append(Utterance(one.clip.text or "", text, one.clip.language))
    tally.distances.append(float(apart))
    tally.divergences.append(float(divergence))
    tally.n_computed += n_computed
    tally.cpu_s += cpu_s


def is_loop(utterance: Utterance) -> bool:
    """Half as many words again as were said (characters, where words are not separated)."""
    n_said, n_read = (len(text.split()) for text in (utterance.reference, utterance.hypothesis))
    if utterance.language in ("zh", "ja"):
        n_said, n_read = len(utterance.reference), len(utterance.hypothesis)
    return n_read > 1.5 * n_said + 1


def row(name: str, tally: Tally, n_frames: int) -> dict[str, object]:
    errors = score(tally.utterances, ScoreOptions(n_resamples=1000)).overall.mer
    return {
        "mode": name,
        "errors": round(errors.rate or 0.0, 4),
        "low": round(errors.low or 0.0, 3),
        "high": round(errors.high or 0.0, 3),
        "loops": sum(map(is_loop, tally.utterances)),
        "distance": round(sum(tally.distances) / len(tally.distances), 3),
        "divergence": round(sum(tally.divergences) / len(tally.divergences), 4),
        "worst_divergence": round(max(tally.divergences), 3),
        "frames_per_frame": round(tally.n_computed / n_frames, 1),
        "cpu_s_per_s": round(tally.cpu_s / (n_frames / FRAMES_PER_SECOND), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("shared", type=Path)
    parser.add_argument("--part", choices=("dev", "test"), default="test")
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--every", type=float, default=0.5, help="seconds from update to update")
    parser.add_argument("--modes", nargs="*", help="parts of the names of the only modes to measure")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(given.model, device="cpu", dtype=given.dtype)
    modes = {n: m for n, m in MODES.items() if not given.modes or any(part in n for part in given.modes)}
    known = [
        clip
        for clip in clips(given.shared / "data", given.part, with_text=True)
        if len(clip.languages) == 1 and clip.language not in LEFT_OUT
    ]
    tallies = {name: Tally() for name in modes}
    n_frames = 0
    for clip in spread(known, given.clips):
        one = subject(model, clip)
        n_frames += one.n_frames
        for name, mode in modes.items():
            measure(model, one, mode, tallies[name], given.every)
    rows = [row(name, tally, n_frames) for name, tally in tallies.items()]
    print_table(rows)
    about = {"model": given.model, "dtype": given.dtype, "part": given.part, "clips": given.clips}
    print(json.dumps(about | {"audio_s": n_frames / FRAMES_PER_SECOND, "modes": rows}))


def print_table(rows: Sequence[dict[str, object]]) -> None:
    columns = [name for name in rows[0] if name != "mode"]
    print("| encoder sees | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for one in rows:
        print(f"| {one['mode']} | " + " | ".join(str(one[name]) for name in columns) + " |")


if __name__ == "__main__":
    main()
