"""The page of a transcript in a real browser: it plays, follows, is steered by keys, and fits the window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sottovoce.formats.output import TranscriptInfo
from sottovoce.formats.pages import HtmlWriter, audio_link, embedded_audio
from sottovoce.types import Segment, Word
from tests.formats.transcripts import CHROMIUM, CLIPS

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CLIP = CLIPS / "de.flac"
pytestmark = [pytest.mark.long, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
SEGMENTS = (
    Segment(
        0,
        0.0,
        1.0,
        " <b>one</b> two",
        "en",
        words=(Word(" <b>one</b>", 0.0, 0.5, 0.3), Word(" two", 0.5, 1.0, 0.99)),
        speaker="</script><i>",
    ),
    Segment(1, 1.5, 2.0, " مرحبا", "ar", words=(Word(" مرحبا", 1.5, 2.0, 0.7),), speaker="B"),
    Segment(2, 2.0, 3.0, " without words " + "a very long line " * 20, "en"),
)


def written(folder: Path, *, embed: bool) -> Path:
    clip = Path(shutil.copy(CLIP, folder / "a clip#1 100%.flac"))
    (folder / "out").mkdir(exist_ok=True)
    audio = embedded_audio(clip) if embed else audio_link(clip, folder / "out")
    info = TranscriptInfo("nano", "en", 3.1, source=clip.name, audio=audio)
    writer, path = HtmlWriter(), folder / "out" / "talk.html"
    pieces = [writer.begin(info), *map(writer.segment, SEGMENTS), writer.end(info)]
    path.write_text("".join(pieces), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        arguments = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=arguments)
        opened = chromium.new_page()
        opened.set_default_timeout(60_000)
        yield opened
        chromium.close()


def faults_of(page: Any) -> list[str]:
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    return faults


def until(page: Any, expression: str) -> None:
    """Wait until it holds; the page's policy keeps the browser from polling it by itself."""
    for _ in range(600):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(100)
    pytest.fail(f"never held: {expression}")


@pytest.mark.parametrize("embed", [False, True])
def test_words_play_and_keys_steer(page: Any, tmp_path: Path, embed: bool) -> None:
    faults = faults_of(page)
    page.goto(written(tmp_path, embed=embed).as_uri())
    until(page, "player.readyState >= 2")
    page.locator("main .w").nth(1).click()
    until(page, "!player.paused && player.currentTime >= 0.5")
    page.keyboard.press(" ")
    until(page, "player.paused")
    page.evaluate("go(0, false)")
    page.keyboard.press("ArrowDown")
    until(page, "player.currentTime === 1.5 && document.querySelector('.segment.on').lang === 'ar'")
    page.keyboard.press("c")
    assert not page.evaluate("text.classList.contains('coloured')")
    assert page.evaluate("document.querySelectorAll('.lane').length") == 2
    assert page.evaluate("document.querySelectorAll('main b b, main i').length") == 0
    assert faults == []


def test_it_fits_narrow_and_wide_windows_and_runs_right_to_left(page: Any, tmp_path: Path) -> None:
    page.goto(written(tmp_path, embed=False).as_uri())
    for width in (1200, 390):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    ways = page.evaluate("segments.map((one) => getComputedStyle(one.querySelector('.said')).direction)")
    assert ways == ["ltr", "rtl", "ltr"]
    assert page.inner_text("#facts").split(" · ")[1] == "English, Arabic"
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]


def test_a_page_whose_recording_is_gone_asks_for_it(page: Any, tmp_path: Path) -> None:
    path = written(tmp_path, embed=False)
    (tmp_path / "a clip#1 100%.flac").unlink()
    page.goto(path.as_uri())
    until(page, "!document.getElementById('choose').hidden")
    page.set_input_files("#file", str(CLIP))
    until(page, "player.readyState >= 2")
    assert page.evaluate("player.currentSrc").startswith("blob:")
    assert page.evaluate("player.duration") > 1
