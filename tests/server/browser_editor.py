"""The page as an editor in a real browser: corrections, names, find and replace, sessions, uploads."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import webvtt

from sottovoce.formats.subtitles import JOINER
from tests.server.browser_page import (
    ALL,
    SPOKEN,
    WIDE,
    browser,
    downloaded,
    partial,
    picture,
    pictures,
    pytestmark,
    saved,
    shown,
    state,
    word,
)
from tests.server.conversation import TALK, SentencesModel, talk_model
from tests.server.servers import CLIPS, KEY, LOCKED, QuietModel, ServerThread, SlowModel, serving, wait_until
from tests.speakers.somebody import one_speaker

docx = pytest.importorskip("docx", reason="python-docx is not installed")

__all__ = ["pytestmark"]

PLAYING = "[...(CSS.highlights.get('playing') ?? [])].map(String).join()"
WATCH_PLAYING = f"""() => {{
    window.played = [];
    const look = () => {{
        const utterance = document.querySelector(".utterance.playing .words")?.textContent ?? "";
        const now = [{PLAYING}, utterance.trim()];
        if (now[0] && now[0] !== played.at(-1)?.[0]) played.push(now);
        requestAnimationFrame(look);
    }};
    look();
}}"""
"""Notes each word that is marked while it is played, with its utterance."""


def said(page: Any) -> list[str]:
    return [text.strip() for text in page.locator("#log .words").all_inner_texts()]


def correct(page: Any, number: int, text: str) -> None:
    page.locator(f"#log .utterance:nth-child({number}) .edit").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Control+A")
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def hear(page: Any, server: ServerThread) -> None:
    """Open the page, and show what the microphone hears."""
    page.goto(server.url + ALL)
    page.keyboard.press("Space")
    page.wait_for_selector("#log .utterance:nth-child(4)")
    page.click("#toggle")
    state(page, "ended")


@contextmanager
def heard(server: ServerThread) -> Iterator[Any]:
    """A page that shows what its microphone heard."""
    with browser() as page:
        hear(page, server)
        yield page


@pytest.fixture(scope="module")
def sentences() -> Iterator[ServerThread]:
    """A server that hears the four sentences in three seconds, where the sound is not what is tested."""
    with serving(SentencesModel()) as running:
        yield running


def test_text_is_corrected_while_the_rest_goes_on(sentences: ServerThread) -> None:
    with browser(sentences.url + ALL) as page:
        page.keyboard.press("Space")
        page.wait_for_selector("#log .utterance:nth-child(1)")
        correct(page, 1, "We walked along the stream.")
        assert said(page)[0] == "We walked along the stream."
        page.wait_for_selector("#log .utterance:nth-child(4)")
        page.locator("#log .utterance:nth-child(2) .edit").focus()
        page.keyboard.press("Enter")
        page.keyboard.type("never mind")
        page.keyboard.press("Escape")
        page.click("#toggle")
        state(page, "ended")
        corrected = ["We walked along the stream.", *SPOKEN[1:]]
        assert said(page) == corrected
        page.locator("body").press("Control+z")
        assert said(page) == list(SPOKEN)
        page.click("#redo")
        assert said(page) == corrected
        assert page.is_disabled("#redo")
        pictures(page, "corrected")


def test_a_click_into_text_edits_it_there(sentences: ServerThread) -> None:
    """With a recording that could be played, too; Space is a letter, and never starts the microphone."""
    with heard(sentences) as page:
        box = page.locator("#log .utterance:nth-child(2) .words").bounding_box()
        page.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] - 12)
        field = page.locator("#log textarea.said")
        text = field.input_value()
        assert text.endswith(SPOKEN[1])
        assert field.evaluate("(field) => field.selectionStart") >= len(text) - 1
        page.keyboard.press("End")
        page.keyboard.type(" Ja , so .")
        pictures(page, "editing")
        inside = "(field) => { const [a, b] = [field, captions].map((one) => one.getBoundingClientRect());"
        assert field.evaluate(f"{inside} return a.right <= b.right && a.left >= b.left; }}")
        page.keyboard.press("Enter")
        assert said(page)[1] == f"{SPOKEN[1]} Ja , so ."
        box = page.locator("#log .utterance:nth-child(2) .words").bounding_box()
        page.mouse.click(box["x"] + 2, box["y"] + 12)
        assert field.evaluate("(field) => field.selectionStart") <= 1
        page.keyboard.press("Escape")
        page.locator("#captions").focus()
        page.keyboard.press("Space")
        assert page.get_attribute("#status", "data-state") == "ended"


def test_text_keeps_its_colour_and_place_when_a_second_language_comes(sentences: ServerThread) -> None:
    with browser(sentences.url) as page:
        good = [partial([word(" Good", "en", 0.0), word(" evening", "en", 0.5)]), {"type": "final"}]
        shown(page, good)
        colours = "[...document.querySelectorAll('#log .words')].map((one) => getComputedStyle(one).color)"
        ink = page.evaluate("getComputedStyle(document.body).color")
        text, label = page.locator("#log .words").first, page.locator("#log .label").first
        assert label.is_hidden()
        before = text.bounding_box()
        shown(page, [*good, partial([word(" Guten", "de", 2.0)]), {"type": "final"}])
        assert set(page.evaluate(colours)) == {ink}
        assert label.is_visible()
        assert text.bounding_box() == before


SIZES = [(1280, 800), (1280, 600), (844, 390), (390, 844)]
"""Windows in CSS pixels."""
TOP, BOTTOM = 0.125, 0.865
"""The parts of the height of a window between which there are captions while somebody speaks."""


def test_captions_have_most_of_every_window(sentences: ServerThread) -> None:
    with browser(sentences.url + ALL) as page:
        page.click("#begin")
        page.wait_for_selector("#log .utterance:nth-child(4)")
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            box = page.locator("#captions").bounding_box()
            assert box["y"] <= TOP * height, (width, height, box)
            assert box["y"] + box["height"] >= BOTTOM * height, (width, height, box)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.click("#settings-open")
            picture(page, f"settings-{width}x{height}")
            assert page.locator("#captions").bounding_box()["height"] >= 0.25 * height
            page.click("#settings-open")


def test_captions_stand_alone_in_full_screen(sentences: ServerThread) -> None:
    with heard(sentences) as page:
        page.keyboard.press("f")
        page.wait_for_selector("header", state="hidden")
        assert page.locator("#captions").bounding_box()["height"] > 0.95 * page.viewport_size["height"]
        page.evaluate("document.exitFullscreen()")
        page.wait_for_selector("header")


def test_languages_are_chips_that_can_change_during_a_session(sentences: ServerThread) -> None:
    sent: list[dict[str, Any]] = []

    def watch(socket: Any) -> None:
        server_side = socket.connect_to_server()

        def forward(message: str | bytes) -> None:
            if isinstance(message, str):
                sent.append(json.loads(message))
            server_side.send(message)

        socket.on_message(forward)

    with browser() as page:
        page.route_web_socket("**/v1/live?*", watch)
        page.goto(f"{sentences.url}/?languages=en")
        assert page.inner_text("#chips").startswith("English")
        page.click("#begin")
        state(page, "live")
        page.wait_for_selector('#add-language option[value="de"]', state="attached")
        page.select_option("#add-language", "de")
        page.click('#chips button[aria-label="Remove English"]')
        wait_until(lambda: [item for item in sent if item["type"] == "configure"][1:] != [])
        configured = [item["languages"] for item in sent if item["type"] == "configure"]
        assert configured == [["en", "de"], ["de"]]
        page.click("#toggle")
        state(page, "ended")
        page.reload()
        assert page.input_value("#languages") == "en"  # of the address
        page.goto(sentences.url)
        assert page.input_value("#languages") == "de"


def test_every_format_has_what_stands_on_the_page(sentences: ServerThread) -> None:
    with heard(sentences) as page:
        correct(page, 1, "We <walked> & *talked*.")
        wanted = ["We <walked> & *talked*.", *SPOKEN[1:]]
        assert downloaded(page, "txt").splitlines() == wanted
        srt = [cue.split("\n")[2] for cue in downloaded(page, "srt").strip().split("\n\n")]
        assert [line.replace(JOINER, "") for line in srt] == wanted
        cues = webvtt.from_string(downloaded(page, "vtt"))
        assert [
            cue.text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for cue in cues
        ] == wanted
        document = docx.Document(str(saved(page, "docx")))
        assert document.paragraphs[0].style.name == "Title"
        assert [
            paragraph.text for paragraph in document.paragraphs if paragraph.style.name == "Normal"
        ] == wanted
        markdown = downloaded(page, "md").strip().split("\n\n")
        assert markdown[3::2] == ["We \\<walked> & \\*talked\\*.", *SPOKEN[1:]]
        segments = json.loads(downloaded(page, "json"))["segments"]
        assert [segment["text"] for segment in segments] == wanted
        times = [
            time for segment in segments for word in segment["words"] for time in (word["start"], word["end"])
        ]
        assert times == sorted(times)


def test_speakers_get_names_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given while they speak; the correction of a speaker at the end of the utterance does not undo them."""
    monkeypatch.setattr("sottovoce.server.scheduler.make_live_speakers", one_speaker)
    n_words = sum(len(text.split()) for _, _, text in TALK)
    with serving(talk_model()) as server, browser(f"{server.url}/?speakers=true") as page:
        page.click("#toggle")
        page.wait_for_selector("#voices button.name")
        page.click("#voices button.name")
        page.keyboard.type("Anna <i>")
        page.keyboard.press("Enter")
        assert page.locator("#now .speaker").first.inner_text() == "Anna <i>"
        page.wait_for_selector(f'#words:text-is("{n_words}")')
        page.click("#toggle")
        state(page, "ended")
        assert page.locator("#log .speaker").all_inner_texts() == ["Anna <i>", "B", "C", "Anna <i>"]
        assert page.locator("#voices .name").all_inner_texts() == ["Anna <i>", "Speaker B", "Speaker C"]
        assert downloaded(page, "txt").splitlines()[0] == f"Anna <i>: {TALK[0][2]}"
        assert "<v Anna &lt;i&gt;>" in downloaded(page, "vtt")
        pictures(page, "named")
        page.set_viewport_size(WIDE)
        second = page.locator("#log .speaker").nth(1)
        assert second.bounding_box()["x"] < page.locator("#log .words").first.bounding_box()["x"]
        second.click()
        page.keyboard.type("Ben")
        page.keyboard.press("Enter")
        assert page.locator("#log .speaker").all_inner_texts() == ["Anna <i>", "Ben", "C", "Anna <i>"]
        page.click("#undo")
        page.click("#undo")
        assert page.locator("#log .speaker").all_inner_texts() == list("ABCA")
        page.locator("#log .speaker").nth(2).click()
        pictures(page, "speaker-menu")
        page.set_viewport_size(WIDE)
        page.keyboard.type("Speaker B")
        page.keyboard.press("Enter")
        assert page.locator("#log .speaker").all_inner_texts() == list("ABA")
        page.locator("#log .speaker").first.click()
        page.click('#speaker-choices button:text-is("New speaker")')
        assert page.locator("#log .speaker").all_inner_texts() == ["1", "B", "A"]
        assert page.locator("#voices .name").all_inner_texts() == ["Speaker 1", "Speaker A", "Speaker B"]
        page.click("#undo")
        page.click("#redo")
        page.wait_for_timeout(2_500)  # it is kept within two seconds
        page.reload()
        page.wait_for_selector("#log .speaker")
        assert page.locator("#log .speaker").all_inner_texts() == ["1", "B", "A"]


