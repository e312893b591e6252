"""The live page in a real browser, whose microphone is a recording.

`test_page` runs these in a process of their own: playwright switches stacks inside the process, and a browser
that hangs is ended with that process. The tests share the browser, each in a context of its own.

SOTTOVOCE_SCREENSHOTS names a folder to keep pictures in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.server import scheduler
from sottovoce.server.settings import TranslationSettings, Work
from sottovoce.speakers.live_speakers import LiveSpeakers
from sottovoce.translation.chat import ChatServer
from sottovoce.types import Floats
from tests.formats.transcripts import CHROMIUM
from tests.server.conversation import SENTENCES, TALK, SentencesModel, talk_model
from tests.server.servers import CLIPS, KEY, LOCKED, ServerThread, SlowModel, serving, wait_until, wav
from tests.speakers.somebody import OneVoice, Somebody, one_speaker
from tests.translation.server import stand_in, upper

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.usefixtures("chromium"),
]
LANGUAGES, SPOKEN = zip(*SENTENCES, strict=True)
ALL = f"/?languages={','.join(LANGUAGES)}"
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
WAIT_MS = 60_000
WIDE = {"width": 1200, "height": 800}


_chromium: Any = None
"""The one browser that is open in this process."""


@contextmanager
def launched(microphone: Path) -> Iterator[None]:
    """Start the browser. microphone: a file for what it hears anew each time, at a rate to be converted."""
    global _chromium
    microphone.write_bytes(wav(load_audio(CLIPS / "mixed.flac")))
    arguments = [
        "--use-fake-device-for-media-stream",
        "--use-fake-ui-for-media-stream",
        f"--use-file-for-fake-audio-capture={microphone}%noloop",
        "--autoplay-policy=no-user-gesture-required",
        "--no-sandbox",
    ]
    with playwright.sync_playwright() as running:
        _chromium = running.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield
        _chromium.close()


@contextmanager
def browser(url: str = "", *, allowed: tuple[str, ...] = (), **context: Any) -> Iterator[Any]:
    """A page that is allowed to listen; nobody else's is open beside it, and nothing may go wrong in it.

    allowed: words of errors that a test makes.
    """
    granted = ["microphone", "clipboard-read", "clipboard-write"]
    opened = _chromium.new_context(**{"permissions": granted, "accept_downloads": True, **context})
    faults: list[str] = []
    hosts: list[str] = []
    opened.on("weberror", lambda result: faults.append(str(result.error)))
    try:
        page = opened.new_page()
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: hosts.append(asked.url))
        if url:
            page.goto(url)
        yield page
        owned = page.url.split("/")[2]
        others = [url for url in hosts if url.split("/")[2] != owned]
        assert [url for url in others if not url.startswith(("blob:", "data:"))] == []
        assert [fault for fault in faults if not any(word in fault for word in allowed)] == []
    finally:
        for item in _chromium.contexts:
            item.close()


def state(page: Any, wanted: str) -> None:
    page.wait_for_selector(f'#status[data-state="{wanted}"]')


def picture(page: Any, name: str) -> None:
    folder = os.environ.get("SOTTOVOCE_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(150)
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png")


def pictures(page: Any, name: str) -> None:
    """The page wide and narrow, light and dark; nothing of it may stick out."""
    for width, height in ((1200, 800), (390, 844)):
        for scheme in ("light", "dark"):
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=scheme)
            page.evaluate(SETTLED)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            picture(page, f"{name}-{width}-{scheme}")


def downloaded(page: Any, kind: str) -> str:
    return saved(page, kind).read_text(encoding="utf-8")


def saved(page: Any, kind: str) -> Path:
    page.click("#save")
    with page.expect_download() as waiting:
        page.click(f'.save[data-format="{kind}"]')
    return Path(waiting.value.path())


def test_what_the_microphone_hears_is_written_coloured_and_saved(server: ServerThread) -> None:
    with browser(server.url + ALL) as page:
        pictures(page, "empty")
        assert page.is_visible("#hint")
        page.keyboard.press("Space")
        state(page, "live")
        assert page.is_hidden("#hint"), "it says how to start"
        for i in range(len(SPOKEN)):
            page.wait_for_selector(f"#log .utterance:nth-child({i + 1})")
        pictures(page, "live")
        said = page.locator("#log .words")
        assert [text.strip() for text in said.all_inner_texts()] == list(SPOKEN)
        assert [said.nth(i).get_attribute("lang") for i in range(4)] == list(LANGUAGES)
        assert {said.nth(i).get_attribute("dir") for i in range(4)} == {"auto"}
        labels = page.locator("#log .label")
        colour = "(label) => getComputedStyle(label).backgroundColor"
        assert len({labels.nth(i).evaluate(colour) for i in range(4)}) == 4
        chips = page.locator("#chips li:has(i)").all_inner_texts()
        names = [text.strip("×\n") for text in chips]
        assert names == ["English", "German", "Spanish", "French"]
        assert float(page.inner_text("#latency").split()[0]) < 30
        page.click("#toggle")
        state(page, "ended")
        page.click("#copy")
        assert page.evaluate("navigator.clipboard.readText()").split("\n") == [*SPOKEN, ""]
        assert downloaded(page, "txt").split("\n") == [*SPOKEN, ""]
        subtitles = downloaded(page, "srt").split("\n\n")
        lines = [line for cue in subtitles[:-1] for line in cue.split("\n")[2:]]
        assert " ".join(lines) == " ".join(SPOKEN)
        document = json.loads(downloaded(page, "json"))
        assert [segment["text"] for segment in document["segments"]] == list(SPOKEN)
        assert [segment["language"] for segment in document["segments"]] == list(LANGUAGES)
        assert document["model"] == "nano"
        page.click("#clear")
        assert page.inner_text("#log") == ""


def test_a_file_is_played_and_written_and_ends_by_itself(server: ServerThread) -> None:
    with browser(f"{server.url}/?languages=en") as page:
        with page.expect_file_chooser() as choosing:
            page.check('input[value="file"]', force=True)
        choosing.value.set_files(CLIPS / "en.flac")
        state(page, "ended")
        assert "garden" in page.inner_text("#log")


def test_a_server_that_comes_back_gets_what_it_missed(nano: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost and nothing twice: the page says again what had no words yet, and who spoke so far."""
    handed: list[list[str]] = []

    class Told(LiveSpeakers):
        def add_voices(self, voices: Mapping[str, Floats]) -> None:
            handed.append(list(voices))
            super().add_voices(voices)

    monkeypatch.setattr(
        "sottovoce.server.scheduler.make_live_speakers", lambda wish: Told(Somebody(), OneVoice())
    )
    away = ("WebSocket", "ERR_CONNECTION_REFUSED")  # the longer, the busier the machine is
    with browser(allowed=away) as page:
        reported: list[str] = []
        page.on(
            "websocket", lambda socket: socket.on("framereceived", lambda text: reported.append(str(text)))
        )
        with serving(nano) as first:
            port = int(first.address.split(":")[1])
            page.goto(f"{first.url}{ALL}&speakers=true")
            page.click("#toggle")
            page.wait_for_selector("#log .utterance:nth-child(2)")
            wait_until(lambda: page.is_visible("#log") and any('"voices"' in text for text in reported))
        state(page, "reconnecting")
        picture(page, "reconnecting")
        with serving(nano, port=port):
            state(page, "live")
            page.wait_for_selector("#log .utterance:nth-child(4)")
            page.wait_for_timeout(1_500)
            page.click("#toggle")
            state(page, "ended")
            heard = " ".join(page.locator("#log .words").all_inner_texts()).replace(".", "").split()
        expected = " ".join(SPOKEN).replace(".", "").split()
        assert len(heard) >= len(expected) - 2
        assert len(heard) <= len(expected) + 2
        assert heard[:10] == expected[:10]
        assert ["A"] in handed


