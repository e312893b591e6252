"""Text and English in one pass: processor seconds and texts, against two passes.

    python -m benchmarks text english ../shared --model base                  # clips
    python -m benchmarks text english ../shared --model base --seconds 90     # recordings of several windows

Each recording of one language is transcribed once with `with_english`, and in turn once without and once with
the task `translate`. chrF compares the English of both ways.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.harness.clips import Clip, clips, joined, spread
from benchmarks.harness.report import add_part, add_shared, benchmark_parser, percent, show_json, show_table
from sottovoce import load_model
from sottovoce.audio.io import load_audio
from sottovoce.options.decoding import BEAM_SIZE
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.recogniser import Recogniser
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
    found = model.transcribe(
        pcm, language=language, task=task, beam_size=BEAM_SIZE, options=options
    ).collect()
    return found, time.process_time() - began


def main() -> None:
    parser = benchmark_parser(__doc__)
    add_shared(parser)
    add_part(parser)
    parser.add_argument("--model", default="base")
    parser.add_argument("--languages", default="de,es,fr,it,nl,pl,pt,ru")
    parser.add_argument("--clips", type=int, default=40, help="most recordings")
    parser.add_argument("--seconds", type=float, help="clips of a language joined to this length")
    given = parser.parse_args()
    languages = given.languages.split(",")
    found = [clip for clip in clips(given.shared / "data", given.part) if len(clip.languages) == 1]
    from sacrebleu import sentence_chrf  # of the extra `reference`

    model = load_model(given.model)
    rows: list[tuple[float, ...]] = []
    for language, pcm in recordings(
        [clip for clip in found if clip.language in languages], given.clips, given.seconds
    ):
        if not rows:
            timed(model, pcm, language, "transcribe")  # weights are mapped at their first use
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
    figures = {
        "recordings": len(rows),
        "one pass, s a second": round(float(share[0]), 3),
        "text alone": round(float(share[1]), 3),
        "English alone": round(float(share[2]), 3),
        "one pass / two, median": round(float(np.median(ratio)), 3),
        "equal texts": percent(float(same_text.mean())),
        "equal English": percent(float(same_english.mean())),
        "chrF, mean": round(float(scores.mean()), 1),
    }
    show_table([*figures], [list(map(str, figures.values()))])
    show_json("text english", {"model": given.model, "part": given.part, "seconds": given.seconds, **figures})


if __name__ == "__main__":
    main()