def test_a_word_is_replaced_everywhere_and_in_what_comes(sentences: ServerThread) -> None:
    with browser(sentences.url + ALL) as page:
        page.keyboard.press("Space")
        page.wait_for_selector("#log .utterance:nth-child(1)")
        page.locator("body").press("Control+f")
        page.fill("#find-text", "the")
        assert page.inner_text("#find-count") == "2 found"
        assert page.evaluate("CSS.highlights.get('found').size") == 2
        page.fill("#find-with", "a")
        page.click("#find-replace")
        assert page.inner_text("#find-count") == "2 replaced"
        first = "We walked along a river and talked about a summer."
        assert said(page)[0] == first
        page.fill("#find-text", "calme")
        page.fill("#find-with", "tranquille")
        page.check("#find-lasting")
        page.click("#find-replace")
        page.wait_for_selector("#log .utterance:nth-child(4)")
        assert said(page) == [first, *SPOKEN[1:3], SPOKEN[3].replace("calme", "tranquille")]
        page.keyboard.press("Escape")
        assert page.is_hidden("#finder")


def test_the_size_of_the_text_stays(sentences: ServerThread) -> None:
    with browser() as page:
        size = "parseFloat(getComputedStyle(document.querySelector('#log .said')).fontSize)"
        said_once = [partial([word(" Good", "en", 0.0), word(" evening", "en", 0.5)]), {"type": "final"}]
        page.goto(sentences.url)
        shown(page, said_once)
        before = page.evaluate(size)
        page.click("#larger")
        page.click("#larger")
        larger = page.evaluate(size)
        assert larger > 1.2 * before
        page.reload()
        shown(page, said_once)
        assert page.evaluate(size) == larger