UNDERSTOOD = """async () => {
    const { Connection } = await import("/static/connection.js");
    window.WebSocket = class {};
    const connection = new Connection({});
    const found = [];
    for (const message of [
        { type: "ready" },
        { type: "final", end: 1.5 },
        { type: "speech_ended", end: 2 },
        { type: "status", received: 2, behind_s: 0 },
        { type: "status", received: 3, behind_s: 0 },
    ]) {
        connection.receive(message);
        found.push(connection.understood / 16000);
    }
    clearInterval(connection.timer);
    return found;
}"""


def test_the_end_of_the_speech_is_known_when_more_audio_follows(server: ServerThread) -> None:
    """A server that ends closes the speech where its audio ends, within a word too."""
    with browser(server.url) as page:
        assert page.evaluate(UNDERSTOOD) == [0, 1.5, 1.5, 1.5, 2]


def test_a_full_server_is_asked_again_when_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "RETRY_S", 1.5)
    work = Work(forecast=False, engines=1)
    with serving(SlowModel(), work=work) as server, browser(allowed=("429",)) as page:
        model = server.services.registry.schedulers[0]
        model.most_sessions = 0
        opened: list[str] = []
        page.on("websocket", lambda socket: opened.append(socket.url))
        page.goto(server.url)
        page.click("#toggle")
        state(page, "reconnecting")
        assert page.inner_text("#status-text") == "the server is full: trying again"
        page.wait_for_timeout(1_000)
        assert len(opened) == 1
        model.most_sessions = 1
        state(page, "live")


