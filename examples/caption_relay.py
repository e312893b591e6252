"""Relay shared captions to a stream on YouTube, a meeting on Zoom, or WebVTT segments for HLS players.

    python examples/caption_relay.py LINK youtube 'http://upload.youtube.com/closedcaption?cid=…'
    python examples/caption_relay.py LINK zoom 'https://wmcc.zoom.us/closedcaption?id=…&lang=en-US'
    python examples/caption_relay.py LINK hls FOLDER

LINK is the link for readers that the page shows. Every word is sent once, corrections are not. When the
server starts again, the relay goes on.
"""

import asyncio
import json
import math
import sys
import time
import urllib.request
from contextlib import suppress
from datetime import datetime, timezone
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

SEGMENT_S, WORDS_COME_WITHIN_S = 6, 4
AGAIN_S, AWAY_S = (0.25, 0.5, 1, 2, 4, 8), 60
HEAD = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:6\n#EXT-X-PLAYLIST-TYPE:EVENT\n"
VTT = "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:0\n"


def text_of(words: list[dict[str, Any]]) -> str:
    return " ".join("".join(word["word"] for word in words).split())


class Relay:
    def __init__(self, service: str, target: str) -> None:
        self.service, self.target = service, target
        self.n_taken: dict[int, int] = {}  # words of each utterance
        self.words: list[dict[str, Any]] = []  # that wait
        self.n_sent = 0  # posts or segments
        self.newest_s, self.newest_at_s = 0.0, time.time()

    def take(self, message: dict[str, Any]) -> None:
        if message.get("clear"):  # another text, whose times begin at 0
            self.n_taken, self.newest_s = {}, 0.0
        for utterance in filter(None, [*message.get("utterances", []), message.get("now")]):
            number, words = utterance["id"], utterance["words"]
            for word in words[self.n_taken.get(number, 0) :]:
                self.words.append({**word, "utterance": number})
                self.newest_s, self.newest_at_s = max(self.newest_s, word["end"]), time.time()
            self.n_taken[number] = max(len(words), self.n_taken.get(number, 0))

    def post(self) -> None:
        url, body = f"{self.target}&seq={self.n_sent + 1}", text_of(self.words)
        if self.service == "youtube":
            began_s = self.newest_at_s - self.newest_s + self.words[0]["start"]
            body = f"{datetime.fromtimestamp(began_s, timezone.utc):%Y-%m-%dT%H:%M:%S}.000\n{body}"
        try:
            request = urllib.request.Request(url, f"{body}\n".encode(), {"content-type": "text/plain"})
            urllib.request.urlopen(request, timeout=10).close()
            self.words, self.n_sent = [], self.n_sent + 1
        except OSError as error:
            print(f"trying again: {error}", file=sys.stderr)

    def write(self, *, is_last: bool) -> None:
        passed_s = self.newest_s + time.time() - self.newest_at_s - WORDS_COME_WITHIN_S
        n_due = math.ceil(self.newest_s / SEGMENT_S) if is_last else int(passed_s // SEGMENT_S)
        for number in range(self.n_sent, n_due):
            due = [word for word in self.words if word["start"] < (number + 1) * SEGMENT_S]
            self.words = [word for word in self.words if word not in due]
            cues = [list(words) for _, words in groupby(due, lambda word: word["utterance"])]
            texts = [f"\n{time_of(cue)}\n{escape(text_of(cue), quote=False)}\n" for cue in cues]
            Path(self.target, f"captions{number}.vtt").write_text(VTT + "".join(texts), encoding="utf-8")
        self.n_sent = max(self.n_sent, n_due)
        lines = [f"#EXTINF:{SEGMENT_S}.000,\ncaptions{number}.vtt\n" for number in range(self.n_sent)]
        Path(self.target, "captions.m3u8").write_text("".join([HEAD, *lines, "#EXT-X-ENDLIST\n" * is_last]))


def time_of(cue: list[dict[str, Any]]) -> str:
    times = [datetime.fromtimestamp(s, timezone.utc) for s in (cue[0]["start"], cue[-1]["end"])]
    return " --> ".join(f"{at:%H:%M:%S.%f}"[:-3] for at in times)


async def read(link: str, messages: asyncio.Queue[dict[str, Any]]) -> None:
    """Queue what readers get, connecting again by the rule of their page, and "ended" at last."""
    address, _, token = link.partition("/read#")
    url = f"{address.replace('http', 'ws', 1)}/v1/captions/read"
    offers: Any = ["sottovoce", f"sottovoce-captions.{token}"]
    broken_s, attempts = -math.inf, 0
    try:
        while True:
            try:
                async with connect(url, subprotocols=offers) as socket:
                    while (message := json.loads(await socket.recv()))["type"] != "ended":
                        messages.put_nowait(message)
                        attempts = 0
                    return
            except (OSError, ConnectionClosed, InvalidHandshake) as error:
                if isinstance(error, ConnectionClosed):
                    broken_s = time.monotonic()
                answer = getattr(error, "response", None)
                if answer and answer.status_code == 404 and time.monotonic() - broken_s > AWAY_S:
                    raise
                print(f"connecting again: {error}", file=sys.stderr)
                least_s = float(answer.headers.get("retry-after", 0)) if answer else 0
                await asyncio.sleep(max(AGAIN_S[min(attempts, len(AGAIN_S) - 1)], least_s))
                attempts += 1
    finally:
        messages.put_nowait({"type": "ended"})


async def main(link: str, service: str, target: str) -> None:
    relay, messages, is_ended = Relay(service, target), asyncio.Queue[dict[str, Any]](), False
    reading = asyncio.create_task(read(link, messages))
    while not is_ended:
        with suppress(asyncio.TimeoutError):
            message = await asyncio.wait_for(messages.get(), 1.0)
            is_ended = message["type"] == "ended"
            relay.take(message)
        if service == "hls":
            await asyncio.to_thread(relay.write, is_last=is_ended)
        elif relay.words:
            await asyncio.to_thread(relay.post)
    await reading


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