def test_a_session_is_there_after_a_reload_and_plays(sentences: ServerThread) -> None:
    with heard(sentences) as page:
        correct(page, 2, "Wir haben viel Zeit.")
        page.click("#saved-open")
        page.fill("#keep-title", "Tuesday <b>")
        page.click("#keep-now")
        page.wait_for_selector('#saved-list li[aria-current]:has-text("Tuesday <b>")')
        about = page.inner_text("#saved-list li span")
        assert "English, German, Spanish, French · 26 words" in about
        pictures(page, "kept")
        page.reload()
        wanted = [SPOKEN[0], "Wir haben viel Zeit.", *SPOKEN[2:]]
        wait_until(lambda: said(page) == wanted)
        assert page.inner_text("#title") == "Tuesday <b>"
        assert page.inner_text("#toggle-text") == "Continue"
        assert page.evaluate("document.querySelector('#playback audio').paused")
        box = page.locator("#log .utterance:nth-child(2) .words").bounding_box()
        page.evaluate(WATCH_PLAYING)
        page.keyboard.down("Alt")
        page.mouse.click(box["x"] + box["width"] - 12, box["y"] + 12)
        page.keyboard.up("Alt")
        wait_until(lambda: ["Hablamos", SPOKEN[2]] in page.evaluate("played"))
        assert page.evaluate("played")[0] == ["Zeit.", "Wir haben viel Zeit."]
        page.click("#toggle")  # its sound is a file, to which none is added
        state(page, "live")
        page.wait_for_selector("#notice:visible")
        assert "sound of what is said from here on is not kept" in page.inner_text("#notice")
        page.click("#toggle")
        state(page, "ended")
        page.click("#saved-open")
        page.once("dialog", lambda dialog: dialog.accept())
        page.click('#saved-list button:text-is("Delete")')
        page.wait_for_selector("#saved-none:visible")
        page.reload()
        page.click("#saved-open")
        page.wait_for_selector("#saved-none:visible")
        assert said(page) == []


