"""tinydiarize's token for another speaker, from a scripted model: no checkpoint of it was at hand."""

from __future__ import annotations

from dataclasses import replace

from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.transcribe import TranscribeOptions
from tests.offline.transcribing import HELLO, TOKENIZER, WORLD, at, run, rustle
from tests.runtime.fake import Script, ScriptedToken, SpokenLanguage

TURN = TOKENIZER.sot_lm
FIRST = ((at(0), 0), (HELLO, 20), (WORLD, 60), (TURN, 90), (HELLO, 150), (at(4), 199), (at(4), 200))
REST = ((WORLD, 230), (TURN, 260), (at(6), 299), (at(6), 300), (HELLO, 350), (at(8), 399))
SAID = Script(
    tuple(ScriptedToken(token, frame) for token, frame in (*FIRST, *REST)), (SpokenLanguage("en", 0, 1500),)
)
OPTIONS = TranscribeOptions(decoding=DecodingOptions(language="en", speaker_turns=True), read_again=False)


def test_segments_are_cut_at_the_token_and_turns_counted() -> None:
    segments, transcription = run(SAID, rustle(8.0), OPTIONS)
    result = [(segment.text, segment.speaker) for segment in segments]
    expected = [(" hello world", "turn 1"), (" hello", "turn 2"), (" world", "turn 2"), (" hello", "turn 3")]
    assert result == expected
    assert [segment.id for segment in segments] == [0, 1, 2, 3]
    assert {word.speaker for word in segments[0].words or ()} == {"turn 1"}
    assert segments[1].end <= segments[2].start
    assert segments[0].end <= segments[1].start
    assert [turn.speaker for turn in transcription.turns] == [speaker for _, speaker in expected]
    assert all(TURN not in segment.tokens for segment in segments)


def test_the_token_is_not_written_unless_asked_for() -> None:
    segments, _ = run(SAID, rustle(8.0), replace(OPTIONS, decoding=DecodingOptions(language="en")))
    assert {segment.speaker for segment in segments} == {None}
    assert all(TURN not in segment.tokens for segment in segments)
