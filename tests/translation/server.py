"""A stand-in for a chat server: answers by rule, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str]


@dataclass(slots=True)
class StandIn:
    """url: of its API. asked: the documents of all requests. keys: their authorization headers."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


def completion(text: str) -> Answer:
    return 200, json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]})


@contextmanager
def stand_in(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[StandIn]:
    """A server on a port of the kernel's choice; ended when the block ends."""
    seen = StandIn()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.asked.append({"path": self.path, **document})
            seen.keys.append(self.headers.get("Authorization"))
            status, text = answer(document)
            data = text.encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", text)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    seen.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def upper(document: dict[str, Any]) -> Answer:
    """The last message in capitals: a language of its own."""
    return completion(document["messages"][-1]["content"].upper())