def test_a_reload_during_speech_loses_no_committed_word(sentences: ServerThread) -> None:
    with browser(sentences.url + ALL) as page:
        page.on("dialog", lambda dialog: dialog.accept())  # of leaving
        page.click("#begin")
        page.wait_for_selector("#log .utterance:nth-child(3)")
        page.wait_for_timeout(2_500)
        page.reload()
        wait_until(lambda: said(page)[:3] == list(SPOKEN[:3]))
        assert said(page)[:3] == list(SPOKEN[:3])


def test_clear_keeps_the_session_and_can_be_undone(sentences: ServerThread) -> None:
    with heard(sentences) as page:
        other = page.context.new_page()
        page.click("#clear")
        assert said(page) == []
        page.click("#undo")
        wait_until(lambda: said(page) == list(SPOKEN))
        page.click("#clear")
        other.goto(sentences.url)
        assert said(other) == []
        other.click("#last-open")
        wait_until(lambda: said(other) == list(SPOKEN))


def test_words_that_are_deleted_are_gone_after_a_reload(sentences: ServerThread) -> None:
    with heard(sentences) as page:
        for _ in SPOKEN:
            page.locator("#log .edit:visible").first.focus()
            page.keyboard.press("Enter")
            page.keyboard.press("Control+A")
            page.keyboard.press("Delete")
            page.keyboard.press("Enter")
        page.click("#saved-open")
        page.wait_for_selector('#saved-list li[aria-current]:has-text("0 words")')
        page.keyboard.press("Escape")
        page.click("#undo")
        assert said(page) == [SPOKEN[-1]]
        page.click("#redo")
        page.wait_for_timeout(2_500)
        page.reload()
        page.wait_for_selector("#playback audio", state="attached")
        assert said(page) == []


