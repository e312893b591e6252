"""Do replicas come with live connections and go with them, and is nobody cut off by that?

    python -m benchmarks serving replicas

The server on a local Ray cluster of this machine, 1 to 2 replicas of `nano`. Sockets are opened until a
second replica is there, and some more; then all are closed but the first and the last two. The replica that
goes has to wait for those of them that it has, so it must still be there after --hold seconds; what they say
in the end is compared with the text of the library. Prints what happened when; ends with 1 where no replica
came, none went, it waited for nobody, or a session was cut off.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from websockets.sync.client import ClientConnection
from websockets.sync.client import connect as open_socket

from benchmarks.harness.arguments import benchmark_parser
from sottovoce.api import load_model
from sottovoce.audio.io import load_audio
from sottovoce.serving.ray.cluster import library
from sottovoce.serving.ray.deployment import NAME, Replicas, serving_on_ray
from sottovoce.serving.settings import Listening, ModelSettings, ServerLimits, ServerSettings
from sottovoce.types import Samples

CLIP = Path(__file__).parents[2] / "examples" / "clips" / "en.flac"


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--sockets", type=int, default=5, help="before the second replica is there")
    parser.add_argument("--later", type=int, default=6, help="after it")
    parser.add_argument("--limit", type=float, default=75.0, help="seconds for each change")
    parser.add_argument("--hold", type=float, default=15.0, help="seconds that sessions stay open")
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = int(listening.getsockname()[1])
    open_model = partial(load_model, device="cpu", dtype="float32")
    samples = load_audio(CLIP)
    expected = open_model("nano").transcribe(CLIP, language="en").text
    library("ray").init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    settings = ServerSettings(ModelSettings("nano"), Listening(port=port), limits=ServerLimits(sessions=32))
    replicas = Replicas(1, 2, cpus=0.5, connections=3.0, drain_s=120.0, more_after_s=3.0, fewer_after_s=10.0)
    with serving_on_ray(settings, open_model, replicas):
        is_good = seen(port, samples, expected, given)
    library("ray").shutdown()
    sys.exit(0 if is_good else 1)


def seen(port: int, samples: Samples, expected: str, given: argparse.Namespace) -> bool:
    """Replicas come and go as connections do; whether all that should happen did."""
    clock = Clock()
    sockets = [opened(port, samples) for _ in range(given.sockets)]
    clock.say(f"{given.sockets} sockets, {n_running()} replica")
    if not reached(2, sockets, given.limit):
        clock.say(f"no second replica, {states()}")
        return False
    clock.say(f"2 replicas, {states()}")
    sockets += [opened(port, samples) for _ in range(given.later)]
    clock.say(f"{given.later} more sockets; all but the first and the last two close")
    for one in sockets[1:-2]:
        one.close()
    kept = [sockets[0], *sockets[-2:]]
    has_one_left = reached(1, kept, given.limit)
    clock.say(f"{states()}")
    hold(kept, given.hold)
    is_waited_for = states().get("STOPPING", 0) == 1
    clock.say(f"{states()}, with {len(kept)} sockets open")
    texts = [ended(one, samples) for one in kept]
    clock.say(f"{sum(text == expected for text in texts)} of {len(texts)} said what the library says")
    is_gone = reached(1, [], given.limit, and_no_other=True)
    clock.say(f"{states()}")
    return has_one_left and is_waited_for and is_gone and all(text == expected for text in texts)


class Clock:
    """Prints lines with the seconds since it was made."""

    def __init__(self) -> None:
        self._from_s = time.monotonic()

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self._from_s:6.1f} s  {what}", flush=True)


def opened(port: int, samples: Samples) -> ClientConnection:
    """A session that has heard half of the recording."""
    client = open_socket(f"ws://127.0.0.1:{port}/v1/live?languages=en", proxy=None)
    client.send(pcm(samples[: len(samples) // 2]))
    return client


def ended(client: ClientConnection, samples: Samples) -> str:
    """The text of a session that hears the rest; what there was of it, where it was cut off."""
    said = ""
    client.send(pcm(samples[len(samples) // 2 :]))
    client.send(json.dumps({"type": "close"}))
    for message in client:
        event = json.loads(message)
        said += event["text"] if event["type"] == "final" else ""
    return said.strip()


def pcm(samples: Samples) -> bytes:
    return bytes((samples * 32767).astype(np.dtype("<i2")).tobytes())


def reached(n: int, sockets: list[ClientConnection], limit_s: float, *, and_no_other: bool = False) -> bool:
    """Whether so many replicas run within the time, while sessions are kept; others may still drain."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        found = states()
        if found.get("RUNNING", 0) == n and not (and_no_other and len(found) > 1):
            return True
        for one in sockets:
            one.send(json.dumps({"type": "keepalive"}))
        time.sleep(0.5)
    return False


def hold(sockets: list[ClientConnection], seconds: float) -> None:
    """Keep sessions open."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for one in sockets:
            one.send(json.dumps({"type": "keepalive"}))
        time.sleep(0.5)


def states() -> dict[str, int]:
    """How many replicas are in which state."""
    app = library("ray.serve").status().applications[NAME]
    counts = app.deployments[NAME].replica_states
    return {str(getattr(state, "value", state)): n for state, n in counts.items() if n}


def n_running() -> int:
    return states().get("RUNNING", 0)
