"""JSON as other programs write it, in small examples of their shapes: all its words and times are read."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.errors import OptionError
from sottovoce.formats import write_transcript, writer_for
from sottovoce.formats.files import parse_transcript
from sottovoce.types import Transcript

KEYS = (
    *("segments", "words", "text", "word", "start", "end", "language", "duration", "score", "tokens", "id"),
    *("transcription", "offsets", "from", "to", "result", "p", "chunks", "timestamp", "speaker", "turns"),
)
Words = list[tuple[str, float, float]]


def read(document: object) -> Transcript:
    return parse_transcript(json.dumps(document).encode(), "talk", is_json=True)


def words_of(transcript: Transcript) -> list[Words]:
    return [
        [(word.word, round(word.start, 3), round(word.end, 3)) for word in segment.words or ()]
        for segment in transcript.segments
    ]


def segment(text: str, start: Any = 0.0, end: Any = 2.0, **more: Any) -> dict[str, Any]:
    return {"start": start, "end": end, "text": text, **more}


SPOKEN = [
    {"word": "Hello", "start": 0.1, "end": 0.5},
    {"word": "world", "start": 0.6, "end": 1.0},
    {"word": "How", "start": 1.9, "end": 2.3},  # before its segment: the text decides
    {"word": "are", "start": 2.4, "end": 2.6},
    {"word": "you", "start": 2.6, "end": 3.0},
]
EXPECTED: list[Words] = [
    [(" Hello", 0.1, 0.5), (" world.", 0.6, 1.0)],
    [(" How", 1.9, 2.3), (" are", 2.4, 2.6), (" you?", 2.6, 3.0)],
]
OPENAI = {"task": "transcribe", "language": "english", "duration": "4.5", "text": "Hello world. How are you?"}


def test_openais_words_of_all_go_to_their_segments() -> None:
    """With `timestamp_granularities` of both, `words` is at the top, without signs and spaces."""
    segments = [segment(" Hello world.", id=0), segment(" How are you?", 2.0, 4.0, id=1)]
    transcript = read({**OPENAI, "segments": segments, "words": SPOKEN})
    assert words_of(transcript) == EXPECTED
    assert [(part.start, part.end) for part in transcript.segments] == [(0, 2), (2, 4)]
    assert (transcript.language, transcript.duration, transcript.text) == ("en", 4.5, OPENAI["text"])


def test_openais_words_alone_become_sentences() -> None:
    transcript = read({**OPENAI, "words": SPOKEN})
    assert words_of(transcript) == EXPECTED
    assert [(part.id, part.start, part.end, part.text) for part in transcript.segments] == [
        (0, 0.1, 1.0, " Hello world."),
        (1, 1.9, 3.0, " How are you?"),
    ]


def test_words_that_the_text_does_not_have_go_by_their_times() -> None:
    segments = [segment(" Hello, world."), segment(" How are you?", 2.0, 4.0)]
    spoken = [*SPOKEN[:2], {"word": "what", "start": 2.1, "end": 2.3}, *SPOKEN[3:]]
    assert words_of(read({**OPENAI, "segments": segments, "words": spoken})) == [
        [(" Hello,", 0.1, 0.5), (" world.", 0.6, 1.0)],
        [(" what", 2.1, 2.3), (" are", 2.4, 2.6), (" you", 2.6, 3.0)],
    ]


def test_openais_speakers() -> None:
    row = segment("Hi there.", type="transcript.text.segment", id="seg_001", speaker="A")
    (single,) = read({"task": "transcribe", "duration": 2, "text": "Hi there.", "segments": [row]}).segments
    assert (single.id, single.text, single.speaker, single.words) == (0, " Hi there.", "A", None)


def test_whisperx_words_without_times_take_those_around_them() -> None:
    words = [
        {"word": "In", "start": 0.5, "end": 0.7, "score": 0.9, "speaker": "SPEAKER_00"},
        {"word": "2014"},
        {"word": "12"},
        {"word": "we", "start": 1.3, "end": 1.6, "score": 0.8},
        {"word": "paid", "start": 1.7},
        {"word": "$50."},
    ]
    rows = [
        segment("In 2014 12 we paid $50.", words=words),
        segment("42.", 4.0, 5.0, words=[{"word": "42."}]),
    ]
    transcript = read({"segments": rows, "word_segments": words, "language": "en"})
    assert transcript.text == "In 2014 12 we paid $50. 42."
    assert words_of(transcript) == [
        [
            (" In", 0.5, 0.7),
            (" 2014", 0.7, 1.1),
            (" 12", 1.1, 1.3),
            (" we", 1.3, 1.6),
            (" paid", 1.7, 1.85),
            (" $50.", 1.85, 2.0),
        ],
        [(" 42.", 4.0, 5.0)],
    ]
    first, second, *_ = transcript.segments[0].words or ()
    assert (first.probability, first.speaker) == (0.9, "SPEAKER_00")
    assert math.isnan(second.probability)
    assert "In 2014 12 we paid $50." in write_transcript(writer_for("txt"), transcript)


def test_whisper_timestamped_stable_ts_and_faster_whisper() -> None:
    """Other names, more keys, and a list of segments, as people write those of faster-whisper."""
    times = [{"start": 0.5, "end": 0.8}, {"start": 0.8, "end": 1.2}]
    words = [
        {"word": " Good", **times[0], "probability": 0.95, "tokens": [2205], "id": 0},
        {"word": " day.", **times[1], "probability": None, "tokens": [786, 13], "id": 1},
    ]
    named = [
        {"text": "Good", **times[0], "confidence": 0.95},
        {"text": "day.", **times[1], "confidence": None},
    ]
    more = {"id": 1, "seek": 0, "tokens": [2205, 786, 13], "temperature": None, "avg_logprob": -0.5}
    row, timestamped_row = (segment(" Good day.", words=each, **more) for each in (words, named))
    stable = read({"text": " Good day.", "segments": [row], "language": "en", "ori_dict": {}})
    timestamped = read({"text": " Good day.", "segments": [timestamped_row]})
    for transcript in (stable, timestamped, read([row])):
        assert words_of(transcript) == [[(" Good", 0.5, 0.8), (" day.", 0.8, 1.2)]]
        (only,) = transcript.segments
        assert (only.words or ())[0].probability == 0.95
        assert (only.id, only.tokens, only.avg_logprob) == (1, (2205, 786, 13), -0.5)
        assert math.isnan(only.temperature)
    assert read([segment(" Hi.", words=None)]).segments[0].words is None
    assert read([]).segments == ()


def test_transformers_chunks() -> None:
    """The end of the last is null where the model did not write it."""
    chunks = [{"timestamp": [0.0, 1.5], "text": " Good day."}, {"timestamp": [2.0, None], "text": " Hello."}]
    transcript = read({"text": " Good day. Hello.", "chunks": chunks, "duration": 4})
    assert [(part.start, part.end, part.text) for part in transcript.segments] == [
        (0.0, 1.5, " Good day."),
        (2.0, 4.0, " Hello."),
    ]


def cpp(text: str, *tokens: tuple[str, int, int] | str) -> dict[str, Any]:
    """whisper.cpp's -ojf."""
    rows: list[dict[str, Any]] = [
        {"text": token, "id": 1, "p": 0.5, "t_dtw": -1}
        if isinstance(token, str)
        else {"text": token[0], "offsets": {"from": token[1], "to": token[2]}, "id": 1, "p": 0.5, "t_dtw": -1}
        for token in tokens
    ]
    row = {"timestamps": {}, "offsets": {"from": 0, "to": 2000}, "text": text, "tokens": rows}
    return {"model": {"type": "base"}, "result": {"language": "en"}, "transcription": [row]}


