"""What the live page does with the machine it runs on: microphones, a tab's sound, the screen, the network.

What a browser without a person cannot give (a tab to be shared, a battery) is a stand-in made in the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.server.browser_page import SPOKEN, browser, pictures, pytestmark, state
from tests.server.conversation import SentencesModel
from tests.server.servers import ServerThread, serving, wait_until

__all__ = ["pytestmark"]

WATCHED = """
window.asked = [];
window.locks = 0;
window.sent = 0;
window.waits = 0;
const grant = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
navigator.mediaDevices.getUserMedia = (wish) => { asked.push(wish.audio); return grant(wish); };
Object.defineProperty(navigator, "wakeLock", { value: {
  request: async () => { locks += 1; return { release: async () => { locks -= 1; } }; },
} });
const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (data) {
  if (typeof data !== "string") sent += 1;
  return send.call(this, data);
};
Object.defineProperty(WebSocket.prototype, "bufferedAmount", { get: () => waits });
"""
TAB = """
navigator.mediaDevices.getDisplayMedia = async (wish) => {
  window.shared = wish;
  const context = new AudioContext();
  const tone = context.createOscillator();
  const out = context.createMediaStreamDestination();
  tone.connect(out);
  tone.start();
  return out.stream;
};
"""


def becomes(page: Any, condition: str) -> None:
    """Wait for something in the page to become true; its policy allows no script to look for it there."""
    wait_until(lambda: bool(page.evaluate(condition)))


@contextmanager
def opened(server: ServerThread, *scripts: str, **context: Any) -> Iterator[Any]:
    """A page with scripts of its own, in which nothing may go wrong."""
    with browser(**context) as page:
        for script in scripts:
            page.add_init_script(script)
        page.goto(f"{server.url}/?languages=en")
        yield page


def start(page: Any) -> None:
    page.keyboard.press("Space")
    state(page, "live")


def test_the_microphone_that_was_chosen_is_asked_for(fake_server: ServerThread) -> None:
    with opened(fake_server, WATCHED) as page:
        start(page)
        becomes(page, "document.querySelectorAll('#device option').length > 1")
        page.click("#toggle")
        state(page, "ended")
        page.click("#settings-open")
        chosen = page.eval_on_selector_all("#device option", "(options) => options.at(-1).value")
        page.select_option("#device", chosen)
        page.click("#toggle")
        state(page, "live")
        assert page.evaluate("asked.map((wish) => wish.deviceId?.exact ?? '')") == ["", chosen]
        assert chosen


def test_the_screen_stays_awake_as_long_as_it_listens(fake_server: ServerThread) -> None:
    with opened(fake_server, WATCHED) as page:
        start(page)
        becomes(page, "locks === 1")
        page.click("#toggle")
        state(page, "ended")
        becomes(page, "locks !== 1")
        assert page.evaluate("locks") == 0


def test_audio_waits_here_while_the_network_is_slow(fake_server: ServerThread) -> None:
    with opened(fake_server, WATCHED) as page:
        start(page)
        becomes(page, "sent > 2")
        before = page.evaluate("waits = 1e9, sent")
        page.wait_for_timeout(1000)
        assert page.evaluate("sent") == before
        page.evaluate("waits = 0")
        becomes(page, f"sent > {before + 5}")


def test_the_sound_of_a_tab_is_heard(fake_server: ServerThread) -> None:
    with opened(fake_server, WATCHED, TAB) as page:
        page.check('input[name="source"][value="tab"]', force=True)
        page.click("#toggle")
        state(page, "live")
        becomes(page, "sent > 2")
        assert page.evaluate("Boolean(shared.audio && shared.video) && asked.length") == 0
        becomes(page, "Number(document.querySelector('#meter').ariaValueNow) > 10")


def test_microphone_and_tab_are_one_transcript_by_time() -> None:
    with serving(SentencesModel()) as server, opened(server, WATCHED, TAB) as page:
        page.check('input[name="source"][value="both"]', force=True)
        page.click("#toggle")
        becomes(page, "asked[0]?.echoCancellation === true")
        page.wait_for_selector("#log .utterance:nth-child(5)")
        assert page.locator("#log .speaker").all_inner_texts()[:4] == ["Me", "Others"] * 2
        assert page.locator("#voices .name").all_inner_texts() == ["Me", "Others"]
        pictures(page, "both")
        page.click("#toggle")
        state(page, "ended")
        starts = page.evaluate(
            "[...document.querySelectorAll('#log .utterance')].map((one) => one.utterance.start)"
        )
        assert starts == sorted(starts)
        texts = page.locator("#log .words").all_inner_texts()
        assert texts[0] == texts[1] == SPOKEN[0]
        becomes(page, "document.querySelector('#playback audio').duration > 1")


@pytest.mark.parametrize(("wish", "moves"), [("no-preference", True), ("reduce", False)])
def test_nothing_moves_where_that_is_not_wanted(fake_server: ServerThread, wish: str, moves: bool) -> None:
    with opened(fake_server, reduced_motion=wish) as page:
        start(page)
        n_moving = page.evaluate(
            "[...document.querySelectorAll('*')].map((one) => getComputedStyle(one)).filter("
            "(style) => style.animationName !== 'none' || parseFloat(style.transitionDuration) > 0).length"
        )
        assert (n_moving > 0) is moves
