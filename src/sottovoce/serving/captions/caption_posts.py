"""Captions of a session that is shared, posted to a stream on YouTube or a meeting on Zoom while it goes on.

Words are sent once, as they were when they came: neither service takes any back. What fails is sent again, a
few times. Sources: YouTube, "Closed Captions over HTTP for YouTube Live Streams"; Zoom, "Using a third-party
closed captioning service".
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from ipaddress import IPv4Network, IPv6Network, ip_network

import anyio

from sottovoce.serving.access.public_post import PostError, PostTarget, post, target_of
from sottovoce.serving.captions.hls import CaptionUtterance, CaptionWord, Change, cues_of
from sottovoce.serving.captions.shared_captions import SharedCaptions
from sottovoce.serving.parsing.fields import wrong

SERVICES = {"youtube": "youtube.com", "zoom": "zoom.us"}
"""Which are posted to, with the domain of their addresses."""
EVERY_S = 1.0
"""Between two posts, at least."""
WAITS_S = (1.0, 2.0, 4.0)
"""Before what failed is sent again; after the last of them it is given up, and what came later is sent."""
EVERYWHERE = (ip_network("0.0.0.0/0"), ip_network("::/0"))
"""Networks of hosts that the operator has named."""
COUNTRIES = {"en": "US", "zh": "CN", "ja": "JP", "pt": "BR", "ko": "KR", "uk": "UA", "cs": "CZ", "sv": "SE"}
"""Of languages, as Zoom wants them told; of others the country has the letters of the language."""


@dataclass(frozen=True, slots=True)
class CaptionTarget:
    """Where captions are posted. service: one of `SERVICES`. networks: private ones that may be called."""

    service: str
    target: PostTarget
    networks: Sequence[IPv4Network | IPv6Network] = ()

    @classmethod
    def read(cls, url: str, service: str | None, hosts: Sequence[str]) -> CaptionTarget:
        """Read what a publisher wishes. hosts: further ones, which the operator has named.

        Raises: ApiError 400 for another host, and for one that could not be called.
        """
        is_named = any(f"//{host}" in url for host in hosts)
        target = target_of("url", url, EVERYWHERE if is_named else ())
        chosen_by_host = next((name for name, domain in SERVICES.items() if is_of(target.host, domain)), None)
        if chosen_by_host is None and target.host not in hosts:
            raise wrong("url", f"one of {', '.join(SERVICES.values())} (see --caption-host)", "another")
        chosen = service or chosen_by_host
        if chosen not in SERVICES:
            raise wrong("service", " or ".join(SERVICES), "something else")
        return cls(chosen, target, EVERYWHERE if target.host in hosts else ())

    def at(self, number: int, language: str | None) -> PostTarget:
        """Return where the post of a number goes."""
        more = f"seq={number}"
        if self.service == "zoom":
            code = language or "en"
            more += f"&lang={code}-{COUNTRIES.get(code, code.upper())}"
        where = self.target
        joint = "&" if "?" in where.path else "?"
        return PostTarget(where.scheme, where.host, where.port, f"{where.path}{joint}{more}")

    def body(self, words: Sequence[CaptionWord], zero_s: float) -> bytes:
        """Write words; zero_s: when the session began (seconds since 1970)."""
        lines = []
        for cue in cues_of(words):
            if self.service == "youtube":
                lines.append(utc(zero_s + cue[0]["start"]))
            lines.append(" ".join("".join(word["word"] for word in cue).split()))
        return ("\n".join(lines) + "\n").encode()


class CaptionPoster:
    """Posts one session, what was said before aside."""

    def __init__(self, shared: SharedCaptions, target: CaptionTarget) -> None:
        self.target = target
        self._shared = shared
        self._seen = -1
        self._n_words: dict[int, int] = {}
        """Of each utterance, that were taken."""
        self._waiting: list[CaptionWord] = []
        self._language: str | None = None
        self._zero_s = math.inf
        self._number = 1
        self._was_taken: bool | None = None
        self._take()
        self._waiting = []

    async def run(self, on_state: Callable[[bool, int | None], Awaitable[None]]) -> None:
        """Post what comes, for ever. on_state: told whether posts are taken, when that changes, by status."""
        while True:
            self._take()
            if self._waiting:
                words, self._waiting = self._waiting, []
                await self._post(words, on_state)
            await anyio.sleep(EVERY_S)

    async def _post(
        self, words: Sequence[CaptionWord], on_state: Callable[[bool, int | None], Awaitable[None]]
    ) -> None:
        """Post words, again where that fails; their number is used up when they are taken."""
        where, body = self.target.at(self._number, self._language), self.target.body(words, self._zero_s)
        for wait_s in (*WAITS_S, None):
            status = await status_of(where, body, self.target.networks)
            is_taken = status is not None and 200 <= status < 300
            if is_taken is not self._was_taken:
                self._was_taken = is_taken
                await on_state(is_taken, status)
            if is_taken:
                self._number += 1
                return
            if wait_s is not None:
                await anyio.sleep(wait_s)

    def _take(self) -> None:
        """Take words that were not there before."""
        message = self._shared.since(self._seen)
        self._seen = self._shared.revision
        if message is None:
            return
        change: Change = json.loads(message)
        if change.get("clear"):
            self._n_words, self._zero_s = {}, math.inf
        now = change.get("now")
        for utterance in [*change.get("utterances", []), *([now] if now else [])]:
            self._take_words(utterance)

    def _take_words(self, utterance: CaptionUtterance) -> None:
        words, n_before = utterance["words"], self._n_words.get(utterance["id"], 0)
        if len(words) > n_before:
            self._n_words[utterance["id"]] = len(words)
            self._waiting += words[n_before:]
            self._zero_s = min(self._zero_s, time.time() - words[-1]["end"])
            self._language = words[-1].get("language") or self._language


async def status_of(
    where: PostTarget, body: bytes, networks: Sequence[IPv4Network | IPv6Network]
) -> int | None:
    """Post, and return the status; None: there was none."""
    try:
        return await post(where, [("content-type", "text/plain; charset=utf-8")], body, networks)
    except PostError:
        return None


def is_of(host: str, domain: str) -> bool:
    """Return whether a host is of a domain."""
    return host == domain or host.endswith(f".{domain}")


def utc(at_s: float) -> str:
    """Write a time (seconds since 1970) as YouTube has it: 2012-12-24T00:00:06.873."""
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
