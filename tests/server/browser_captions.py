"""Caption views and pages of readers in a real browser: what they show of somebody's session."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image

from sottovoce.server.apis.captions import MAX_MESSAGE_CHARACTERS, read_publication
from tests.server.browser_page import ALL, SETTLED, SPOKEN, browser, picture, pytestmark, state
from tests.server.conversation import SentencesModel, utterance
from tests.server.servers import KEY, LOCKED, ServerThread, SlowModel, serving, wait_until

__all__ = ["pytestmark"]

N_READERS = 10
WITHIN_MS = 300
SCENE = """
document.documentElement.style.background = "linear-gradient(160deg, #0f3a5f, #c9742f 60%, #f2d6a2)";
"""


def share(page: Any) -> str:
    """Begin to share; returns the link of readers."""
    page.click("#share-open")
    page.click("#share-start")
    page.wait_for_selector("#share-on:not([hidden])")
    link: str = page.input_value("#share-link")
    page.keyboard.press("Escape")
    return link


def said(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("#log .utterance:visible .words").all_inner_texts()]


def tell(page: Any, **parts: object) -> None:
    """Say something in the place of a page of this browser that somebody speaks to."""
    page.evaluate(
        "(message) => new BroadcastChannel('sottovoce.captions').postMessage(message)",
        {"type": "captions", **parts},
    )


@contextmanager
def view_of(server: ServerThread, query: str = "") -> Iterator[tuple[Any, Any]]:
    """A caption view, and another page of the same browser, to tell it things."""
    with browser(f"{server.url}/read") as page:
        view = page.context.new_page()
        view.set_viewport_size({"width": 1280, "height": 720})
        view.goto(f"{server.url}/captions{query}")
        yield view, page


def lines(view: Any) -> list[str]:
    result: list[str] = view.evaluate(
        """() => {
            const box = document.getElementById("lines").getBoundingClientRect();
            const seen = new Map();
            for (const line of document.querySelectorAll("#roll .line > span")) {
                const text = line.firstChild;
                for (const { index, 0: word } of text.data.matchAll(/\\S+/g)) {
                    const range = new Range();
                    range.setStart(text, index);
                    range.setEnd(text, index + word.length);
                    const { top, bottom } = range.getBoundingClientRect();
                    const middle = (top + bottom) / 2;
                    if (middle < box.top || middle > box.bottom) continue;
                    const place = Math.round(middle / 8);
                    seen.set(place, [...(seen.get(place) ?? []), word]);
                }
            }
            return [...seen.keys()].sort((a, b) => a - b).map((place) => seen.get(place).join(" "));
        }"""
    )
    return result


def test_much_text_is_shared_in_messages_that_the_server_takes(fake_server: ServerThread) -> None:
    """Of letters that fill a line with few of them, and times in full precision."""
    with browser(fake_server.url) as page:
        messages = page.evaluate(
            """async () => {
                const { LocalSharing } = await import("/static/sharing.js");
                const words = Array.from({ length: 60 }, () => ({ word: "漢", start: 1 / 3, end: 2 / 3 }));
                const one = { start: 1 / 3, end: 2 / 3, words, revision: 1 };
                const utterances = Array.from({ length: 500 }, (_, id) => ({ ...one, id }));
                const rest = { revision: 1, cleared: 0, renamed: 0, called: {}, spoken: null };
                const { changes } = new LocalSharing({ utterances, ...rest });
                return [...changes.messages()].map((message) => JSON.stringify(message));
            }"""
        )
    assert max(map(len, messages)) < MAX_MESSAGE_CHARACTERS / 4
    numbers = []
    for message in messages:
        changes: Any = read_publication(message)[1]
        numbers += [change["id"] for change in changes["utterances"]]
    assert numbers == list(range(500))
    assert '"start":0.333,"end":0.667' in messages[0]


def test_readers_see_all_that_is_said_and_corrected() -> None:
    faults: list[str] = []
    with serving(SentencesModel()) as server, browser(server.url + ALL) as page:
        link = share(page)
        page.click("#toggle")
        page.wait_for_selector("#log .utterance:nth-child(2)")
        late = page.context.browser.new_context().new_page()  # of somebody else: no key, nothing stored
        late.on("pageerror", lambda error: faults.append(str(error)))
        late.goto(link)
        late.wait_for_selector("#log .utterance:nth-child(2)")
        assert said(late)[:2] == list(SPOKEN[:2])
        page.wait_for_selector('#share-count:text-is("1")')
        page.dblclick("#log .utterance:nth-child(1) .words")
        page.keyboard.press("Control+A")
        page.keyboard.type("<b>We</b> walked.")
        page.keyboard.press("Enter")
        page.wait_for_selector("#log .utterance:nth-child(4)")
        wait_until(lambda: said(late) == ["<b>We</b> walked.", *SPOKEN[1:]])
        picture(late, "reader")
        page.click("#toggle")
        state(page, "ended")
        wait_until(lambda: re.match(r"ended \d", late.inner_text("#status-text")) is not None)
        page.click("#share-open")
        assert page.locator("#share-code svg").get_attribute("aria-label") == "QR code of the link"
        picture(page, "share")
        page.click("#share-stop")
        state(late, "ended")
        assert said(late) == said(page)
        late.reload()
        state(late, "refused")
        assert said(late) == []
        assert "Ask for a new one" in late.inner_text("#hint")
        late.goto(link.replace("/read#", "/captions#"))
        wait_until(lambda: "Ask for a new one" in late.inner_text("#roll"))
    assert faults == []


def test_ten_readers_in_a_browser_see_a_word_soon() -> None:
    watch = """(selector) => {
        window.seen = {};
        const look = () => {
            const n = document.querySelector(selector)?.textContent.match(/word/g)?.length ?? 0;
            if (n) seen[n] ??= Date.now();
        };
        const all = { childList: true, subtree: true, characterData: true };
        new MutationObserver(look).observe(document.body, all);
    }"""
    with serving(SlowModel(word_s=0.25)) as server, browser(server.url) as page:
        link = share(page)
        readers = [page.context.new_page() for _ in range(N_READERS)]
        for reader in readers:
            reader.goto(link)
            reader.wait_for_selector('#status[data-state="live"]')
            reader.evaluate(watch, "#now")
        page.evaluate(watch, "#now")
        page.click("#toggle")
        wait_until(lambda: len(page.evaluate("Object.keys(seen)")) >= 10, within_s=60)
        page.wait_for_timeout(500)
        spoken = page.evaluate("seen")
        result = [reader.evaluate("seen") for reader in readers]
        shared_by_all = [n for n in list(spoken)[2:9] if all(n in seen for seen in result)]
        assert len(shared_by_all) >= 5
        delays = np.array([[seen[n] - spoken[n] for seen in result] for n in shared_by_all])
        print(f"{N_READERS} pages: median {np.median(delays):.0f} ms, worst {delays.max():.0f} ms")
        assert np.median(delays.max(axis=1)) < WITHIN_MS


def test_a_reader_needs_no_key() -> None:
    with (
        serving(SlowModel(), access=LOCKED) as server,
        browser(server.url, allowed=("401", "WebSocket")) as page,
    ):
        page.click("#share-open")
        page.click("#share-start")
        page.wait_for_selector("#notice:not([hidden])")
        assert "API key" in page.inner_text("#notice")
        page.fill("#key", KEY)
        link = share(page)
        reader = page.context.browser.new_context().new_page()
        reader.goto(link)
        state(reader, "live")
        view = page.context.browser.new_context().new_page()
        view.goto(link.replace("/read#", "/captions#"))
        page.click("#toggle")
        view.wait_for_selector("#roll .said")
        reader.wait_for_selector("#now .words")


def test_readers_go_on_with_the_same_link_when_the_server_starts_again() -> None:
    with browser(allowed=("WebSocket", "404", "REFUSED")) as page:
        reader = page.context.browser.new_context().new_page()
        with serving(SlowModel()) as server:
            port = int(server.address.split(":")[1])
            page.goto(server.url)
            link = share(page)
            page.click("#toggle")
            reader.goto(link)
            reader.wait_for_selector("#now .words")
        state(reader, "reconnecting")
        with serving(SlowModel(), port=port):
            state(reader, "live")
            assert reader.url == link


def test_boxes_of_lines_meet_within_the_view(fake_server: ServerThread) -> None:
    """Whatever the height of letters: nothing of a line that has gone is seen, and nothing twice."""
    with view_of(fake_server, "?lines=3") as (view, page):
        for width in (1280, 960, 390):
            view.set_viewport_size({"width": width, "height": 400})
            tell(page, clear=True, utterances=[utterance(0, SPOKEN[0] * 6)])
            view.wait_for_selector("#roll p")
            view.evaluate(SETTLED)
            box, *boxes = view.evaluate(
                """() => [document.getElementById("lines"), ...document.querySelectorAll(".line")]
                    .flatMap((element) => [...element.getClientRects()])
                    .map(({ left, right, top, bottom }) => [left, right, top, bottom])"""
            )
            assert len(boxes) > 3
            for (*_, bottom), (_, _, top, _) in itertools.pairwise(boxes):
                assert 0 <= top - bottom < 1
            assert min(left for left, *_ in boxes) >= box[0]
            assert max(right for _, right, *_ in boxes) <= box[1]
            assert abs(boxes[-3][2] - box[2]) < 1
            assert boxes[-1][3] <= box[3]


def test_a_view_has_as_many_lines_as_it_should_and_the_newest(fake_server: ServerThread) -> None:
    with view_of(fake_server, "?size=60") as (view, page):
        tell(page, clear=True, utterances=[utterance(0, SPOKEN[0]), utterance(1, SPOKEN[0])])
        view.wait_for_selector("#roll p:nth-child(2)")
        for n in (1, 2, 3):
            view.keyboard.press(str(n))
            view.wait_for_timeout(100)
            result = lines(view)
            assert len(result) == n
            assert result[-1].endswith("summer.")
        tell(page, now=utterance(2, "And now", unstable={"text": " perhaps", "language": "en"}))
        view.wait_for_selector("#roll .unstable")
        assert lines(view)[-1] == "And now perhaps"
        tell(page, utterances=[utterance(2, "And now for sure.")], now=None)
        wait_until(lambda: lines(view)[-1] == "And now for sure.")


def test_a_view_is_seen_through_but_for_its_text(fake_server: ServerThread) -> None:
    with view_of(fake_server, "?color=ffee00&lines=1&size=80") as (view, page):
        tell(page, clear=True, utterances=[utterance(0, "Good evening")])
        view.wait_for_selector("#roll .said")
        view.wait_for_timeout(500)
        seen = np.array(Image.open(io.BytesIO(view.screenshot(omit_background=True))).convert("RGBA"))
        assert seen[: seen.shape[0] // 2, :, 3].max() == 0, "nothing above the text, and nothing behind it"
        rows = np.nonzero(seen[:, :, 3].max(axis=1))[0]
        assert rows.min() > 0.75 * seen.shape[0]
        assert (seen == [255, 238, 0, 255]).all(axis=2).sum() > 1000, "letters in their colour"
        view.evaluate(SCENE)
        picture(view, "view")


VIEWS = {
    "": ["Good evening", "Guten Abend", "Wie geht es", "How are you"],
    "?translation=off": ["Good evening", "Wie geht es"],
    "?translation=only": ["Guten Abend", "How are you"],
    "?language=en": ["Good evening", "How are you"],
    "?language=de": ["Guten Abend", "Wie geht es"],
    "?language=de&translation=off": ["Wie geht es"],
    "?language=fr": [],
    "?speakers=true&translation=off": ["Anna Good evening", "B Wie geht es"],
}
"""What an address shows."""


def test_a_view_shows_the_languages_that_it_should(fake_server: ServerThread) -> None:
    said = [
        utterance(
            0, "Good evening", "en", translation={"text": "Guten Abend", "language": "de"}, speaker="A"
        ),
        utterance(1, "Wie geht es", "de", translation={"text": "How are you", "language": "en"}, speaker="B"),
    ]
    with view_of(fake_server) as (view, page):
        for query, wanted in VIEWS.items():
            view.goto(f"{fake_server.url}/captions{query}")
            tell(page, clear=True, utterances=said, names={"A": "Anna"})
            view.wait_for_selector('#state:text-is("live")', state="attached")
            result = view.locator("#roll p").all()
            assert [" ".join(p.locator(".line > span").all_inner_texts()) for p in result] == wanted, query


def test_a_view_that_is_asked_for_nonsense_is_as_usual(fake_server: ServerThread) -> None:
    nonsense = (
        "?lines=99&size=-1&color=red;x&box=url(x)&background=%22&font=%7D*%7B&position=left&hold=soon&x=y"
    )
    look = """() => {
        const style = getComputedStyle(document.documentElement);
        const names = ["lines", "size", "color", "box", "background"];
        const { position } = document.documentElement.dataset;
        return [...names.map((name) => style.getPropertyValue(`--${name}`)), position];
    }"""
    result = []
    for query in ("", nonsense):
        with view_of(fake_server, query) as (view, _):
            result.append(json.dumps(view.evaluate(look)))
    assert result[0] == result[1]


def test_text_of_a_session_is_no_markup_and_goes_after_a_while(fake_server: ServerThread) -> None:
    with view_of(fake_server, "?hold=1") as (view, page):
        tell(page, clear=True, utterances=[utterance(0, "<img src=x onerror=alert(1)>")])
        view.wait_for_selector("#roll .said")
        assert view.locator("#roll img").count() == 0
        assert lines(view) == ["<img src=x onerror=alert(1)>"]
        view.wait_for_selector("body.quiet", state="attached")
        tell(page, utterances=[utterance(1, "Again")])
        view.wait_for_selector("body:not(.quiet)", state="attached")


def test_a_view_fills_the_screen(fake_server: ServerThread) -> None:
    with view_of(fake_server) as (view, _):
        view.mouse.move(300, 300)
        view.click("#full")
        view.wait_for_function("document.fullscreenElement !== null")
        assert view.evaluate("document.fullscreenElement.tagName") == "HTML", "all of it"
        view.keyboard.press("f")
        view.wait_for_function("document.fullscreenElement === null")
        assert not view.evaluate("document.fullscreen")