def test_a_key_is_asked_for_where_one_is_needed() -> None:
    with (
        serving(SlowModel(), access=LOCKED) as server,
        browser(server.url, allowed=("401", "WebSocket")) as page,
    ):
        page.click("#toggle")
        state(page, "refused")
        assert "API key" in page.inner_text("#notice")
        pictures(page, "refused")
        page.fill("#key", KEY)
        page.click("#toggle")
        state(page, "live")
        page.wait_for_selector("#now .words")
        assert page.inner_text("#now .words").startswith("word")
        page.click("#toggle")
        state(page, "ended")
        page.set_viewport_size(WIDE)
        assert downloaded(page, "txt").startswith("word")


def test_a_sample_is_written_and_not_kept() -> None:
    with serving(SentencesModel()) as server, browser(server.url) as page:
        page.click("#sample")
        state(page, "ended")
        assert page.locator("#log .words").count() > 0
        assert page.inner_text("#toggle-text") == "Start"
        page.click("#saved-open")
        page.wait_for_selector("#saved-none:visible")
        page.keyboard.press("Escape")
        page.click("#toggle")
        state(page, "live")
        assert page.inner_text("#log") == "", "what somebody says is no part of the sample"


SILENCE = """() => { navigator.mediaDevices.getUserMedia =
    async () => new MediaStreamAudioDestinationNode(new AudioContext()).stream; }"""


CLEARANCE = """() => Math.min(...Array.from(document.querySelectorAll(".choices label span"), (button) => {
    const text = document.createRange();
    text.selectNodeContents(button);
    const [inner, outer] = [text, button].map((each) => each.getBoundingClientRect());
    return Math.min(inner.left - outer.left, outer.right - inner.right);
}))"""


@pytest.mark.parametrize("width", [320, 390])
def test_names_of_sources_keep_clear_of_each_other(server: ServerThread, width: int) -> None:
    with browser(server.url, viewport={"width": width, "height": 844}) as page:
        assert page.evaluate(CLEARANCE) >= 4
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert (
            page.locator(".choices label").last.bounding_box()["y"]
            == (page.locator(".choices label").first.bounding_box()["y"])
        )


def test_the_microphone_is_tested_before_a_session(server: ServerThread) -> None:
    with browser(server.url) as page:
        page.click("#test")
        level = page.locator("#test-level")
        wait_until(lambda: float(level.get_attribute("aria-valuenow") or 0) > 20)
        assert "Fake" in page.inner_text("#begin-source")
        pictures(page, "test")
        page.click("#test")
        assert page.is_hidden("#test-line")
        page.evaluate(SILENCE)
        page.click("#test")
        page.wait_for_selector('#test-text:has-text("No sound comes")')
        page.click("#begin")
        assert page.is_hidden("#test-line")
        state(page, "live")


def test_a_browser_that_may_not_listen_says_so(server: ServerThread) -> None:
    with browser(server.url) as page:
        page.evaluate(
            "() => { navigator.mediaDevices.getUserMedia = "
            "() => Promise.reject(new DOMException('no', 'NotAllowedError')); }"
        )
        page.click("#toggle")
        page.wait_for_selector("#notice:not([hidden])")
        assert "not allowed" in page.inner_text("#notice")
        assert page.inner_text("#toggle-text") == "Start"


def shown(page: Any, events: list[dict[str, Any]]) -> None:
    """Show events without a server, by the page's own modules."""
    page.evaluate(
        """async (events) => {
            const { Transcript } = await import("/static/transcript.js");
            const [log, now] = ["log", "now"].map((id) => document.getElementById(id));
            const transcript = new Transcript(log, now);
            for (const event of events) transcript.take(event, 0);
        }""",
        events,
    )


def word(text: str, language: str, at: float) -> dict[str, Any]:
    return {"word": text, "start": at, "end": at + 0.4, "probability": 1.0, "language": language}


def partial(words: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "partial", "language": words[0]["language"], "words": words}


