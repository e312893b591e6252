"""Do the same weights give the same text and the same word times as openai-whisper?

    python benchmarks/parity.py ../shared                       # 150 clips, greedy and beam 5, float32
    python benchmarks/parity.py ../shared --clips 30 --model path/to/tiny.pt --recordings 30

The first 30 s of every clip are decoded by both, greedy and with beam search, and the words of the greedy
text are timed. Log-mel, language detection, decoding, segments and words are each program's own. A few
clips go through the whole of `transcribe`, with seeking and conditioning on earlier text. Clips are taken
evenly from every set. Prints a table by set, every difference with its reason, and one JSON line: a
difference whose readings are equally probable within float32 rounding is a tie, any other is unexplained.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from references import openai_model

from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, normalize, pad_or_trim
from sottovoce.audio.recording import Recording
from sottovoce.backends.torch import TorchBackend
from sottovoce.decoding.decode import DecodingResult, decode
from sottovoce.decoding.fallback import FallbackOptions
from sottovoce.decoding.options import DecodingOptions
from sottovoce.models.load import load_checkpoint
from sottovoce.offline.cut import WindowCut, cut_window
from sottovoce.offline.longform import transcribe
from sottovoce.offline.options import APPENDED, PREPENDED, TranscribeOptions
from sottovoce.offline.words import WindowText, WordRules, align_windows, place_words
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import SAMPLE_RATE, EncoderOutput, Features, Samples, Word

if TYPE_CHECKING:
    import whisper

SETS = (
    *("kathleen-en", "kerstin-de", "smoke-multi", "librispeech-mini", "ljspeech-mini"),
    *("commonvoice-en-mini", "voxlingua107-dev"),
)
WINDOW_S, WINDOW_FRAMES = 30, 3000
TOLERANCE_S = 0.02
TIE = 1e-4
"""Difference of the mean log-probabilities that float32 rounding can make."""
BATCH = 8


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording of the data folder."""

    name: str
    file: Path

    @property
    def group(self) -> str:
        return self.name.split("/")[0]


@dataclass(slots=True)
class Tally:
    """Clips and words of one set; recordings went through the whole of `transcribe`."""

    clips: int = 0
    greedy: int = 0
    beam: int = 0
    recordings: int = 0
    recordings_same: int = 0
    words: int = 0
    words_within: int = 0
    worst_s: float = 0.0

    def add(self, other: Tally) -> None:
        """Count another set too."""
        worst = max(self.worst_s, other.worst_s)
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.worst_s = worst


@dataclass(frozen=True, slots=True)
class Difference:
    """A clip on which the two programs disagree."""

    clip: str
    mode: str
    reason: str
    ours: str
    theirs: str


@dataclass(slots=True)
class Report:
    """All that was found."""

    sets: dict[str, Tally] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Engines:
    """The two programs with the same weights."""

    backend: TorchBackend
    tokenizer: Tokenizer
    reference: whisper.model.Whisper
    sample_len: int | None

    def mels(self, audio: Sequence[Samples]) -> tuple[torch.Tensor, torch.Tensor]:
        """The first windows, by us and by them: (B, n_mels, 3000) each."""
        from whisper.audio import log_mel_spectrogram

        padding, n_mels = WINDOW_S * SAMPLE_RATE, self.backend.dims.n_mels
        ours = [pad_or_trim(normalize(log_mel(one, n_mels, padding_samples=padding))) for one in audio]
        theirs = [log_mel_spectrogram(one, n_mels, padding=padding)[:, :WINDOW_FRAMES] for one in audio]
        return torch.stack(ours), torch.stack(theirs)

    def our_words(self, encoded: EncoderOutput, results: Sequence[DecodingResult]) -> list[list[Word]]:
        """Words of every window."""
        eot = self.tokenizer.eot
        tokenizers = [self.tokenizer.with_language(result.language) for result in results]
        cuts = [_cut(tokenizer, result) for tokenizer, result in zip(tokenizers, results, strict=True)]
        texts = [
            WindowText(tokenizer, cut.text_tokens(eot), WINDOW_FRAMES)
            for tokenizer, cut in zip(tokenizers, cuts, strict=True)
        ]
        rules = WordRules(PREPENDED, APPENDED)
        timed = [
            place_words(cut.segments, words, rules, eot=eot)
            for cut, words in zip(cuts, align_windows(self.backend, encoded, texts), strict=True)
        ]
        return [[word for segment in window for word in segment.words or ()] for window in timed]

    def their_words(self, mel: torch.Tensor, result: DecodingResult) -> list[Word]:
        """Words of one window whose tokens are those of `result`."""
        from whisper.timing import add_word_timestamps
        from whisper.tokenizer import get_tokenizer

        tokenizer = self.tokenizer.with_language(result.language)
        segments = [
            {"seek": 0, "start": one.start, "end": one.end, "tokens": list(one.tokens)}
            for one in _cut(tokenizer, result).segments
        ]
        theirs = get_tokenizer(
            True,
            num_languages=self.reference.num_languages,
            language=result.language,
            task="transcribe",
        )
        add_word_timestamps(
            segments=segments,
            model=self.reference,
            tokenizer=theirs,
            mel=mel,
            num_frames=WINDOW_FRAMES,
            last_speech_timestamp=0.0,
        )
        return _words(segments)

    def transcripts(self, samples: Samples, language: str) -> tuple[str, str]:
        """The text of a whole recording, by us and by them."""
        options = TranscribeOptions(
            decoding=DecodingOptions(language=language, sample_len=self.sample_len),
            fallback=FallbackOptions(temperatures=(0.0,)),
        )
        with Recording(samples) as recording:
            ours = "".join(one.text for one in transcribe(self.backend, self.tokenizer, recording, options))
        theirs = self.reference.transcribe(
            samples, language=language, temperature=0.0, fp16=False, sample_len=self.sample_len
        )
        return ours, theirs["text"]


