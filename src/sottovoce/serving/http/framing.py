"""Measures what the framing of HTTP and WebSockets costs, and whether it carries anything.

An event loop parses every chunk of a body and every frame of a socket in Python. A client that sends one byte
a chunk, or empty frames, makes it work without sending anything. Framing may therefore have little more bytes
than an eighth of its payload.
"""

from __future__ import annotations

import httptools

MAX_HEAD_BYTES = 64 * 1024
"""The most framing of a request without payload: mainly its head."""
MAX_FRAMES_BYTES = 16 * 1024
"""The most framing of a WebSocket without payload: 2,700 empty frames."""
PAYLOAD_A_FRAMING_BYTE = 8
"""Bytes of payload that pay for one byte of framing: chunks and frames of 48 bytes pay for their own."""
FRAMING_BYTES_PER_S = 512
"""Framing that costs nothing: 85 small messages a second."""
CONTROL = 0x08
"""Bit of the opcodes of control frames (close, ping, pong), whose payload counts as framing."""


class FramingDebt:
    """Bytes of framing that neither payload nor time has paid for. most_bytes: more end the connection."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._n_bytes = 0.0
        self._noted_s = 0.0

    @property
    def is_too_large(self) -> bool:
        """Whether the connection makes no progress."""
        return self._n_bytes > self._most_bytes

    @property
    def is_small(self) -> bool:
        """Whether the connection has sent nothing unusual."""
        return self._n_bytes < self._most_bytes / 8

    def note(self, n_framing: int, n_payload: int, now_s: float) -> None:
        """Count bytes that arrived. now_s: by the clock of the event loop."""
        self._n_bytes = max(0.0, self._n_bytes - FRAMING_BYTES_PER_S * (now_s - self._noted_s))
        self._n_bytes = max(0.0, self._n_bytes + n_framing - n_payload / PAYLOAD_A_FRAMING_BYTE)
        self._noted_s = now_s

    def clear(self) -> None:
        """Begin anew: a request is complete."""
        self._n_bytes = 0.0


class RequestMeter:
    """Follows requests of HTTP/1.1. is_in_message: a head or a body is not complete yet."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.is_in_message = False
        self.n_requests = 0
        self.n_payload = 0

    @property
    def method(self) -> str:
        """Of the last request."""
        return self._parser.get_method().decode("ascii")

    def feed(self, data: bytes) -> bool:
        """Follow data; returns whether it ends with a head after which another protocol begins.

        Raises: httptools.HttpParserError.
        """
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return True
        return False

    def on_message_begin(self) -> None:
        """See httptools."""
        self.is_in_message = True

    def on_headers_complete(self) -> None:
        """See httptools."""
        self.n_requests += 1

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self.n_payload += len(body)

    def on_message_complete(self) -> None:
        """See httptools."""
        self.is_in_message = False


class FrameMeter:
    """Follows the frames of a WebSocket (RFC 6455, 5.2), without looking into them."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._n_left = 0
        self._is_control = False
        self.n_payload = 0

    def measure(self, data: bytes | bytearray, n_bytes: int, n_frames: int) -> int:
        """Follow the beginning of data, at most so many bytes and frames; returns its length."""
        at, end = 0, min(n_bytes, len(data))
        while at < end and (n_frames > 0 or self._n_left):
            if self._n_left:
                n = min(self._n_left, end - at)
                self._n_left -= n
                self.n_payload += 0 if self._is_control else n
            else:
                n = min(self._n_head - len(self._head), end - at)
                self._head += data[at : at + n]
                if len(self._head) == self._n_head:
                    self._begin()
                    n_frames -= 1
            at += n
        return at

    @property
    def _n_head(self) -> int:
        """Bytes of the frame's head, as far as they are known from its beginning."""
        if len(self._head) < 2:
            return 2
        return 2 + {126: 2, 127: 8}.get(self._head[1] & 0x7F, 0) + (4 if self._head[1] & 0x80 else 0)

    def _begin(self) -> None:
        """Take the head of a frame."""
        short = self._head[1] & 0x7F
        size = {126: 2, 127: 8}.get(short, 0)
        self._n_left = int.from_bytes(self._head[2 : 2 + size], "big") if size else short
        self._is_control = bool(self._head[0] & CONTROL)
        self._head.clear()