def test_scripts_of_both_directions_and_text_that_is_no_markup(server: ServerThread) -> None:
    events = [
        partial([word(" <b>Guten</b>", "de", 0.0), word(" Morgen", "de", 0.5)]),
        {"type": "final"},
        partial([word(" السلام", "ar", 2.0), word(" عليكم", "ar", 2.5), word(" everyone.", "en", 3.0)]),
        {"type": "final"},
        partial([word("真", "ja", 5.0), word("っ昼間", "ja", 5.2)]),
        {"type": "unstable", "text": "なのに", "language": "ja"},
    ]
    with browser(server.url) as page:
        shown(page, events)
        pictures(page, "scripts")
        assert page.inner_text("#log .utterance:nth-child(1) .words") == "<b>Guten</b> Morgen"
        said = page.locator("#log .said")
        assert [said.nth(i).get_attribute("dir") for i in range(2)] == ["ltr", "rtl"]
        spans = page.locator("#log .utterance:nth-child(2) .words")
        assert [spans.nth(i).get_attribute("lang") for i in range(2)] == ["ar", "en"]
        assert spans.nth(0).evaluate("(element) => getComputedStyle(element).direction") == "rtl"
        assert page.inner_text("#now .unstable") == "なのに"
        assert page.get_attribute("#log", "role") == "log"
        assert page.get_attribute("#now", "aria-live") == "off"


def test_a_second_pass_changes_words_in_their_place(server: ServerThread) -> None:
    """Also while the next utterance is being spoken; what a person corrected stays."""
    said, read = [word(" Gut", "de", 0.0)], [word(" Guten", "de", 0.0), word(" Tag.", "de", 0.5)]
    first = {**partial(said), "utterance": 1}
    final = {"type": "final", "utterance": 1, "read": True, "language": "de", "words": read}
    final |= {"revised": True, "committed": said}
    with browser(server.url) as page:
        shown(page, [first, final])
        assert page.inner_text("#log .words") == "Guten Tag."
        page.reload()
        shown(page, [first, {**partial([word(" Und", "de", 2.0)]), "utterance": 2}, final])
        assert page.inner_text("#log .revised .words") == "Guten Tag."
        assert page.inner_text("#now .words") == "Und"
        assert page.locator("#log .utterance").count() == 1
        pictures(page, "revised")


def height(page: Any) -> int:
    pixels: int = page.evaluate("document.getElementById('timeline').clientHeight")
    return pixels


def lane_colours(page: Any, n: int) -> list[list[str]]:
    result: list[list[str]] = page.evaluate(
        """(n) => {
            const canvas = document.getElementById("timeline");
            const style = getComputedStyle(document.documentElement);
            const hex = ([r, g, b]) => "#" + [r, g, b].map((c) => c.toString(16).padStart(2, "0")).join("");
            const scale = canvas.height / canvas.clientHeight;
            return Array.from({ length: n }, (_, lane) => {
                const y = (canvas.clientHeight - 16 - 16 * (n - lane) + 8) * scale;
                const { data } = canvas.getContext("2d").getImageData(0, Math.round(y) - 3, canvas.width, 1);
                const seen = new Set();
                for (let i = 0; i < data.length; i += 4) seen.add(hex(data.slice(i, i + 3)));
                const names = Array.from({ length: 6 }, (_, i) => `--voice-${i}`);
                return names.filter((name) => seen.has(style.getPropertyValue(name).trim()));
            });
        }""",
        n,
    )
    return result


def test_every_speaker_has_a_lane_and_keeps_the_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sottovoce.server.scheduler.make_live_speakers", one_speaker)
    n_words = sum(len(text.split()) for _, _, text in TALK)
    with serving(talk_model()) as server, browser() as page:
        page.set_viewport_size(WIDE)
        page.goto(f"{server.url}/?speakers=true")
        page.click("#picture-open")
        low = height(page)
        page.click("#toggle")
        page.wait_for_selector(f'#words:text-is("{n_words}")')
        names = page.locator("#voices .name")
        assert names.all_inner_texts() == [f"Speaker {name}" for name in "ACD"]
        page.click("#toggle")
        state(page, "ended")
        pictures(page, "speakers")
        page.set_viewport_size(WIDE)
        page.wait_for_timeout(300)
        assert names.all_inner_texts() == [f"Speaker {name}" for name in "ABC"]
        assert page.locator("#log .speaker").all_inner_texts() == list("ABCA")
        assert height(page) == low + 3 * 16
        assert lane_colours(page, 3) == [["--voice-0"], ["--voice-3"], ["--voice-2"]]
        page.click("#clear")
        assert height(page) == low


