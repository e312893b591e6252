"""Text and English in one pass: processor seconds and texts, against two passes.

    python -m benchmarks text english ../shared --model base                  # clips
    python -m benchmarks text english ../shared --model base --seconds 90     # recordings of several windows
    python -m benchmarks text english ../shared --model base --seconds 60 --live

Each recording of one language is transcribed once with `with_english`, and in turn once without and once with
the task `translate`. chrF compares the English of both ways. With --live, sessions translate from their
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
from sottovoce.types import SAMPLE_RATE, Final, Samples, Task, Transcript


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


class AudioTranslator(WhisperTranslator):
    """Translates each utterance by encoding its audio again, as a recording. pcm: of the session."""

    def __init__(self, model: Recogniser, pcm: Samples) -> None:
        WhisperTranslator.__init__(self, model)
        self._pcm = pcm

    def translate(self, source: SourceText) -> str:
        decoding, fallback = live_options(source)
        start, end = (
            max(0, round(at_s * SAMPLE_RATE)) for at_s in (source.start - AROUND_S, source.end + AROUND_S)
        )
        options = TranscribeOptions(decoding=decoding, fallback=fallback, condition_on_previous_text=False)
        return self.model.transcribe(self._pcm[start:end], options=options).text


def timed_live(
    model: Recogniser, pcm: Samples, language: str, translator: WhisperTranslator | None
) -> tuple[list[str], list[str], float]:
    """Return the finals of a session in pieces of half a second, their English, and processor seconds."""
    began, texts, english = time.process_time(), [], []
    live = None if translator is None else LiveTranslator(translator, N_NEW_WORDS)
    with model.session(language) as session:
        if translator is not None:
            session.on_window(translator.add)
        for at in range(0, len(pcm) + 1, SAMPLE_RATE // 2):
            piece = pcm[at : at + SAMPLE_RATE // 2]
            events = session.push(piece) if len(piece) else []
            events += session.close() if at + SAMPLE_RATE // 2 > len(pcm) else []
            texts += [event.text for event in events if isinstance(event, Final)]
            if live is not None:
                lines = (line for event in events for line in live.take(event))
                english += [line.text for line in lines if line.is_final]
    return texts, english, time.process_time() - began


def compare_live(model: Recogniser, chosen: list[tuple[str, Samples]]) -> dict[str, object]:
    rows = []
    for language, pcm in chosen:
        _, _, text_s = timed_live(model, pcm, language, None)
        texts, english, one_s = timed_live(model, pcm, language, WhisperTranslator(model))
        again, english_again, two_s = timed_live(model, pcm, language, AudioTranslator(model, pcm))
        scores = sentence_chrf(" ".join(english), [" ".join(english_again)]).score
        rows.append((text_s, one_s, two_s, texts == again, scores, len(pcm) / SAMPLE_RATE))
    text_s, one_s, two_s, same_text, scores, seconds = np.array(rows).T
    return {
        "recordings": len(rows),
        "text alone, s a second": round(float(text_s.sum() / seconds.sum()), 3),
        "with English, one encoding": round(float(one_s.sum() / seconds.sum()), 3),
        "with English, encoded again": round(float(two_s.sum() / seconds.sum()), 3),
        "one / again, median": round(float(np.median(one_s / two_s)), 3),
        "added: one / again, median": round(float(np.median((one_s - text_s) / (two_s - text_s))), 3),
        "equal texts": percent(float(same_text.mean())),
        "chrF, mean": round(float(scores.mean()), 1),
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
