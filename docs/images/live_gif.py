"""Draw live.gif, live-page.png and live-phone.png, pictures of the page: `python docs/images/live_gif.py`.

The words are those of live sessions, one by one: of Whisper `base` over bundled recordings of people, each
frame at a time of the audio at which words came; and of `nano` over its own, which the page hears as its
microphone. So delays are those of a machine that keeps up. `--events FILE` takes the JSON lines of an earlier
session (`sottovoce stream --jsonl`) for the first, `--page` draws the others alone. Needs playwright and
Chromium.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import mimetypes
import shutil
import threading
import wave
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, WebSocketRoute, sync_playwright

from sottovoce import load_audio, load_model
from sottovoce.formats.document import event_line
from sottovoce.types import SAMPLE_RATE, Samples

HERE = Path(__file__).parent
WEB = HERE.parents[1] / "src" / "sottovoce" / "server" / "web"
SPEECH = HERE.parents[1] / "examples" / "speech"
CLIPS = (("mixed", 13.4), ("en", 11.0))
"""Names and seconds: what `base` reads without an error."""
LANGUAGES = ("en", "de")
GAP_S = 0.75
SIZE = {"width": 900, "height": 600}
PAGE = HERE.parents[1] / "examples" / "clips" / "mixed.flac"
PAGE_LANGUAGES = ("en", "de", "es", "fr")
PAGE_SIZE = {"width": 1200, "height": 640}
PHONE_SIZE = {"width": 390, "height": 600}
BYTES_A_SECOND = 2 * SAMPLE_RATE
SHOWN_S = 4.0
"""Seconds of the last frame."""
N_COLOURS = 128
HIDDEN = "#timeline, #facts, #picture-open, #doubts, #voices { display: none !important }"
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
Event = dict[str, Any]


def clips() -> Samples:
    gap = np.zeros(round(GAP_S * SAMPLE_RATE), np.float32)
    read = (load_audio(SPEECH / f"{name}.flac", duration_s=seconds) for name, seconds in CLIPS)
    return np.concatenate([part for clip in read for part in (clip, gap)])


def live_events(model: str, languages: tuple[str, ...], audio: Samples) -> list[Event]:
    session = load_model(model).session(languages)
    step = SAMPLE_RATE // 4
    pieces = (session.push(audio[start : start + step]) for start in range(0, len(audio), step))
    events = [event for piece in pieces for event in piece] + session.close()
    return [json.loads(event_line(event)) for event in events]


class Files(BaseHTTPRequestHandler):
    """Gives the page its files, and the list of models."""

    def do_GET(self) -> None:
        path = self.path.removeprefix("/").split("?")[0]
        file = WEB / (path.removeprefix("static/") or "index.html")
        models = [{"id": "base", "model": "base", "languages": [*LANGUAGES], "translates_to": ["en"]}]
        is_file = file.is_file()
        self.send_response(200)
        self.send_header("content-type", mimetypes.guess_type(file.name)[0] or "application/json")
        self.end_headers()
        self.wfile.write(file.read_bytes() if is_file else json.dumps({"data": models}).encode())

    def log_message(self, *_: object) -> None:
        pass


def frames(page: Page, url: str, events: list[Event]) -> list[tuple[Image.Image, float]]:
    """Return pictures with their seconds."""
    sockets: list[WebSocketRoute] = []
    page.route_web_socket("**/v1/live**", lambda socket: sockets.append(socket))
    page.goto(f"{url}/?languages={','.join(LANGUAGES)}")
    page.add_style_tag(content=HIDDEN)
    page.emulate_media(reduced_motion="reduce")
    page.click("#begin")
    page.mouse.move(2, 2)  # what is pointed at looks otherwise
    while not sockets:
        page.wait_for_timeout(50)
    sockets[0].send(json.dumps({"type": "ready", "model": "base"}))
    delays_s: deque[float] = deque(maxlen=20)
    shown = [(0.0, picture(page))]
    for time_s, group in itertools.groupby(events, key=lambda event: event["emission_time"]):
        for event in group:
            sockets[0].send(json.dumps(event))
            if event["type"] == "partial":
                delays_s += [time_s - word["end"] for word in event["words"]]
        if delays_s:
            delay = f"{max(0.0, median(delays_s)):.1f} s"
            page.evaluate("(text) => Object.assign(latency, { hidden: false, textContent: text })", delay)
        shown.append((time_s, picture(page)))
    ends_s = [*(time_s for time_s, _ in shown[1:]), shown[-1][0] + SHOWN_S]
    return [(image, end_s - time_s) for (time_s, image), end_s in zip(shown, ends_s, strict=True)]


def draw_page(chromium: Browser, url: str) -> None:
    """Show events of a session while the page hears its audio, and keep what stands there at the end."""
    events = deque(live_events("nano", PAGE_LANGUAGES, load_audio(PAGE)))
    received = 0

    def answer(socket: WebSocketRoute) -> None:
        socket.send(json.dumps({"type": "ready", "model": "nano"}))

        def take(message: str | bytes) -> None:
            nonlocal received
            received += len(message) if isinstance(message, bytes) else 0
            while events and events[0]["emission_time"] <= received / BYTES_A_SECOND:
                socket.send(json.dumps(events.popleft()))

        socket.on_message(take)

    page = chromium.new_page(viewport=PAGE_SIZE, locale="en", permissions=["microphone"])
    page.route_web_socket("**/v1/live**", answer)
    page.goto(f"{url}/?languages={','.join(PAGE_LANGUAGES)}")
    page.click("#begin")
    page.mouse.move(2, 2)
    page.locator("#log .utterance").nth(len(PAGE_LANGUAGES) - 1).wait_for(timeout=120_000)
    picture(page).save(HERE / "live-page.png", optimize=True)
    page.set_viewport_size(PHONE_SIZE)
    picture(page).save(HERE / "live-phone.png", optimize=True)
    page.close()


def write_wav(path: Path, audio: Samples) -> None:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, SAMPLE_RATE, len(audio), "NONE", ""))
        file.writeframes((audio * 32767).astype("<i2").tobytes())


def picture(page: Page) -> Image.Image:
    page.evaluate(SETTLED)
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--events", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        microphone = Path(folder) / "microphone.wav"
        write_wav(microphone, load_audio(PAGE))
        draw(options.events, microphone, page_alone=options.page)


def draw(given: Path | None, microphone: Path, *, page_alone: bool) -> None:
    arguments = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", "--no-sandbox"]
    arguments.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    with sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        draw_page(chromium, url)
        if page_alone:
            return
        lines = given.read_text(encoding="utf-8").splitlines() if given else []
        events = [json.loads(line) for line in lines] if given else live_events("base", LANGUAGES, clips())
        page = chromium.new_page(viewport=SIZE, locale="en", permissions=["microphone"])
        page.set_default_timeout(120_000)
        shown = [(image, s) for image, s in frames(page, url, events) if s > 0]
        chromium.close()
    palette = shown[-1][0].quantize(N_COLOURS, dither=Image.Dither.NONE)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image, _ in shown)
    milliseconds = [round(1000 * s) for _, s in shown]
    first.save(
        HERE / "live.gif", save_all=True, append_images=others, duration=milliseconds, loop=0, optimize=True
    )


if __name__ == "__main__":
    main()
