"""Files are read language by language, by default too, and nothing is lost or moved by that."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import Recording, load_audio
from sottovoce.audio.mel import RecordingFeatures
from sottovoce.audio.vad import SpeechFinder, speech_segments
from sottovoce.evaluation.scores import FoundSwitch, score_switches
from sottovoce.language.probe import ProbedLanguage
from sottovoce.offline.languages import (
    SILENCE,
    LanguageFollower,
    TextLikelihood,
    WindowLanguages,
    with_silence,
)
from sottovoce.offline.pipeline import SeekWindows
from sottovoce.offline.resume import FollowerState, ProbedPiece, SeekPlace, TranscriptionState
from sottovoce.offline.transcriber import Transcriber
from sottovoce.offline.windows import PIECE_VAD, SpeechSpan, Window, pieces_between
from sottovoce.options.decoding import VadOptions
from sottovoce.options.transcribe import Mode, TranscribeOptions
from sottovoce.runtime.calls import DirectRuntime, EncodeCall
from sottovoce.types import Segment
from tests.runtime.noting import Noting

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
MIXED = CLIPS / "mixed.flac"
LANGUAGES = ["en", "de", "es", "fr"]
TRUTH = [
    (span["start"], span["end"], span["language"])
    for span in json.loads((CLIPS / "manifest.jsonl").read_text("utf-8").splitlines()[-1])["segments"]
]


def languages(segments: Sequence[Segment]) -> list[str]:
    """Of segments, each once in a row."""
    return [
        segment.language
        for at, segment in enumerate(segments)
        if at == 0 or segment.language != segments[at - 1].language
    ]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("mode", "batch_size", "language"),
    [("seek", 1, None), ("seek", 1, "en,de,es,fr"), ("vad", 4, None)],
)
def test_every_language_is_read_at_its_own_time(
    model: Model, mode: Mode, batch_size: int, language: str | None
) -> None:
    options = TranscribeOptions(mode=mode, batch_size=batch_size)
    transcription = model.transcribe(MIXED, language=language, options=options)
    segments = list(transcription)
    assert languages(segments) == LANGUAGES
    assert all(0.5 < (segment.language_probability or 0.0) <= 1.0 for segment in segments)
    assert transcription.outside_languages == {}
    for start, end, spoken in TRUTH:
        middle = (start + end) / 2
        result = next(segment for segment in segments if segment.start <= middle <= segment.end)
        assert result.language == spoken


@pytest.mark.parametrize("code", ["de", pytest.param("zh", marks=pytest.mark.long)])
def test_one_language_is_not_followed(model: Model, code: str) -> None:
    """By default the text is that without following, and with the language given."""
    clip, kept = CLIPS / f"{code}.flac", TranscribeOptions(follow_languages=False)
    by_default = list(model.transcribe(clip))
    assert {segment.language for segment in by_default} == {code}
    assert by_default == list(model.transcribe(clip, options=kept, beam_size=5))
    given = model.transcribe(clip, language=code)
    assert [segment.text for segment in by_default] == [segment.text for segment in given]


@pytest.mark.parametrize("languages", [None, LANGUAGES])
def test_the_timeline_is_that_of_the_text(model: Model, languages: list[str] | None) -> None:
    spans = list(model.language_spans(MIXED, languages=languages))
    assert [span.language for span in spans] == LANGUAGES
    assert spans[0].start == 0.0
    assert all(span.end == after.start for span, after in itertools.pairwise(spans))
    assert spans[-1].end == pytest.approx(len(load_audio(MIXED)) / 16_000, abs=0.02)
    result = [
        FoundSwitch(after.start, after.start, span.language, after.language)
        for span, after in itertools.pairwise(spans)
    ]
    assert score_switches(result, TRUTH, duration_s=spans[-1].end, tolerance_s=0.2).f1 == 1.0


def test_the_language_of_a_recording_is_that_of_its_transcription(model: Model) -> None:
    """Over two windows: a German sentence before English."""
    german, english = load_audio(CLIPS / "de.flac"), load_audio(CLIPS / "en.flac")
    pause = np.zeros(8000, np.float32)
    recording = np.concatenate([german, pause] + [english, pause] * (40 * 16_000 // len(english)))
    options = TranscribeOptions(follow_languages=False)
    transcription = model.transcribe(recording, options=options)
    next(transcription)
    result = model.detect_language(recording)
    assert result.language == transcription.language == "en"
    assert result.probability == transcription.language_probability


def test_languages_outside_of_the_list_are_told(model: Model) -> None:
    transcription = model.transcribe(MIXED, language="en,es,fr")
    assert {segment.language for segment in transcription} <= {"en", "es", "fr"}
    assert transcription.outside_languages.keys() == {"de"}
    assert transcription.outside_languages["de"] > 2.0


@pytest.mark.long
def test_recordings_read_together_are_read_as_alone(model: Model) -> None:
    """Windows of different lengths, where one is in several languages."""
    sources = [MIXED, CLIPS / "de.flac"]
    together = dict(model.transcribe_files(sources, batch_size=2))
    for source in sources:
        alone = model.transcribe(source).collect()
        assert [replace(segment, avg_logprob=0.0) for segment in together[source].segments] == [  # type: ignore[union-attr]
            replace(segment, avg_logprob=0.0) for segment in alone.segments
        ]


def test_speech_is_found_while_it_is_read() -> None:
    """What a finder knows on the way, and by other options beside, is what it finds of the whole."""
    samples = load_audio(MIXED)
    coarse, fine = VadOptions(), VadOptions(min_silence_ms=100.0, speech_pad_ms=50.0)
    finder = SpeechFinder(coarse)
    nearby = finder.beside(fine)
    for start in range(0, len(samples), 5000):
        finder.push(samples[start : start + 5000])
    assert finder.finish() == speech_segments(samples, coarse)
    assert nearby.segments() == speech_segments(samples, fine)
    within = nearby.segments(3 * 16_000, 9 * 16_000)
    assert within[0].start_sample >= 3 * 16_000
    assert within[-1].end_sample <= 9 * 16_000
    whole = pieces_between(nearby, 0, len(samples) // 160)
    assert len(whole) == len(nearby.segments())


def test_frames_of_a_recording_are_found_in_a_packed_window() -> None:
    window = Window((SpeechSpan(100, 200), SpeechSpan(300, 350)))
    assert [window.window_frame(frame) for frame in (50, 100, 150, 200, 250, 300, 340, 400)] == [
        *(0, 0, 50, 100, 100, 100, 140, 150)
    ]


def test_speech_that_a_text_left_before_a_change_goes_to_the_language_that_follows(model: Model) -> None:
    """But for speech that the text reached, and where nothing follows."""
    transcriber = Transcriber(DirectRuntime(model.backend), model.tokenizer, TranscribeOptions())
    speech = SpeechFinder(PIECE_VAD)
    with Recording(MIXED) as recording, RecordingFeatures(recording, observer=speech) as features:
        state = TranscriptionState(language="en")
        languages = WindowLanguages(transcriber, features, speech, state)
        windows = SeekWindows(transcriber, features, languages, state)
        start, end, _ = TRUTH[1]
        pieces = languages.speech_between(0, round(100 * end))
        features.drop_before(pieces[-1].start)  # as while the text of the last piece is read
        unsure = tuple(
            np.full(len(model.tokenizer.language_codes), 1.0 / len(model.tokenizer.language_codes))
        )
        probed = tuple(
            ProbedPiece(piece.start, piece.end, unsure, 1.0, 0.0, is_alone=True) for piece in pieces
        )
        languages.restore(FollowerState(True, False, pieces=probed))
        late = [piece for piece in pieces if piece.start > 100 * start - 10]
        assert late
        change, last = round(100 * end), round(100 * TRUTH[2][1])
        parts = (
            replace(Window.of(0, change), language="en"),
            replace(Window.of(change, last), language="es"),
        )
        for text_end, expected in [
            (round(100 * start) - 10, late[0].start),
            (late[-1].start, late[-1].start),
            (late[-1].start + 1, change),
        ]:
            windows.place = SeekPlace(0, 0, 0.0, 0, parts)
            seek, (first, last_part) = windows._reassigned_tail(change, text_end)
            assert (seek, first.end, last_part) == (expected, expected, parts[1])
        windows.place = SeekPlace(0, 0, 0.0, 0, parts[:1])
        assert windows._reassigned_tail(change, 0) == (change, parts[:1]), "nothing follows"


def test_a_recording_need_not_begin_in_its_own_language(model: Model) -> None:
    """To begin in another one is a change only where something was spoken before."""
    codes = model.tokenizer.language_codes
    transcriber = Transcriber(
        DirectRuntime(model.backend), model.tokenizer, TranscribeOptions(follow_languages=True)
    )
    pieces = [SpeechSpan(0, 130), SpeechSpan(160, 460)]
    probed = []
    for piece, code, sureness, english in zip(pieces, ("de", "en"), (0.9, 0.999), (0.05, 0.999), strict=True):
        posterior = np.full(len(codes), (1.0 - sureness) / (len(codes) - 1))
        posterior[codes.index("en")], posterior[codes.index(code)] = english, sureness
        probed.append(ProbedPiece(piece.start, piece.end, tuple(posterior), 1.0, 0.0, is_alone=True))
    with Recording(np.zeros(80_000, np.float32)) as recording, RecordingFeatures(recording) as features:
        encoded = transcriber.runtime.run(EncodeCall(features.window(0, n_frames=500)))
        for is_beginning, expected in [(True, ["de", "en"]), (False, ["en"])]:
            follower = LanguageFollower(transcriber, features, TranscriptionState())
            follower.restore(FollowerState(True, is_beginning, pieces=tuple(probed)))
            result = transcriber.runtime.run(follower.runs(encoded, pieces, [(0, 65), (80, 230)], "en"))
            assert [run.language for run in result] == expected
            assert not follower.state(0).is_beginning


def test_without_a_language_before_it_a_window_is_in_its_likeliest_one(model: Model) -> None:
    codes = model.tokenizer.language_codes
    german = np.full(len(codes), 1e-4)
    german[codes.index("de")] = 0.99
    transcriber = Transcriber(DirectRuntime(model.backend), model.tokenizer, TranscribeOptions())
    with Recording(np.zeros(80_000, np.float32)) as recording, RecordingFeatures(recording) as features:
        encoded = transcriber.runtime.run(EncodeCall(features.window(0, n_frames=500)))
        piece = SpeechSpan(0, 300)
        probed = ProbedPiece(piece.start, piece.end, tuple(german), 1.0, 0.0, is_alone=True)
        follower = LanguageFollower(transcriber, features, TranscriptionState())
        follower.restore(FollowerState(False, True, pieces=(probed,)))
        (run,) = transcriber.runtime.run(follower.runs(encoded, [piece], [(0, 150)], None))
        assert run.language == "de"
        assert not follower.is_several


def test_windows_in_one_language_are_asked_about_less_and_clear_hints_always(model: Model) -> None:
    """An hour in one language costs next to nothing, and does not make deaf."""
    codes = model.tokenizer.language_codes
    english = np.full(len(codes), 1e-4)
    english[codes.index("de")], english[codes.index("en")] = 0.01, 0.99

    runtime = Noting(model.backend, probed=ProbedLanguage(english, 1.0, 0.0))
    transcriber = Transcriber(runtime, model.tokenizer, TranscribeOptions())
    with Recording(np.zeros(16_000 * 400, np.float32)) as recording, RecordingFeatures(recording) as features:
        encoded = transcriber.runtime.run(EncodeCall(features.window(0, n_frames=1000)))

        def is_heard(n_windows: int, sureness: float) -> bool:
            """Whether one of four pieces is encoded separately that may be in German."""
            pieces = [SpeechSpan(300 * index, 300 * index + 250) for index in range(4)]
            probed = []
            for index, piece in enumerate(pieces):
                german = sureness if index == 3 else 1e-4
                posterior = np.full(len(codes), 1e-4)
                posterior[codes.index("de")], posterior[codes.index("en")] = german, 1.0 - german
                probed.append(ProbedPiece(piece.start, piece.end, tuple(posterior), 1.0, 0.0, is_alone=False))
            follower = LanguageFollower(transcriber, features, TranscriptionState())
            follower.restore(FollowerState(False, False, n_one=n_windows, pieces=tuple(probed)))
            (run,) = runtime.run(follower.runs(encoded, pieces, [(0, 1)] * 4, "en"))
            assert run.language == "en"
            return follower._detections[pieces[3]].is_alone

        assert is_heard(0, 0.97)
        assert not is_heard(1000, 0.97)
        assert not is_heard(0, 0.3)
        assert is_heard(10, 0.999)


def test_the_language_of_a_part_needs_no_speech_of_earlier_windows(model: Model) -> None:
    codes = model.tokenizer.language_codes
    german = np.full(len(codes), 1e-4)
    german[codes.index("de")] = 0.99

    runtime = Noting(model.backend, probed=ProbedLanguage(german, 1.0, 0.0))
    transcriber = Transcriber(runtime, model.tokenizer, TranscribeOptions())
    with Recording(np.zeros(16_000 * 20, np.float32)) as recording, RecordingFeatures(recording) as features:
        follower = LanguageFollower(transcriber, features, TranscriptionState())
        encoded = transcriber.runtime.run(EncodeCall(features.window(0, n_frames=1000)))
        pieces = [SpeechSpan(0, 200), SpeechSpan(300, 900)]
        runtime.run(follower.runs(encoded, pieces, [(0, 100), (150, 450)], "en"))
        features.drop_before(500)
        part = SpeechSpan(600, 900)
        assert runtime.run(follower.language_of(part, "en", [part])) in ("de", "en")


@pytest.mark.parametrize("language", LANGUAGES)
def test_text_is_likeliest_in_the_language_that_is_spoken(model: Model, language: str) -> None:
    runtime = Noting(model.backend)
    transcriber = Transcriber(runtime, model.tokenizer, TranscribeOptions())
    with Recording(CLIPS / f"{language}.flac") as recording, RecordingFeatures(recording) as features:
        features.has(400)
        stretch = SpeechSpan(0, 300)
        together = TextLikelihood(transcriber, features)
        result = runtime.run(together.log_likelihood_ratios(stretch, LANGUAGES))
        assert max(result, key=lambda code: result[code]) == language
        alone = TextLikelihood(transcriber, features)
        (nats,) = runtime.run(alone.log_likelihood_ratios(stretch, [language])).values()
        assert nats == pytest.approx(result[language], abs=1e-3)
        runtime.done.clear()
        assert runtime.run(together.log_likelihood_ratios(stretch, LANGUAGES)) == result
        assert not runtime.done, "it is remembered"


def test_a_stretch_is_read_with_half_of_the_pauses_around_it() -> None:
    pieces = [SpeechSpan(0, 100), SpeechSpan(120, 200), SpeechSpan(200, 260), SpeechSpan(460, 500)]
    assert with_silence(pieces[1:3], pieces) == SpeechSpan(110, 260 + SILENCE)
    assert with_silence(pieces[:1], pieces) == SpeechSpan(0, 110)
    assert with_silence(pieces[3:], pieces) == SpeechSpan(460 - SILENCE, 500 + SILENCE)