def test_two_tabs_with_one_session_keep_both_texts(sentences: ServerThread) -> None:
    with heard(sentences) as page:
        other = page.context.new_page()
        other.goto(sentences.url)
        other.click("#last-open")
        wait_until(lambda: said(other) == list(SPOKEN))
        for tab, text in ((page, "One."), (other, "Another."), (page, "One more.")):
            correct(tab, 1, text)
            tab.click("#saved-open")
            tab.wait_for_selector(f'#saved-list li[aria-current]:has-text("{text}")')
            tab.keyboard.press("Escape")
        for tab, text in ((page, "One more."), (other, "Another.")):
            tab.reload()
            wait_until(lambda tab=tab, text=text: said(tab)[:1] == [text])
            assert said(tab) == [text, *SPOKEN[1:]]
            tab.wait_for_selector("#playback audio", state="attached")


def test_text_is_kept_where_its_sound_has_no_room(sentences: ServerThread) -> None:
    with browser(sentences.url + ALL) as page:
        room = {"origin": sentences.url, "quotaSize": 200_000}  # bytes, 6 s of sound, or all of the text
        page.context.new_cdp_session(page).send("Storage.overrideQuotaForOrigin", room)
        page.keyboard.press("Space")
        page.wait_for_selector('#audio:text-is("0:06")')
        page.click("#toggle")
        state(page, "ended")
        page.wait_for_selector("#notice:visible")
        assert "does not keep the sound (Quota" in page.inner_text("#notice")
        page.reload()
        wait_until(lambda: said(page) == list(SPOKEN))


def test_a_browser_that_keeps_nothing_says_so_and_asks(sentences: ServerThread) -> None:
    with browser() as page:
        page.add_init_script("IDBFactory.prototype.open = () => { throw new Error('forbidden'); };")
        hear(page, sentences)
        page.wait_for_selector("#notice:visible")
        assert "keeps no sessions (forbidden)" in page.inner_text("#notice")
        page.once("dialog", lambda dialog: dialog.dismiss())
        page.click("#clear")
        assert said(page) == list(SPOKEN)