def choose_clips(data: Path, n_clips: int) -> list[Clip]:
    """Clips spread evenly over the sets, and evenly within each set."""
    rows = [json.loads(line) for line in (data / "manifest.jsonl").read_text("utf-8").splitlines()]
    by_set: dict[str, list[Clip]] = {name: [] for name in SETS}
    for row in rows:
        clips = by_set.get(row["id"].split("/")[0])
        if clips is not None and row.get("file"):
            clips.append(Clip(row["id"], data / row["file"]))
    chosen: list[Clip] = []
    groups = sorted(by_set.values(), key=len)
    for index, clips in enumerate(groups):
        share = min(len(clips), -(-(n_clips - len(chosen)) // (len(groups) - index)))
        chosen.extend(clips[i * len(clips) // share] for i in range(share))
    return chosen


def compare_windows(engines: Engines, clips: Sequence[Clip], beam_size: int, report: Report) -> None:
    """Decode the first windows of a batch of clips with both programs."""
    import whisper

    ours, theirs = engines.mels([load_audio(clip.file, duration_s=WINDOW_S) for clip in clips])
    encoded = engines.backend.encode(Features(ours, (WINDOW_FRAMES,) * len(clips)))
    for mode, beam in (("greedy", None), ("beam", beam_size)):
        wish = {"beam_size": beam, "sample_len": engines.sample_len}
        options = [DecodingOptions(beam_size=beam, sample_len=engines.sample_len)] * len(clips)
        found = decode(engines.backend, engines.tokenizer, encoded, options)
        asked = whisper.DecodingOptions(fp16=False, **wish)
        # openai-whisper's beam search takes one window at a time.
        expected = [engines.reference.decode(mel, asked) for mel in theirs]
        same = [
            _same_text(clip, mode, *pair, report) for clip, *pair in zip(clips, found, expected, strict=True)
        ]
        if mode == "greedy":
            for index, words in enumerate(engines.our_words(encoded, found)):
                if same[index]:
                    others = engines.their_words(theirs[index], found[index])
                    _count_words(clips[index], words, others, report)


def compare_recording(engines: Engines, clip: Clip, language: str, report: Report) -> None:
    """Transcribe a whole clip with both programs."""
    tally = report.sets.setdefault(clip.group, Tally())
    tally.recordings += 1
    ours, theirs = engines.transcripts(load_audio(clip.file), language)
    if ours == theirs:
        tally.recordings_same += 1
    else:
        report.differences.append(Difference(clip.name, "recording", "unexplained", ours, theirs))


def _same_text(
    clip: Clip, mode: str, ours: DecodingResult, theirs: whisper.DecodingResult, report: Report
) -> bool:
    tally = report.sets.setdefault(clip.group, Tally())
    same = ours.text == theirs.text and ours.language == theirs.language
    if mode == "greedy":
        tally.clips += 1
        tally.greedy += same
    else:
        tally.beam += same
    if not same:
        tied = abs(ours.avg_logprob - theirs.avg_logprob) < TIE
        reason = "tie" if tied else "unexplained"
        report.differences.append(Difference(clip.name, mode, reason, ours.text, theirs.text))
    return same


def _count_words(clip: Clip, ours: Sequence[Word], theirs: Sequence[Word], report: Report) -> None:
    if [word.word for word in ours] != [word.word for word in theirs]:
        cuts = ["|".join(word.word for word in words) for words in (ours, theirs)]
        reason = "broken UTF-8, which openai-whisper loses" if "\ufffd" in cuts[0] else "unexplained"
        report.differences.append(Difference(clip.name, "words", reason, *cuts))
        return
    tally = report.sets[clip.group]
    for mine, other in zip(ours, theirs, strict=True):
        apart = max(abs(mine.start - other.start), abs(mine.end - other.end))
        tally.words += 1
        tally.words_within += apart <= TOLERANCE_S + 1e-6
        tally.worst_s = max(tally.worst_s, apart)


def _cut(tokenizer: Tokenizer, result: DecodingResult) -> WindowCut:
    return cut_window(result.tokens, tokenizer, seek=0, n_frames=WINDOW_FRAMES)


def _words(segments: Sequence[dict[str, list[dict[str, float | str]]]]) -> list[Word]:
    return [
        Word(str(word["word"]), float(word["start"]), float(word["end"]), float(word["probability"]))
        for segment in segments
        for word in segment["words"]
    ]


def rows(report: Report) -> Iterator[tuple[str, Tally]]:
    """The sets, and their sum."""
    total = Tally()
    for name, tally in report.sets.items():
        total.add(tally)
        yield name, tally
    yield "all", total


def show(report: Report, model: str, wall_s: float) -> None:
    """Print the table, the differences and the JSON line."""
    print(
        f"{'set':22}{'clips':>7}{'greedy':>8}{'beam':>7}{'whole':>9}{'words':>8}{'<=20 ms':>9}{'worst s':>9}"
    )
    for name, one in rows(report):
        whole = f"{one.recordings_same}/{one.recordings}"
        print(
            f"{name:22}{one.clips:7}{one.greedy:8}{one.beam:7}{whole:>9}"
            f"{one.words:8}{one.words_within:9}{one.worst_s:9.2f}"
        )
    for difference in report.differences:
        print(f"{difference.clip} {difference.mode}: {difference.reason}")
        print(f"  ours   {difference.ours}\n  theirs {difference.theirs}")
    reasons = [{"clip": d.clip, "mode": d.mode, "reason": d.reason} for d in report.differences]
    line = {"benchmark": "parity", "model": model, **asdict(list(rows(report))[-1][1])}
    line |= {"differences": reasons, "wall_s": round(wall_s), "torch": torch.__version__}
    print(json.dumps(line | {"threads": torch.get_num_threads()}))


def load_engines(model: str, sample_len: int | None) -> Engines:
    """Both programs with a model's weights in float32 on the CPU."""
    checkpoint = load_checkpoint(model)
    backend = TorchBackend.from_checkpoint(checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        reference = openai_model(checkpoint, Path(folder))
    return Engines(backend, Tokenizer.for_model(checkpoint.dims.n_vocab), reference, sample_len)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shared", type=Path, help="folder that holds data/manifest.jsonl")
    parser.add_argument("--model", default="nano")
    parser.add_argument("--clips", type=int, default=150)
    parser.add_argument("--recordings", type=int, default=10, help="clips for the whole of transcribe")
    parser.add_argument("--beam-size", type=int, default=5)
    parser.add_argument("--sample-len", type=int, help="tokens a window; the model's 224 by default")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(arguments.threads)
    engines, report, began = (
        load_engines(arguments.model, arguments.sample_len),
        Report(),
        time.perf_counter(),
    )
    clips = choose_clips(arguments.shared / "data", arguments.clips)
    for first in range(0, len(clips), BATCH):
        compare_windows(engines, clips[first : first + BATCH], arguments.beam_size, report)
        print(f"{first + BATCH} clips, {len(report.differences)} differences", file=sys.stderr, flush=True)
    for index in range(arguments.recordings):
        compare_recording(engines, clips[index * len(clips) // arguments.recordings], "en", report)
    show(report, arguments.model, time.perf_counter() - began)


if __name__ == "__main__":
    main()
