"""Words that may be wrong, in a real browser: underlined and explained until they are corrected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.browser_editor import correct, hear, heard
from tests.server.browser_page import browser, downloaded, pictures, pytestmark
from tests.server.conversation import SentencesModel, SentencesSession
from tests.server.servers import CLIPS, ServerThread, post, serving

__all__ = ["pytestmark"]

FOUND = "[...(CSS.highlights.get('found') ?? [])].map(String)"


class DoubtfulSession(SentencesSession):
    """Is not sure of three words."""

    def probability_of(self, text: str) -> float:
        return {" river": 0.617, " Zeit.": 0.3, " verano.": 0.79, " calme": 0.8}.get(text, 0.95)


def thickness(page: Any, text: str) -> float:
    mark = page.locator("#log mark", has_text=text)
    result: str = mark.evaluate("(element) => getComputedStyle(element).textDecorationThickness")
    return float(result.removesuffix("px"))


@pytest.fixture(scope="module")
def doubtful() -> Iterator[ServerThread]:
    with serving(SentencesModel(session=DoubtfulSession)) as running:
        yield running


def marked(page: Any) -> list[str]:
    result: list[str] = page.locator("#log mark").all_inner_texts()
    return result


def is_underlined(page: Any) -> bool:
    page.mouse.move(0, 0)
    colour: str = page.evaluate("getComputedStyle(document.querySelector('#log mark')).textDecorationColor")
    return colour != "rgba(0, 0, 0, 0)"


def test_doubtful_words_are_underlined_until_somebody_corrects_them(doubtful: ServerThread) -> None:
    with browser(doubtful.url) as page:
        assert page.is_hidden("#doubts")
        hear(page, doubtful)
        assert marked(page) == ["river", "Zeit.", "verano."]
        assert not is_underlined(page)
        page.hover("#log mark")
        colour = "getComputedStyle(document.querySelector('#log mark')).textDecorationColor"
        assert page.evaluate(colour) != "rgba(0, 0, 0, 0)"
        assert thickness(page, "Zeit.") > thickness(page, "river") > thickness(page, "verano.")
        title = page.locator("#log mark").nth(0).get_attribute("title")
        assert title == "May be wrong: the model is 62 % sure of this word"
        assert page.is_visible("#doubts")
        pictures(page, "doubtful")
        correct(page, 2, "Wir hatten heute viel Zeit.")
        assert marked(page) == ["river", "Zeit.", "verano."]
        correct(page, 1, "We walked along the stream and talked about the summer.")
        assert marked(page) == ["Zeit.", "verano."]
        page.click("#undo")
        assert marked(page) == ["river", "Zeit.", "verano."]
        words = [word for item in json.loads(downloaded(page, "json"))["segments"] for word in item["words"]]
        assert [word["word"].strip() for word in words if word.get("doubtful")] == marked(page)
        page.keyboard.press("Control+f")
        page.fill("#find-text", "the river and")
        assert page.evaluate(FOUND) == ["the river and"]
        page.fill("#find-text", "")
        page.click("#find-close")
        page.click("#clear")
        assert page.is_hidden("#doubts")


def test_all_underlines_can_be_switched_on_and_stay_so(doubtful: ServerThread) -> None:
    with heard(doubtful) as page:
        page.check("#doubtful")
        assert is_underlined(page)
        page.reload()
        page.wait_for_selector("#log mark")
        assert page.is_checked("#doubtful")
        assert is_underlined(page)
        page.uncheck("#doubtful")
        assert not is_underlined(page)


def test_an_uploaded_recording_is_marked_as_its_document(server: ServerThread) -> None:
    clip = CLIPS / "mixed.flac"
    with browser(server.url) as page:
        page.set_input_files("#file", clip)
        page.wait_for_selector("#log .utterance")
        page.wait_for_selector("#upload", state="hidden")
        wanted = words_of(server, clip)
        assert wanted
        assert marked(page) == wanted


def words_of(server: ServerThread, clip: Path) -> list[str]:
    fields = {"stream": "true", "response_format": "verbose_json", "timestamp_granularities[]": "word"}
    answer = post(server, data=clip.read_bytes(), **fields)
    events = [json.loads(row[6:]) for row in answer.text.splitlines() if row.startswith("data: {")]
    words = [word for event in events for word in event.get("words", []) if "segment" in event["type"]]
    assert all((word["probability"] < 0.8) == ("doubtful" in word) for word in words)
    return [word["word"].strip() for word in words if word.get("doubtful")]
