"""Is any request or message a fault of the server?

    python -m benchmarks server fuzz --cases 1000 --frames 100000

Requests that schemathesis makes from the OpenAPI document (pip install schemathesis), every second one
that has a recording with one that is speech, and frames that no client would send over the live sockets
and that of shared captions, a hundred on each: bytes, texts, JSON that is nearly right, cut, nested, of
other types. A 500 is a fault; so is a session that neither ends nor answers what ends it. Prints what was
answered, then one JSON line; ends with 1 where there was a fault. The server is one of its own, with the
bundled model, and keeps jobs.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from typing import Any, TypeAlias

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from benchmarks.harness.report import benchmark_parser, show_json
from benchmarks.server.live_clients import served, speech, wave_file

Frame: TypeAlias = "str | bytes"
LIVE, REALTIME, LISTEN = "/v1/live", "/v1/realtime?intent=transcription", "/v1/listen?encoding=linear16"
TURNS = "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000"
ENDS = {
    LIVE: '{"type": "close"}',
    REALTIME: '{"type": "nothing", "event_id": "the end"}',
    LISTEN: '{"type": "CloseStream"}',
    "/v1/listen": '{"type": "CloseStream"}',
    TURNS: '{"type": "CloseStream"}',
    "/v1/captions": "",
}
"""What ends a session, or is answered where nothing does, by its address."""
ANSWERS = ("closed", "Metadata")
TYPES = (
    *("finalize", "keepalive", "configure", "voices", "Finalize", "KeepAlive", "Configure", "ForceEndTurn"),
    *("captions", "post"),
    *("session.update", "input_audio_buffer.append", "input_audio_buffer.commit"),
    *("input_audio_buffer.clear", "response.create", ""),
)
NAMES = (
    *("session", "audio", "input", "format", "transcription", "turn_detection", "languages", "language"),
    *("keyterms", "event_id", "voices", "model", "prompt", "vad", "speakers", "include", "rate"),
    *("utterances", "now", "names", "clear", "url", "service", "type"),
)
LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1e308, 10**30, "", "auto", "en", "transcription", "server_vad", "\x00"),
    *("\ud800", "AAAA", "a" * 500, "audio/pcm", [], {}, 0.5, "true", "nano", "سلام", "\U0001f600"),
)
FRAMES_A_SOCKET, SOCKETS = 100, 8
EXAMPLES = 10
"""Of an operation, before the next one's turn."""
ANSWER_WITHIN_S = 60.0


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if depth > 3 or kind < 0.5:
        return chance.choice(LEAVES)
    if kind < 0.65:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(NAMES): value(chance, depth + 1) for _ in range(chance.randrange(5))}


def frame(chance: random.Random) -> Frame:
    kind = chance.random()
    if kind < 0.25:
        return chance.randbytes(chance.randrange(0, 400))
    kind_of_message = chance.choice(TYPES)
    fields = {chance.choice(NAMES[:-1]): value(chance) for _ in range(chance.randrange(4))}
    message = {"type": kind_of_message, **fields}
    text = json.dumps(message if kind < 0.85 else value(chance))
    if kind > 0.97:
        return "[" * chance.randrange(1, 20_000)
    if kind > 0.9:
        return text[: chance.randrange(len(text) + 1)]
    if kind > 0.85:
        at = chance.randrange(len(text) + 1)
        return text[:at] + chr(chance.randrange(1, 0xD7FF)) + text[at:]
    return text