def test_whisper_cpps_tokens_are_words() -> None:
    """Marks are left out; a token may have no times, as whisper.cpp writes some."""
    transcript = read(
        cpp(
            " And so, it",
            ("[_BEG_]", 0, 0),
            (" And", 0, 300),
            (" so", 300, 500),
            (",", 500, 600),
            " it",
            "[_TT_100]",
        )
    )
    assert words_of(transcript) == [[(" And", 0.0, 0.3), (" so,", 0.3, 0.6), (" it", 0.6, 2.0)]]
    assert transcript.language == "en"
    without = cpp(" And so")
    del without["transcription"][0]["tokens"]
    assert read(without).segments[0].words is None


def test_whisper_cpps_tokens_may_end_inside_a_character() -> None:
    """They are bytes that are no UTF-8; where they were replaced, the segment has no words."""
    written = json.dumps(
        cpp("你好。", ("A", 0, 300), ("B", 300, 500), ("。", 500, 600)), ensure_ascii=False
    ).encode()
    letters = "你好".encode()
    broken = written.replace(b'"A"', b'"' + letters[:4] + b'"').replace(b'"B"', b'"' + letters[4:] + b'"')
    (single,) = parse_transcript(broken, "talk", is_json=True).segments
    assert single.text == "你好。"
    assert "".join(word.word for word in single.words or ()) == "你好。"
    (single,) = parse_transcript(broken.decode("utf-8", "replace").encode(), "talk", is_json=True).segments
    assert (single.text, single.words) == ("你好。", None)


