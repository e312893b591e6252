"""Translations beside what was said, asked of a server that stands in for a chat model."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.errors import OptionError, TranslationError
from sottovoce.formats.files import FORMATS, writer_for
from sottovoce.formats.output import TranscriptInfo, as_bytes
from sottovoce.translation.chat import ChatServer, ChatTranslator, Glossary
from sottovoce.translation.live_translator import sentences
from sottovoce.types import Segment, Word
from tests.formats.transcripts import shown
from tests.translation.server import Answer, completion, stand_in, upper


def said(number: int, text: str, language: str = "de", start: float | None = None) -> Segment:
    begin = 2.0 * number if start is None else start
    return Segment(number, begin, begin + 1.5, f" {text}", language, avg_logprob=-0.1)


def test_segments_are_joined_to_sentences() -> None:
    parts = [said(0, "Erst das"), said(1, "und dann jenes."), said(2, "Neu"), said(3, "beginnt", start=90.0)]
    whole = list(sentences(parts))
    assert [sentence.text for sentence in whole] == [" Erst das und dann jenes.", " Neu", " beginnt"]
    assert [sentence.id for sentence in whole] == [0, 1, 2]
    assert (whole[0].start, whole[0].end) == (0.0, 3.5)
    assert len(list(sentences([said(0, "Erst"), said(1, "then", "en")]))) == 2


def test_each_sentence_is_asked_with_those_before_it() -> None:
    with stand_in(upper) as server:
        translator = ChatTranslator(ChatServer(server.url, "tiny", key="secret"), "fr")
        translated = list(translator.segments([said(0, "Guten Tag."), said(1, "Wie geht es?")]))
    assert [segment.translation for segment in translated] == ["GUTEN TAG.", "WIE GEHT ES?"]
    assert [segment.text for segment in translated] == [" Guten Tag.", " Wie geht es?"]
    assert server.keys == ["Bearer secret"] * 2
    assert [asked["path"] for asked in server.asked] == ["/v1/chat/completions"] * 2
    system, before, answer, last = server.asked[1]["messages"]
    assert "German" in system["content"]
    assert "French" in system["content"]
    assert (before["content"], answer["content"], last["content"]) == (
        "Guten Tag.",
        "GUTEN TAG.",
        "Wie geht es?",
    )
    assert server.asked[0]["model"] == "tiny"


def test_the_prompt_has_the_terms_of_the_sentence_alone(tmp_path: Path) -> None:
    path = tmp_path / "terms.txt"
    path.write_text("# names\nRechnungshof = Cour des comptes\nZug\ttrain\n\n", encoding="utf-8")
    with stand_in(upper) as server:
        translator = ChatTranslator(ChatServer(server.url, "tiny"), "fr", Glossary.read(path))
        translator.text("Der Rechnungshof prüft.", "de")
        translator.text("Niemand prüft.", "de")
    first, second = (asked["messages"][0]["content"] for asked in server.asked)
    assert "Rechnungshof = Cour des comptes" in first
    assert "train" not in first
    assert "Cour" not in second
    assert server.keys == [None, None]


def test_a_sentence_has_no_translation_that_says_the_same() -> None:
    texts = [("Bonjour.", "fr"), ("Danke.", "de"), ("OK.", "de")]
    segments = [said(number, *row) for number, row in enumerate(texts)]
    with stand_in(upper) as server:
        translated = list(ChatTranslator(ChatServer(server.url, "tiny"), "fr").segments(segments))
    assert [segment.translation for segment in translated] == [None, "DANKE.", None]
    assert [asked["messages"][-1]["content"] for asked in server.asked] == ["Danke.", "OK."]


def test_answers_are_tidied() -> None:
    with stand_in(lambda _: completion('\n "Bon\njour" \n')) as server:
        assert ChatTranslator(ChatServer(server.url, "tiny"), "fr").text("Guten Tag", "de") == "Bon jour"


def test_a_busy_server_is_asked_again() -> None:
    answers: list[Answer] = [(503, "busy"), (429, "{}"), completion("Bonjour.")]
    with stand_in(lambda _: answers.pop(0)) as server:
        chat = ChatServer(server.url, "tiny", waits_s=(0.0, 0.0))
        assert ChatTranslator(chat, "fr").text("Guten Tag.", "de") == "Bonjour."
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, json.dumps({"error": {"message": "wrong\nkey"}})), r"answered 401 \(wrong key\)"),
        ((404, "<html>"), "answered 404"),
        ((500, "[]"), "answered 500"),
        ((302, "http://127.0.0.1:9/elsewhere"), "answered 302"),
        ((200, "<html>"), "expected a chat completion"),
        ((200, json.dumps({"choices": []})), "expected a chat completion, got another document"),
        ((200, json.dumps({"choices": [{"message": {"content": None}}]})), "got no text"),
        (completion("  "), "expected text from the server, got none"),
    ],
)
def test_another_answer_is_one_line(answer: Answer, message: str) -> None:
    with stand_in(lambda _: answer) as server:
        translator = ChatTranslator(ChatServer(server.url, "tiny", key="secret", waits_s=()), "fr")
        with pytest.raises(TranslationError, match=message) as caught:
            translator.text("Guten Tag.", "de")
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_server_that_cannot_be_reached_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(TranslationError, match="cannot be reached"):
            ChatTranslator(ChatServer(url, "tiny", waits_s=()), "fr").text("Guten Tag.", "de")


@pytest.mark.parametrize(
    ("url", "model", "key"),
    [
        ("ftp://x", "m", None),
        ("nonsense", "m", None),
        ("http://", "m", None),
        ("http://x", " ", None),
        ("http://x", "m", "a\nb"),
        ("http://x:99999999", "m", None),
    ],
)
def test_wrong_servers_are_refused(url: str, model: str, key: str | None) -> None:
    with pytest.raises(OptionError, match="expected"):
        ChatServer(url, model, key)
    assert "secret" not in repr(ChatServer("http://x", "m", "secret"))


@pytest.mark.parametrize("content", ["nothing here", "= b", "a ="])
def test_a_wrong_glossary_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "terms.txt"
    path.write_text("a = b\n" + content + "\n", encoding="utf-8")
    with pytest.raises(OptionError, match=r"line 2: expected 'term = translation'"):
        Glossary.read(path)


def written(name: str, segments: Sequence[Segment], translation: str) -> str:
    """A document as a reader sees it."""
    writer, info = writer_for(name), TranscriptInfo("nano", "de", 3.0, translation=translation)
    pieces = [writer.begin(info), *map(writer.segment, segments), writer.end(info)]
    return shown(b"".join(map(as_bytes, pieces)))


EVERY_FORMAT = pytest.mark.parametrize("name", [name for name in FORMATS if name != "rttm"])
"""That holds text."""


@pytest.mark.parametrize("with_words", [True, False])
@EVERY_FORMAT
def test_every_format_holds_both(name: str, with_words: bool) -> None:
    words = (Word(" Guten", 0.0, 0.4, 0.9), Word(" Tag.", 0.4, 1.0, 0.9)) if with_words else None
    segments = [
        Segment(0, 0.0, 1.0, " Guten Tag.", "de", words=words, translation="Bonjour."),
        Segment(1, 1.0, 2.0, " Ja.", "de", words=(Word(" Ja.", 1.0, 2.0, 0.9),), translation="Oui."),
    ]
    text = written(name, segments, "fr")
    assert "Bonjour." in text
    assert "Oui." in text
    assert text.index("Bonjour.") < text.index("Oui.")
    assert "Guten" in text


@pytest.mark.parametrize("with_words", [True, False])
@EVERY_FORMAT
def test_in_every_format_what_needs_no_translation_stands_once(name: str, with_words: bool) -> None:
    words = (Word(" It", 1.0, 1.5, 0.9), Word(" is.", 1.5, 2.0, 0.9)) if with_words else None
    segments = [
        Segment(0, 0.0, 1.0, " Ja.", "de", words=(Word(" Ja.", 0.0, 1.0, 0.9),), translation="Yes."),
        Segment(1, 1.0, 2.0, " It is.", "en", words=words),
        Segment(2, 2.0, 3.0, " Nein.", "de", words=(Word(" Nein.", 2.0, 3.0, 0.9),), translation="No."),
    ]
    twice = written(name, [segments[0], replace(segments[1], translation="It is."), segments[2]], "en")
    once = written(name, segments, "en")
    assert once.count("is.") < twice.count("is.")
    assert "No." in once


@pytest.mark.parametrize(("name", "comma"), [("tsv", "\t"), ("csv", ",")])
def test_rows_without_a_translation_have_the_column(name: str, comma: str) -> None:
    segments = [Segment(0, 0.0, 1.0, " It is.", "en"), Segment(1, 1.0, 2.0, " Ja.", "de", translation="Yes.")]
    head, first, second = written(name, segments, "en").splitlines()
    assert head.count(comma) == first.count(comma) == second.count(comma)
    assert first.endswith("It is." + comma)
    assert second.endswith("Yes.")
