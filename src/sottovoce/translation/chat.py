"""Ask a server with OpenAI's chat endpoint: messages in, one reply out.

The key goes into the header and nowhere else; redirects are not followed, since they would carry it along.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPMessage
from typing import IO
from urllib.parse import urlsplit

from sottovoce.errors import OptionError, TranslationError

Message = Mapping[str, str]
AGAIN = (408, 429, 500, 502, 503, 504)
"""Answers after which another try may succeed."""
LONGEST_REPLY_BYTES = 2**20
ENDPOINT = "/chat/completions"


@dataclass(frozen=True, slots=True)
class ChatServer:
    """Where to ask, and for what.

    url: the API's address ("http://127.0.0.1:8080/v1") or that of its chat endpoint. model: as the server
    calls it. key: sent as a bearer token, if there is one. timeout_s: for one answer. waits_s: before each
    further try.
    Raises: OptionError for an address that is none.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 120.0
    waits_s: tuple[float, ...] = (0.5, 2.0)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_valid = False
        if not is_valid:
            raise OptionError(f"translation url: expected http:// or https:// and a host, got '{self.url}'")
        if not self.model.strip():
            raise OptionError("translation model: expected the name of a model of the server, got none")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable() and self.key.strip()):
            raise OptionError("translation key: expected printable ASCII without line breaks")

    @property
    def endpoint(self) -> str:
        address = self.url.rstrip("/")
        return address if address.endswith(ENDPOINT) else address + ENDPOINT

    def reply(self, messages: Sequence[Message]) -> str:
        """Return the text of the answer.

        Raises: TranslationError naming the server and its error message.
        """
        for wait_s in (*self.waits_s, None):
            try:
                return _text(self._ask(messages))
            except _AgainError as error:
                if wait_s is None:
                    raise TranslationError(f"{self.endpoint}: {error}") from None
                time.sleep(wait_s)
            except ValueError as error:
                raise TranslationError(f"{self.endpoint}: expected a chat completion, {error}") from None
        raise AssertionError("the last try answers or raises")

    def _ask(self, messages: Sequence[Message]) -> bytes:
        body = json.dumps(
            {"model": self.model, "messages": list(messages), "temperature": 0, "stream": False}
        )
        request = urllib.request.Request(self.endpoint, body.encode(), {"Content-Type": "application/json"})
        if self.key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self.key}")
        try:
            with _OPENER.open(request, timeout=self.timeout_s) as answer:
                data: bytes = answer.read(LONGEST_REPLY_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                message = _error_line(error.read(2000), error.reason)
            if error.code in AGAIN:
                raise _AgainError(f"answered {error.code} ({message})") from None
            raise TranslationError(f"{self.endpoint}: answered {error.code} ({message})") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise _AgainError(f"cannot be reached ({reason})") from None
        if len(data) > LONGEST_REPLY_BYTES:
            raise ValueError("got more than 1 MB")
        return data


class _AgainError(Exception):
    """A failed attempt that may succeed later."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> None:
        return None  # which makes it an HTTPError


_OPENER = urllib.request.build_opener(_NoRedirects)


def _text(data: bytes) -> str:
    """Parse the answer.

    Raises: ValueError for another document.
    """
    document = json.loads(data)
    try:
        text = document["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ValueError("got another document") from None
    if not isinstance(text, str):
        raise ValueError("got no text")
    return text


def _error_line(data: bytes, reason: str) -> str:
    """Shorten a server's error message to one line."""
    try:
        document = json.loads(data)
        error = document.get("error", document)
        text = error.get("message", "") if isinstance(error, dict) else str(error)
    except (ValueError, AttributeError):
        text = ""
    line = " ".join(str(text or reason).split())
    return line[:200]