def test_a_recording_is_uploaded_and_edited(server: ServerThread) -> None:
    with browser(server.url + ALL) as page:
        page.evaluate(
            """() => {
                window.shown = new Set();
                const text = document.getElementById("upload-text");
                new MutationObserver(() => shown.add(text.textContent)).observe(text, { childList: true });
            }"""
        )
        with page.expect_file_chooser() as choosing:
            page.check('input[value="upload"]', force=True)
        choosing.value.set_files(CLIPS / "mixed.flac")
        state(page, "ended")
        assert " ".join(said(page)).rstrip(".") == " ".join(SPOKEN).rstrip(".")
        shown = page.evaluate("[...shown]")
        assert any(text.startswith("Sending") for text in shown)
        assert any(" of 0:1" in text for text in shown), shown
        assert page.is_hidden("#upload")
        correct(page, 1, "We talked about the summer.")
        page.evaluate(WATCH_PLAYING)
        page.locator("#log time").first.click()
        wait_until(lambda: ["talked", "We talked about the summer."] in page.evaluate("played"))
        assert downloaded(page, "txt").startswith("We talked about the summer.")
        assert page.inner_text("#title") == "mixed"
        assert page.text_content("#upload-name") == "mixed.flac"
        page.click("#save")
        with page.expect_download() as waiting:
            page.click('.save[data-format="srt"]')
        assert waiting.value.suggested_filename == "mixed.srt"


def test_a_recording_is_dropped_on_the_page() -> None:
    model = QuietModel()
    with serving(model) as server, browser(server.url) as page:
        page.evaluate(
            """async (bytes) => {
                const data = new DataTransfer();
                data.items.add(new File([new Uint8Array(bytes)], "en.flac"));
                document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
            }""",
            list((CLIPS / "en.flac").read_bytes()),
        )
        state(page, "ended")
        assert model.n_calls > 0
        assert page.text_content("#upload-name") == "en.flac"


def test_an_upload_that_is_refused_or_cancelled_says_so() -> None:
    with (
        serving(SlowModel(lambda: time.sleep(0.2)), access=LOCKED) as server,
        browser(server.url, allowed=("400", "401")) as page,
    ):
        with page.expect_file_chooser() as choosing:
            page.check('input[value="upload"]', force=True)
        choosing.value.set_files(CLIPS / "en.flac")
        page.wait_for_selector("#notice:not([hidden])")
        assert "API key" in page.inner_text("#notice")
        page.fill("#key", KEY)
        with page.expect_file_chooser() as choosing:
            page.click("#toggle")
        choosing.value.set_files({"name": "notes.wav", "mimeType": "audio/wav", "buffer": b"notes " * 99})
        page.wait_for_selector('#notice:has-text("notes.wav")')
        assert page.inner_text("#notice-text").endswith("got data that matches no known format")
        assert page.is_hidden("#title")
        with page.expect_file_chooser() as choosing:
            page.click("#toggle")
        choosing.value.set_files(CLIPS / "en.flac")
        page.wait_for_selector("#log .utterance:nth-child(3)")  # of a recording that never ends
        assert page.is_disabled("#clear")
        page.click("#upload-cancel")
        state(page, "ended")
        assert page.is_hidden("#upload")
        wait_until(lambda: server.services.n_requests == 0)


def test_captions_that_are_late_say_so_and_what_helps(sentences: ServerThread) -> None:
    sockets: list[Any] = []

    def watch(socket: Any) -> None:
        sockets.append(socket)
        server_side = socket.connect_to_server()
        server_side.on_message(lambda text: None if '"status"' in text else socket.send(text))

    with browser() as page:
        page.route_web_socket("**/v1/live?*", watch)
        page.goto(f"{sentences.url}/?languages=en")
        page.keyboard.press("Space")
        state(page, "live")

        def late(seconds: float) -> None:
            sockets[0].send(json.dumps({"type": "status", "received": 20.0, "behind_s": seconds}))

        late(1.5)
        page.wait_for_timeout(200)
        assert page.is_hidden("#late")
        late(12.25)
        page.wait_for_selector("#late:visible")
        assert "12 s late" in page.inner_text("#late")
        assert "smaller model" in page.inner_text("#late")
        assert page.inner_text("#latency") == "12 s behind"
        pictures(page, "late")
        late(2.5)
        page.wait_for_selector('#latency:text-is("2.5 s behind")')  # still late: it does not flicker
        late(0.5)
        page.wait_for_selector("#late", state="hidden")
        assert "behind" not in page.inner_text("#latency")
        wait_until(lambda: page.inner_text("#audio") >= "0:05")
        sockets[0].send(json.dumps({"type": "status", "received": 0.5, "behind_s": 0.0}))
        page.wait_for_selector("#late:visible")  # the rest waits on its way, in buffers that nobody sees