@pytest.mark.parametrize(
    ("rows", "duration", "spans"),
    [
        ([(0.0, None), (2.0, 4.0)], None, [(0, 2), (2, 4)]),
        ([(0.0, 1.0), (None, 4.0)], None, [(0, 1), (1, 4)]),
        ([(0.0, 1.0), (None, None), (3.0, 4.0)], None, [(0, 1), (1, 3), (3, 4)]),
        ([(None, 1.0), (2.0, None)], 9.0, [(0, 1), (2, 9)]),
        ([("0.5", "1.25")], "2", [(0.5, 1.25)]),
        ([(math.nan, 1.0)], math.nan, [(0, 1)]),
    ],
)
def test_times_that_are_null_are_those_around_them(
    rows: list[tuple[Any, Any]], duration: Any, spans: list[tuple[float, float]]
) -> None:
    transcript = read({"segments": [segment(" a", *row) for row in rows], "duration": duration})
    assert [(part.start, part.end) for part in transcript.segments] == spans


def test_an_end_that_nothing_tells_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    transcript = read({"segments": [segment(" a"), segment(" b", 2.0, None)]})
    assert [(part.start, part.end) for part in transcript.segments] == [(0, 2), (2, 2)]
    assert [record.getMessage() for record in caplog.records] == [
        "segment 1: its end is null, and neither words nor 'duration' tell it"
    ]


def test_a_segment_without_times_takes_its_words() -> None:
    words = [{"word": " a", "start": 0.5, "end": 0.75}, {"word": " b", "start": 1.0, "end": 1.5}]
    (single,) = read({"segments": [segment(" a b", None, None, words=words)]}).segments
    assert (single.start, single.end) == (0.5, 1.5)


def test_languages_without_spaces_get_none() -> None:
    rows = [
        segment("你好世界。", words=[{"word": "你好", "start": 0, "end": 1}, {"word": "世界"}]),
        segment("再见。", 2.0, 3.0),
    ]
    transcript = read({"segments": rows, "language": "zh"})
    assert transcript.text == "你好世界。再见。"
    assert words_of(transcript)[0] == [("你好", 0, 1), ("世界。", 1, 2)]


def test_half_a_character_is_replaced() -> None:
    data = b'{"segments": [{"start": 0, "end": 1, "text": " a \\ud83d"}]}'
    assert parse_transcript(data, "talk").segments[0].text == " a \ufffd"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"text": "Hello."}, "expected 'segments' with start, end and text, got 'text' alone"),
        ({"text": "Hello.", "segments": []}, "got 'text' alone"),
        ({}, "got nothing"),
        ({"results": {}, "metadata": {}}, "got 'results', 'metadata'"),
        ({"segments": [segment(" a", None, None)], "duration": 9}, "got null in all of them"),
        ({"segments": [segment(" a"), segment(" b", "x")]}, "segment 1: 'start': 'x' is no time in seconds"),
        ({"segments": [segment(" a", math.inf)]}, "segment 0: 'start': inf is no time in seconds"),
        ({"segments": [segment(" a", True)]}, "segment 0: 'start': True is no time in seconds"),
        ({"segments": [segment(" a", words=[{"start": 1}])]}, "segment 0: 'word' is missing"),
        (
            {"segments": [segment(" a", words=[{"word": "a", "score": "high"}])]},
            "'score': expected a number, got 'high'",
        ),
        ({"segments": [[0, 0, 1.0, 2.0, " a"]]}, "an entry of 'segments': expected an object, got a list"),
        ({"transcription": [{"text": " a"}]}, "segment 0: 'offsets' is missing"),
        (
            {"chunks": [{"timestamp": [0], "text": " a"}]},
            "'timestamp': expected a start and an end, got 1 values",
        ),
    ],
)
def test_other_shapes_are_refused(document: object, message: str) -> None:
    with pytest.raises(OptionError, match=r"^talk: ") as caught:
        read(document)
    assert message in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", " a", "b.", "1.5", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)


@given(JSON)
def test_any_json_is_read_or_refused(document: object) -> None:
    try:
        transcript = read(document)
    except OptionError:
        return
    times = [time for segment in transcript.segments for time in (segment.start, segment.end)]
    assert all(map(math.isfinite, times))
    cues = write_transcript(writer_for("srt"), transcript)
    assert ("-->" in cues) == any(segment.text.strip() for segment in transcript.segments)
