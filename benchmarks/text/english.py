"""Text and English in one pass: processor seconds and texts, against two passes.

    python -m benchmarks text english ../shared --model base                  # clips
    python -m benchmarks text english ../shared --model base --seconds 90     # recordings of several windows
    python -m benchmarks text english ../shared --model base --seconds 60 --live

Each recording of one language is transcribed once with `with_english`, and in turn once without and once with
the task `translate`. chrF compares the English of both ways. With --live, a session translates from its
encoder states and, in turn, from the audio of each utterance, which is encoded again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from sacrebleu import sentence_chrf  # of the extra `reference`

from benchmarks.harness.clips import Clip, clips, joined, spread
from benchmarks.harness.report import add_part, add_shared, benchmark_parser, percent, show_json, show_table
from sottovoce import load_model
from sottovoce.audio.io import load_audio
from sottovoce.options.decoding import BEAM_SIZE
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.recogniser import Recogniser
from sottovoce.translation.live_translator import LiveTranslator, SourceText
from sottovoce.translation.whisper_translate import AROUND_S, N_NEW_WORDS, WhisperTranslator, live_options
from sottovoce.types import SAMPLE_RATE, Samples, Task, Transcript


def recordings(chosen: list[Clip], n_most: int, seconds: float | None) -> Iterator[tuple[str, Samples]]:
    if seconds is None:
        yield from ((clip.language, load_audio(clip.file)) for clip in spread(chosen, n_most))
        return
    for language in list(dict.fromkeys(clip.language for clip in chosen))[:n_most]:
        yield language, joined([clip for clip in chosen if clip.language == language], seconds)


def timed(
    model: Recogniser, pcm: Samples, language: str, task: Task, *, with_english: bool = False
) -> tuple[Transcript, float]:
    began = time.process_time()
    options = TranscribeOptions(with_english=with_english)
    result = model.transcribe(
        pcm, language=language, task=task, beam_size=BEAM_SIZE, options=options
    ).collect()
    return result, time.process_time() - began


class PairedTranslator(WhisperTranslator):
    """Translates each text of a session from its encoder states and, in turn, from its audio, encoded again.

    pcm: of the session. rows: processor seconds of both, and both texts of each whole utterance.
    """

    def __init__(self, model: Recogniser, pcm: Samples) -> None:
        WhisperTranslator.__init__(self, model)
        self._pcm = pcm
        self.rows: list[tuple[float, float]] = []
        self.wholes: list[tuple[str, str]] = []

    def translate(self, source: SourceText) -> str:
        began = time.process_time()
        text = WhisperTranslator.translate(self, source)
        middle = time.process_time()
        decoding, fallback = live_options(source)
        options = TranscribeOptions(decoding=decoding, fallback=fallback, condition_on_previous_text=False)
        start, end = (round(SAMPLE_RATE * at_s) for at_s in (source.start - AROUND_S, source.end + AROUND_S))
        again = self.model.transcribe(self._pcm[max(0, start) : end], options=options).text
        self.rows.append((middle - began, time.process_time() - middle))
        if source.is_whole:
            self.wholes.append((text, again))
        return text


def compare_live(model: Recogniser, chosen: list[tuple[str, Samples]]) -> dict[str, object]:
    rows, scores, seconds = [], [], 0.0
    for language, pcm in chosen:
        translator = PairedTranslator(model, pcm)
        live = LiveTranslator(translator, N_NEW_WORDS)
        session = model.session(language)
        session.on_window(translator.add)
        for at in range(0, len(pcm), SAMPLE_RATE // 2):
            for event in session.push(pcm[at : at + SAMPLE_RATE // 2]):
                list(live.take(event))
        for event in session.close():
            list(live.take(event))
        rows += translator.rows
        texts, again = (" ".join(part) for part in zip(*translator.wholes, strict=True))
        scores.append(sentence_chrf(texts, [again]).score)
        seconds += len(pcm) / SAMPLE_RATE
    states_s, audio_s = np.array(rows).T
    return {
        "recordings": len(chosen),
        "translations": len(rows),
        "from states, s a second": round(float(states_s.sum() / seconds), 3),
        "from audio": round(float(audio_s.sum() / seconds), 3),
        "states / audio, median": round(float(np.median(states_s / audio_s)), 2),
        "chrF of finals, mean": round(float(np.mean(scores)), 1),
    }


def compare(model: Recogniser, chosen: list[tuple[str, Samples]]) -> dict[str, object]:
    rows: list[tuple[float, ...]] = []
    for language, pcm in chosen:
        both, both_s = timed(model, pcm, language, "transcribe", with_english=True)
        text, text_s = timed(model, pcm, language, "transcribe")
        english, english_s = timed(model, pcm, language, "translate")
        of_both = " ".join(segment.translation or "" for segment in both.segments).split()
        scores = sentence_chrf(" ".join(of_both), [english.text]).score
        rows.append(
            (
                both_s,
                text_s,
                english_s,
                both.text == text.text,
                of_both == english.text.split(),
                scores,
                len(pcm),
            )
        )
    both_s, text_s, english_s, same_text, same_english, scores, n_samples = np.array(rows).T
    share = np.array([both_s, text_s, english_s]).sum(axis=1) / (n_samples.sum() / SAMPLE_RATE)
    ratio = both_s / (text_s + english_s)
    return {
        "recordings": len(rows),
        "one pass, s a second": round(float(share[0]), 3),
        "text alone": round(float(share[1]), 3),
        "English alone": round(float(share[2]), 3),
        "one pass / two, median": round(float(np.median(ratio)), 3),
        "equal texts": percent(float(same_text.mean())),
        "equal English": percent(float(same_english.mean())),
        "chrF, mean": round(float(scores.mean()), 1),
    }


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--languages", default="de,es,fr,it,nl,pl,pt,ru")
    parser.add_argument("--clips", type=int, default=40, help="most recordings")
    parser.add_argument("--seconds", type=float, help="clips of a language joined to this length")
    parser.add_argument("--live", action="store_true", help="live sessions, in place of recordings")
    given = parser.parse_args()
    languages = given.languages.split(",")
    result = [clip for clip in clips(given.shared / "data", given.part) if len(clip.languages) == 1]
    result = [clip for clip in result if clip.language in languages]
    chosen = list(recordings(result, given.clips, given.seconds))
    model = load_model(given.model)
    timed(model, chosen[0][1], chosen[0][0], "transcribe")  # weights are mapped at their first use
    figures = compare_live(model, chosen) if given.live else compare(model, chosen)
    show_table([*figures], [list(map(str, figures.values()))])
    settings = {"model": given.model, "part": given.part, "seconds": given.seconds, "live": given.live}
    show_json("text english", {**settings, **figures})


if __name__ == "__main__":
    main()