def test_a_translation_stands_under_what_was_said() -> None:
    with stand_in(upper) as chat:
        translation = TranslationSettings(ChatServer(chat.url, "some"))
        with serving(SentencesModel(word_s=0.25), translation=translation) as server, browser() as page:
            page.set_viewport_size(WIDE)
            page.goto(server.url + ALL)
            page.click("#settings-open")
            page.wait_for_selector('#translate_to option[value="es"]', state="attached")
            page.select_option("#translate_to", label="Spanish")
            page.click("#settings-open")
            page.click("#toggle")
            page.wait_for_selector("#now .translation.unstable")
            picture(page, "translation-under-way")
            page.locator("#log .utterance").nth(3).wait_for()
            page.click("#toggle")
            state(page, "ended")
            pictures(page, "translation")
            lines = page.locator("#log .translation").all_inner_texts()
            other = [line.upper() for line in SPOKEN if not line.startswith("Hablamos")]
            assert lines == other  # what was said in Spanish is not written twice
            assert page.locator("#log .translation.unstable").count() == 0
            assert page.locator("#log .translation").first.get_attribute("lang") == "es"
            both = [[said, *([said.upper()] if said.upper() in other else [])] for said in SPOKEN]
            assert downloaded(page, "txt").splitlines() == [line for each in both for line in each]
            cues = downloaded(page, "srt").strip().split("\n\n")
            assert [" ".join(cue.split("\n")[2:]) for cue in cues] == [" ".join(each) for each in both]
            result = json.loads(downloaded(page, "json"))["segments"]
            assert [item["translation"] for item in result if "translation" in item] == lines


def luminance(colour: str) -> float:
    """Relative, of "#rrggbb". Source: WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def colours_of(page: Any) -> list[str]:
    """Those of 8 languages, 6 speakers, and what is behind them."""
    result: list[str] = page.evaluate(
        """() => {
            const style = getComputedStyle(document.documentElement);
            const names = [...Array(8).keys()].map((i) => `--language-${i}`);
            names.push(...[...Array(6).keys()].map((i) => `--voice-${i}`), "--panel");
            return names.map((name) => style.getPropertyValue(name).trim());
        }"""
    )
    return result


def test_colours_are_told_apart_and_read(server: ServerThread) -> None:
    """Speakers are greys with a tint, languages are colours; letters on both can be read."""
    with browser(server.url) as page:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            *spoken, panel = colours_of(page)
            for colour in spoken:
                dark, light = sorted((luminance(colour), luminance(panel)))
                assert (light + 0.05) / (dark + 0.05) >= 4.5, colour
            rgb = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in spoken])
            chroma = np.ptp(rgb, axis=1)
            assert chroma[8:].max() < chroma[:8].min()
            apart = np.abs(rgb[:, None] - rgb[None]).sum(axis=2) + 999 * np.eye(len(rgb), dtype=int)
            assert apart.min() >= 25


def test_every_control_has_a_name_and_is_reached_by_keyboard(server: ServerThread) -> None:
    with browser(server.url) as page:
        page.click("#settings-open")
        pictures(page, "settings")
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, [role=meter], [role=log], canvas")]
                .filter((each) => !each.hidden && !each.closest("[hidden]"))
                .filter((each) => !(each.ariaLabel || each.labels?.length || each.innerText?.trim()))
                .map((each) => each.outerHTML)"""
        )
        assert nameless == []
        page.set_viewport_size(WIDE)
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.name"))
        assert {"toggle", "source", "languages", "key", "unstable", "captions"} <= reached


def tone(page: Any, hz: float, rate: int) -> Any:
    """A second of a tone, by the page's resampler, in pieces of the audio thread's size."""
    return np.array(
        page.evaluate(
            """async ([hz, rate]) => {
                const { Resampler } = await import("/static/resampler.js");
                const resampler = new Resampler(rate, 16000);
                const out = [];
                for (let start = 0; start < rate; start += 128) {
                    const at = (i) => Math.sin((2 * Math.PI * hz * (start + i)) / rate);
                    out.push(...resampler.push(Float32Array.from({ length: 128 }, (_, i) => at(i))));
                }
                return [...out, ...resampler.flush()];
            }""",
            [hz, rate],
        )
    )


def test_the_resampler_keeps_speech_and_lets_nothing_fold_back(server: ServerThread) -> None:
    with browser(server.url) as page:
        for rate in (48_000, 44_100, 96_000, 16_000, 8_000):
            kept = tone(page, 1_000.0, rate)
            seconds = len(kept) / 16_000
            assert seconds == pytest.approx(1.0, abs=0.02)
            t = np.arange(len(kept)) / 16_000
            middle = slice(2_000, 14_000)
            error = kept - np.sin(2 * np.pi * 1_000.0 * t)
            assert np.abs(error[middle]).max() < 0.002, rate
        for rate, hz in ((48_000, 10_000.0), (48_000, 15_000.0), (44_100, 9_500.0), (96_000, 40_000.0)):
            assert np.abs(tone(page, hz, rate)[2_000:14_000]).max() < 0.0005, (rate, hz)
