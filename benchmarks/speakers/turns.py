"""Who speaks when: the diarization error rate on made conversations, and words with their right speaker.

    python -m benchmarks speakers turns ../shared                       # voices that report
    python -m benchmarks speakers turns ../shared --part dev            # other voices, to choose settings on
    python -m benchmarks speakers turns ../shared --voices campplus     # another network for voices
    python -m benchmarks speakers turns ../shared --words --model base  # words, of whole clips
    python -m benchmarks speakers turns ../shared --words --channels    # a microphone for each speaker beside

Conversations of one to four speakers are made of recordings of people (`conversations`), and diarized with
the number of speakers given and not. The collar is 0.25 s on either side of every edge; overlapped speech
counts. Words are aligned with what was said; of those that were recognised, the share with the right speaker
is given. The processor time is that of diarization alone, on one thread. Prints a table and one JSON line.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import SequenceMatcher

import torch

from benchmarks.harness.report import add_part, add_shared, benchmark_parser, listed, show_json, show_table
from benchmarks.speakers.conversations import Conversation, made
from benchmarks.speakers.errors import DiarizationErrors, diarization_errors, n_right_speakers
from sottovoce.api import Model, as_whisper, load_model
from sottovoce.audio.io import Recording
from sottovoce.options.transcribe import SpeakerOptions, TranscribeOptions
from sottovoce.speakers.diarize import ClusteringDiarizer, load_speaker_networks, make_diarizer
from sottovoce.speakers.labels import SpeakerLabels
from sottovoce.speakers.networks import SegmentationNetwork, load_segmentation
from sottovoce.text.normalize import plain
from sottovoce.types import SAMPLE_RATE, Segment, Turn, Word

Line = dict[str, object]
Pairs = list[tuple[str, str]]


def told_apart(
    talks: Sequence[Conversation], options: SpeakerOptions, local: SegmentationNetwork
) -> list[Line]:
    """Errors over conversations, how often the number of speakers was found, and what it took."""
    tallies = [Tally(number="given"), Tally(number="found")]
    for talk in talks:
        n_true = len({turn.speaker for turn in talk.turns})
        wishes = (replace(options, n_speakers=n_true), options)
        both, took_s = both_ways(talk, wishes, local)
        for tally, turns in zip(tallies, both, strict=True):
            tally.errors += diarization_errors(talk.turns, turns)
            tally.without_overlap += diarization_errors(talk.turns, turns, with_overlap=False)
            tally.n_right += len({turn.speaker for turn in turns}) == n_true
            tally.took_s += took_s
    seconds = sum(len(talk.samples) for talk in talks) / SAMPLE_RATE
    return [tally.line(len(talks), seconds) for tally in tallies]


def both_ways(
    talk: Conversation, wishes: Sequence[SpeakerOptions], local: SegmentationNetwork
) -> tuple[list[list[Turn]], float]:
    """Turns under each of the options, and the processor seconds of the windows, which all of them share."""
    began = time.process_time()
    networks = local, load_speaker_networks(wishes[0])[1]
    with Recording(talk.samples).open() as reader:
        kept = ClusteringDiarizer(*networks, wishes[0])
        windows = [window for batch in kept.batches(reader) for window in kept.diarize_windows(batch)]
    took_s = time.process_time() - began
    return [ClusteringDiarizer(*networks, wish).cluster(windows) for wish in wishes], took_s


@dataclass
class Tally:
    """Sums over conversations, with the number of speakers given or found."""

    number: str
    errors: DiarizationErrors = field(default_factory=DiarizationErrors)
    without_overlap: DiarizationErrors = field(default_factory=DiarizationErrors)
    n_right: int = 0
    took_s: float = 0.0

    def line(self, n_talks: int, seconds: float) -> Line:
        errors = self.errors
        return {
            "number": self.number,
            "der": errors.rate,
            "der_without_overlap": self.without_overlap.rate,
            **{kind: getattr(errors, kind) / errors.speech for kind in ("missed", "false_alarm", "confused")},
            "number_found": self.n_right / n_talks,
            "minutes": seconds / 60,
            "processor_s_per_s": self.took_s / seconds,
        }


def words_told(model: Model, talks: Sequence[Conversation], options: SpeakerOptions) -> list[Line]:
    """Of the words that were recognised: the share that has its speaker, their number given and found.

    Every conversation is transcribed once: who speaks changes no word.
    """
    heard = [list(model.transcribe(talk.samples, language="en", word_timestamps=True)) for talk in talks]
    lines: list[Line] = []
    for is_given in (True, False):
        result = []
        for talk, segments in zip(talks, heard, strict=True):
            n_true = len({turn.speaker for turn in talk.turns})
            wish = replace(options, n_speakers=n_true if is_given else None)
            labels = SpeakerLabels(make_diarizer(wish).turns(Recording(talk.samples)))
            result.append([part for segment in segments for part in labels.split(segment)])
        lines.append(words_line("given" if is_given else "found", talks, result))
    return lines


def words_by_channel(model: Model, talks: Sequence[Conversation]) -> list[Line]:
    """The same where everybody has a microphone, by its level and transcribed apart."""
    wishes = (
        TranscribeOptions(channels="energy", word_timestamps=True),
        TranscribeOptions(channels="apart", mode="vad", word_timestamps=True),
    )
    lines: list[Line] = []
    for wish in wishes:
        result = [list(model.transcribe(talk.channels, language="en", options=wish)) for talk in talks]
        lines.append(words_line(f"channels {wish.channels}", talks, result))
    return lines


def words_line(number: str, talks: Sequence[Conversation], result: Sequence[Sequence[Segment]]) -> Line:
    n_said = n_matched = n_right = 0
    for talk, segments in zip(talks, result, strict=True):
        said = said_in(talk)
        pairs = matched(said, bare(in_order(segments)))
        n_said += len(said)
        n_matched += len(pairs)
        n_right += n_right_speakers(pairs)
    shares = {"recognised": n_matched / n_said, "right_speaker": n_right / max(1, n_matched)}
    return {"number": number, "words": n_said, **shares}


def in_order(segments: Sequence[Segment]) -> list[Word]:
    """Words of a transcript by their beginnings: segments of two channels may overlap."""
    words = (word for segment in segments for word in segment.words or ())
    return sorted(words, key=lambda word: word.start)


def said_in(talk: Conversation) -> Pairs:
    """Normalised words of a conversation with their true speakers."""
    return [(item, name) for word, name in talk.words for item in plain(word).split()]


def bare(words: Sequence[Word]) -> Pairs:
    """Normalised words with their speakers, "" for none."""
    return [(item, word.speaker or "") for word in words for item in plain(word.word).split()]


def matched(said: Pairs, heard: Pairs) -> Pairs:
    """The true speaker and the one found of every word that was recognised."""
    blocks = SequenceMatcher(None, [word for word, _ in said], [word for word, _ in heard], autojunk=False)
    return [
        (said[block.a + i][1], heard[block.b + i][1])
        for block in blocks.get_matching_blocks()
        for i in range(block.size)
    ]


def shown(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if name == "minutes":
        return f"{value:.1f}"
    return f"{value:.3f}" if "_s_" in name else f"{100 * value:.1f} %"


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser)
    parser.add_argument("--speakers", type=listed(int), default=[1, 2, 3, 4], help="numbers of them")
    parser.add_argument("--conversations", type=int, default=8, help="of each number of speakers")
    parser.add_argument("--voices", choices=["ge2e", "campplus"], default="ge2e")
    parser.add_argument("--model", default="base")
    parser.add_argument("--words", action="store_true", help="look at words rather than at turns")
    parser.add_argument("--channels", action="store_true", help="words: a microphone for each speaker too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    local = load_segmentation()
    options = SpeakerOptions(voices=given.voices)
    model = (
        as_whisper(load_model(given.model, device="cpu", dtype="float32"), "words") if given.words else None
    )
    lines: list[Line] = []
    for n_speakers in given.speakers:
        talks = made(given.shared / "data", given.part, n_speakers, given.conversations, whole=given.words)
        new = told_apart(talks, options, local) if model is None else words_told(model, talks, options)
        if model is not None and given.channels:
            new += words_by_channel(model, talks)
        for line in new:
            lines.append({"speakers": n_speakers, **line})
            print(lines[-1], flush=True)
    show_table([*lines[0]], [[shown(name, line[name]) for name in lines[0]] for line in lines])
    show_json("speakers turns", {"part": given.part, "options": asdict(options), "lines": lines})