async def until_answered(socket: ClientConnection) -> str:
    """Wait for the end of a session, or the answer to what was asked; return which."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            while True:
                message = json.loads(await socket.recv())
                if message.get("type") in ANSWERS:
                    return "answered"
                error = message.get("error") or {}
                if error.get("event_id") == "the end":
                    return "answered"
                code = str(error.get("code", message.get("variant")))
                if code == "internal_error":
                    return "FAULT internal_error"
    except ConnectionClosed:
        closed = socket.close_code
        return f"FAULT {closed}" if closed in (1011, 1006, None) else f"closed {closed}"
    except TimeoutError:
        return "FAULT no answer"


async def fuzz_socket(address: str, path: str, chance: random.Random, outcomes: Counter[str]) -> int:
    """Send frames to one session; returns how many were sent."""
    n_sent = 0
    async with connect(f"ws://{address}{path}", max_size=None, max_queue=None, ping_interval=None) as socket:
        answered = asyncio.create_task(until_answered(socket))
        try:
            for _ in range(FRAMES_A_SOCKET):
                await socket.send(frame(chance))
                n_sent += 1
            await socket.send(ENDS[path])
        except ConnectionClosed:
            pass
        outcomes[f"{path.partition('?')[0]} {await answered}"] += 1
    return n_sent


async def fuzz_frames(address: str, n_frames: int, seed: int) -> Counter[str]:
    """Send so many frames, over some sockets at a time."""
    outcomes: Counter[str] = Counter()
    n_sent = 0

    async def one_after_the_other(number: int) -> None:
        nonlocal n_sent
        chance = random.Random(seed + number)
        while n_sent < n_frames:
            path = chance.choices([*ENDS], (4, 4, 4, 1, 4, 1))[0]
            n_more = await fuzz_socket(address, path, chance, outcomes)
            n_sent += n_more  # not in one line: others count meanwhile

    await asyncio.gather(*(one_after_the_other(number) for number in range(SOCKETS)))
    outcomes["frames"] = n_sent
    return outcomes


def give_speech(case: Any) -> None:
    """Put half a second of speech in the place of the recording of a request, if it has one."""
    recording = wave_file(speech("en.flac")[:16_000])
    if isinstance(case.body, dict) and "file" in case.body:
        case.body["file"] = recording
    elif isinstance(case.body, str | bytes):
        case.body = recording


def fuzz_requests(address: str, n_cases: int, seed: int) -> Counter[str]:
    """Send so many requests that schemathesis makes from the document; the same ones for the same seed."""
    import hypothesis
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, settings

    outcomes: Counter[str] = Counter()
    schema = schemathesis.openapi.from_dict(httpx.get(f"http://{address}/openapi.json").json())
    operations = [result.ok() for result in schema.get_all_operations()]
    few = settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    for number, operation in enumerate(itertools.cycle(operations)):
        if outcomes["cases"] >= n_cases:
            return outcomes

        @hypothesis.seed(f"{seed} {number}")
        @few
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            if outcomes["cases"] % 2:
                give_speech(case)
            status = case.call(base_url=f"http://{address}", timeout=600).status_code
            outcomes[f"{'FAULT ' if status == 500 else ''}{status}"] += 1
            if status == 500:
                print(case.as_curl_command(), file=sys.stderr)
            outcomes["cases"] += 1

        ask()
    return outcomes  # there are no operations


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=100_000)
    options: argparse.Namespace = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as jobs, tempfile.TemporaryFile("w+") as log:
        more = ("--no-forecast", "--max-sessions", "64", "--jobs-dir", jobs)
        with served("nano", "float32", *more, log=log) as (process, address):
            frames = asyncio.run(fuzz_frames(address, options.frames, seed=0))
            requests = fuzz_requests(address, options.cases, seed=0)
            health = httpx.get(f"http://{address}/health", timeout=60).json()
            is_alive = process.poll() is None
        log.seek(0)
        errors = [line for line in log if '"level": "error"' in line]
    for what, result in (("frames", frames), ("requests", requests)):
        print(f"{what}: " + ", ".join(f"{n} {name}" for name, n in sorted(result.items())))
    faults = [name for name in (*frames, *requests) if "FAULT" in name]
    faults += [] if is_alive and health["status"] == "ok" else [f"health: {health['status']}"]
    print("\n".join(faults) or "no fault")
    if faults:
        print(*errors, sep="", file=sys.stderr)
    figures = {"frames": frames, "requests": requests, "faults": faults}
    show_json("server fuzz", {**vars(options), **figures, "s": time.monotonic() - began})
    sys.exit(1 if faults else 0)
