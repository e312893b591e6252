"""What an encoder of growing audio may leave out: errors, distance and work by mode, on people's speech.

    python -m benchmarks live encoder ../shared                      # the reported clips
    python -m benchmarks live encoder ../shared --part dev --clips 20    # others, to choose numbers on
    python -m benchmarks live encoder ../shared --part dev --anchors     # what thin padding must have

Every clip is one utterance that grows by `--every` seconds and is read once at its end, as a whole, without
timestamps, greedily, in its own language. Beside errors and loops (half as many words again as were said) the
table has how far the encoder's states and the decoder's choices (its probabilities along the text read from
the full window) are from those of the full window, encoder frames that were computed for a frame of audio,
and processor seconds a second of audio. Windows computed whole do not depend on earlier updates: only
the last one is, and the cost of the others follows from their frames. Prints a table and one JSON line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf

import torch
from torch import Tensor

from benchmarks.harness.arguments import add_part, add_shared, benchmark_parser
from benchmarks.harness.clips import Clip, clips, spread
from benchmarks.harness.tables import show_json
from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel
from sottovoce.backends.base import EXACT, EncoderMode, EncoderState, IncrementalResult, IncrementalWindow
from sottovoce.decoding.decode import decode
from sottovoce.evaluation.wer import ScoredUtterance, ScoreOptions, score
from sottovoce.models.dims import BASE_ANCHORS, NEAR_FRAMES
from sottovoce.options.decoding import DecodingOptions
from sottovoce.types import FRAMES_PER_SECOND, SAMPLE_RATE

LEFT_OUT = ("hi",)
"""Languages in which base errs in more than every second word whatever the encoder sees."""
LONGEST_S = 29.0
LONGEST_TEXT = 120
"""Tokens: a loop need not be read to its end."""


def dense(tail_s: float, recompute_s: float | None = None, refresh_s: float = 2.0) -> EncoderMode:
    return EncoderMode(tail_s=tail_s, recompute_s=recompute_s, refresh_s=refresh_s)


def thin(stride: int, recompute_s: float | None = None, refresh_s: float = 0.0) -> EncoderMode:
    return EncoderMode(None, stride, BASE_ANCHORS, recompute_s=recompute_s, refresh_s=refresh_s)


MODES = {
    "30 s": EXACT,
    "3 s of padding": dense(3.0),
    "5 s of padding": dense(5.0),
    "8 s of padding": dense(8.0),
    "thin padding (one frame of 10)": thin(10),
    "thin padding (20)": thin(20),
    "thin padding (30)": thin(30),
    "thin padding (60)": thin(60),
    "thin padding (150)": thin(150),
    "newest 2.5 s, 5 s each time": dense(5.0, 2.5, 0.0),
    "newest 2.5 s, 5 s at every 2 s": dense(5.0, 2.5),
    "newest 4.5 s, 5 s at every 2 s": dense(5.0, 4.5),
    "newest 2.5 s, 8 s at every 4 s": dense(8.0, 2.5, 4.0),
    "newest 2.5 s, thin (30) each time": thin(30, 2.5),
    "newest 2.0 s, thin (30) each time": thin(30, 2.0),
    "newest 3.5 s, thin (30) each time": thin(30, 3.5),
    "newest 3.5 s, thin (30) each time, any change of level anew": replace(thin(30, 3.5), level_drift=0.0),
    "newest 3.5 s, thin (30) each time, no change of level anew": replace(thin(30, 3.5), level_drift=inf),
    "newest 4.5 s, thin (30) each time": thin(30, 4.5),
    "newest 3.5 s, thin (20) each time": thin(20, 3.5),
    "newest 2.5 s, thin (30) at every 1 s": thin(30, 2.5, 1.0),
    "newest 2.5 s, thin (60) each time": thin(60, 2.5),
    "newest 2.5 s, thin (150) each time": thin(150, 2.5),
    "newest 2.0 s, thin (60) each time": thin(60, 2.0),
    "newest 1.5 s, thin (60) each time": thin(60, 1.5),
    "newest 1.0 s, thin (60) each time": thin(60, 1.0),
}
IS_ANCHOR = 0.6
"""Of the median length of a state, once normalised: what lies below is rested on."""
LEAST_SHARE = 0.2
LEAST_CLIPS = 3


def anchors(model: Model, chosen: Sequence[Clip]) -> list[int]:
    """Frames that attention rests on in a fifth of the clips where they are padding, and in three clips."""
    n_full = model.backend.dims.n_audio_ctx
    rested, padded = torch.zeros(n_full), torch.zeros(n_full)
    for clip in chosen:
        mel = heard(model, clip)
        (grown,) = model.backend.encode_incremental([IncrementalWindow(mel, EXACT)])
        lengths = grown.encoded.states[0].float().norm(dim=-1)
        is_padding = torch.arange(n_full) >= mel.shape[1] // 2 + NEAR_FRAMES
        rested += is_padding & (lengths < IS_ANCHOR * lengths.median())
        padded += is_padding
    often = (rested >= LEAST_SHARE * padded) & (rested >= LEAST_CLIPS)
    return often.nonzero()[:, 0].tolist()


@dataclass(slots=True)
class Tally:
    """What a mode came to over all clips."""

    utterances: list[ScoredUtterance] = field(default_factory=list)
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
    text: str
    log_probs: Tensor

    @property
    def n_frames(self) -> int:
        return self.log_mel.shape[1] // 2


def heard(model: Model, clip: Clip) -> Tensor:
    """Log-mel of a clip as openai-whisper sees it: the last frames look into silence."""
    audio = load_audio(clip.file)[: int(LONGEST_S * SAMPLE_RATE)]
    mel = log_mel(audio, model.backend.dims.n_mels, padding_samples=SAMPLE_RATE)
    return mel[:, : len(audio) // 320 * 2]


def subject(model: Model, clip: Clip) -> Subject:
    """A clip, read from the full window."""
    mel = heard(model, clip)
    (grown,) = model.backend.encode_incremental([IncrementalWindow(mel, EXACT)])
    tokens, text = read(model, clip, grown)
    states = grown.encoded.states[:, : mel.shape[1] // 2].float()
    return Subject(clip, mel, states, tokens, text, along(model, clip, grown, tokens))


def read(model: Model, clip: Clip, grown: IncrementalResult) -> tuple[tuple[int, ...], str]:
    options = DecodingOptions(language=clip.language, without_timestamps=True, sample_len=LONGEST_TEXT)
    result = decode(model.backend, model.tokenizer, grown.encoded, [options])[0]
    return result.tokens, result.text


@torch.inference_mode()
def along(model: Model, clip: Clip, grown: IncrementalResult, tokens: Sequence[int]) -> Tensor:
    """Log-probabilities (n + 1, n_vocab) after each token of a text, the end included."""
    names = model.tokenizer.with_language(clip.language)
    prompt = [names.sot, names.language_token(clip.language), names.transcribe, names.no_timestamps]
    read = torch.tensor([[*prompt, *tokens]], device=model.backend.device)
    state = model.backend.start(grown.encoded)
    said = model.backend.step(read, state, positions=range(len(prompt) - 1, read.shape[1]))
    return said.logits[0].log_softmax(-1)


def last_update(
    model: Model, mel: Tensor, mode: EncoderMode, every: int
) -> tuple[IncrementalResult, int, float]:
    """The last of a window's updates; frames computed and processor seconds of all of them."""
    lengths = [*range(every, mel.shape[1] // 2, every), mel.shape[1] // 2]
    if mode.recompute_s is None:
        n_full = model.backend.dims.n_audio_ctx
        n_all = sum(n + mode.padding(n, n_full).n_frames for n in lengths)
        start = time.process_time()
        (grown,) = model.backend.encode_incremental([IncrementalWindow(mel, mode)])
        return grown, n_all, (time.process_time() - start) * n_all / grown.n_computed
    state: EncoderState | None = None
    n_all = 0
    start = time.process_time()
    for length in lengths:
        (grown,) = model.backend.encode_incremental([IncrementalWindow(mel[:, : 2 * length], mode, state)])
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
    same = log_probs.argmax(dim=-1).tolist() == [*one.tokens, model.tokenizer.eot]
    text = one.text if same else read(model, one.clip, grown)[1]
    tally.utterances.append(ScoredUtterance(one.clip.text or "", text, one.clip.language))
    tally.distances.append(float(apart))
    tally.divergences.append(float(divergence))
    tally.n_computed += n_computed
    tally.cpu_s += cpu_s


def is_loop(utterance: ScoredUtterance) -> bool:
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
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser)
    parser.add_argument("--clips", type=int, default=40)
    parser.add_argument("--model", default="base")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--every", type=float, default=0.5, help="seconds from update to update")
    parser.add_argument("--least", type=float, default=0.0, help="leave out clips of fewer seconds")
    parser.add_argument("--modes", nargs="*", help="parts of the names of the only modes to measure")
    parser.add_argument("--anchors", action="store_true", help="find the frames that attention rests on")
    given = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(given.model, device="cpu", dtype=given.dtype)
    modes = {n: m for n, m in MODES.items() if not given.modes or any(part in n for part in given.modes)}
    known = [
        clip
        for clip in clips(given.shared / "data", given.part, with_text=True)
        if len(clip.languages) == 1 and clip.language not in LEFT_OUT
    ]
    chosen = spread(known, given.clips)
    if given.least:
        chosen = [clip for clip in chosen if len(load_audio(clip.file)) >= given.least * SAMPLE_RATE]
    if given.anchors:
        print(anchors(model, chosen))
        return
    tallies = {name: Tally() for name in modes}
    n_frames = 0
    for clip in chosen:
        one = subject(model, clip)
        n_frames += one.n_frames
        for name, mode in modes.items():
            measure(model, one, mode, tallies[name], given.every)
            last = tallies[name]
            print(f"{clip.name} {name}: {last.divergences[-1]:.4f} nats a token", file=sys.stderr)
    rows = [row(name, tally, n_frames) for name, tally in tallies.items()]
    print_table(rows)
    about = {"model": given.model, "dtype": given.dtype, "part": given.part, "clips": given.clips}
    show_json("live encoder", about | {"audio_s": n_frames / FRAMES_PER_SECOND, "modes": rows})


def print_table(rows: Sequence[dict[str, object]]) -> None:
    columns = [name for name in rows[0] if name != "mode"]
    print("| encoder sees | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for one in rows:
        print(f"| {one['mode']} | " + " | ".join(str(one[name]) for name in columns) + " |")