RETIMED = """async ([words, text]) => {
    const { retimed } = await import("/static/retiming.js");
    return retimed(words, text);
}"""


CORRECTIONS = [
    (" a b c d", "a b c d", "abcd"),
    (" a b c d", "a x c d", "acd"),
    (" a b c d", "x y a b c d", "abcd"),
    (" a b c d", "a b c d x", "abcd"),
    (" a b c d", "b c d", "bcd"),
    (" a b c d", "a d", "ad"),
    (" a b c d", "ab c d", "cd"),
    (" a b c d", "x", ""),
    (" a b c d", "", ""),
    (" a a a a", "a a a", "aaa"),
    (" a b", "  a   b  ", "ab"),
]
"""What was said, what it is corrected to, and the words that keep their times."""


def test_corrected_words_keep_their_times_and_new_ones_share_the_rest(sentences: ServerThread) -> None:
    with browser(sentences.url) as page:
        for before, after, kept in CORRECTIONS:
            words = [
                {"word": f" {word}", "start": i, "end": i + 1, "language": "en", "speaker": "A"}
                for i, word in enumerate(before.split())
            ]
            result = page.evaluate(RETIMED, [words, after])
            assert "".join(word["word"] for word in result).strip() == " ".join(after.split())
            assert "".join(word["word"].strip() for word in result if word in words) == kept
            times = [time for word in result for time in (word["start"], word["end"])]
            assert times == sorted(times)
            assert not times or (times[0] >= 0 and times[-1] <= len(words))


def test_text_without_spaces_is_corrected_letter_by_letter(sentences: ServerThread) -> None:
    words = [
        {"word": word, "start": i, "end": i + 1, "language": "ja", "speaker": None}
        for i, word in enumerate("真っ昼間なのに")
    ]
    with browser(sentences.url) as page:
        result = page.evaluate(RETIMED, [words, "真っ白間なのに"])
    assert "".join(word["word"] for word in result) == "真っ白間なのに"
    assert next(word for word in result if word not in words)["start"] >= 1
    assert sum(word in words for word in result) >= 5


ANNOUNCED = """async () => {
    const { Transcript } = await import("/static/transcript.js");
    const [log, now] = ["log", "now"].map((id) => document.getElementById(id));
    const transcript = new Transcript(log, now);
    transcript.replacements = [["one", "two"]];
    const added = [];
    const note = (nodes) => added.push(...[...nodes].map((node) => node.className));
    const watcher = new MutationObserver((found) => found.forEach(({ addedNodes }) => note(addedNodes)));
    watcher.observe(log, { childList: true, subtree: true });
    const words = [{ word: " one", start: 0, end: 1, language: "en", speaker: null }];
    transcript.take({ type: "partial", words, language: "en", utterance: 0 }, 0);
    transcript.take({ type: "final", words, utterance: 0 }, 0);
    transcript.take({ type: "translation", utterance: 0, text: "eins", language: "de", final: true }, 0);
    await new Promise((resolve) => setTimeout(resolve, 50));
    return [added, log.querySelector(".words").textContent, log.querySelector(".translation").textContent];
}"""


def test_what_is_said_is_announced_once(sentences: ServerThread) -> None:
    """The log is read aloud as it grows: a replacement and a translation do not have it read again."""
    with browser(sentences.url) as page:
        added, said_then, translation = page.evaluate(ANNOUNCED)
        assert (said_then, translation) == ("two", "eins")
        assert added == ["utterance", "translation"]
