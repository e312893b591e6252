"""Parts of the server by themselves: audio in pieces, queue, worker, numbers of events, metrics, forms."""

from __future__ import annotations

import time

import anyio
import av
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sottovoce.errors import CheckpointError, MissingExtraError, ModelNotFoundError
from sottovoce.formats.document import event_document
from sottovoce.runtime.batching import Priority
from sottovoce.runtime.calls import RunOnHost
from sottovoce.server.apis.openai_files import Deltas
from sottovoce.server.errors import ApiError, to_api_error
from sottovoce.server.live import PcmReader
from sottovoce.server.scheduler import MAX_COMMANDS, InputQueue, shifted
from sottovoce.server.telemetry import Metrics
from sottovoce.streaming.live_session import UtteranceNumbers
from sottovoce.types import (
    Event,
    Final,
    LanguageChanged,
    Partial,
    Segment,
    SpeechEnded,
    SpeechStarted,
    Unstable,
    Word,
)
from tests.server.servers import Gate, working


@pytest.mark.parametrize("law", ["mulaw", "alaw"])
def test_telephone_codes_are_what_ffmpeg_decodes(law: str) -> None:
    codes = bytes(range(256))
    decoder = av.CodecContext.create(f"pcm_{law}", "r")
    decoder.sample_rate = 8_000  # type: ignore[attr-defined]
    decoder.layout = "mono"  # type: ignore[attr-defined]
    (frame,) = decoder.decode(av.Packet(codes))  # type: ignore[attr-defined]
    from sottovoce.server.live import g711_table

    table = g711_table(law)
    assert np.array_equal(table * 32768, frame.to_ndarray()[0])


@pytest.mark.parametrize("n_bytes", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("encoding", ["s16le", "f32le"])
def test_samples_do_not_depend_on_where_bytes_are_cut(encoding: str, n_bytes: int) -> None:
    values = np.random.default_rng(0).uniform(-1, 1, 500).astype("<f4")
    audio = values.tobytes() if encoding == "f32le" else (values * 32767).astype("<i2").tobytes()
    whole = PcmReader(encoding).read(audio)
    reader = PcmReader(encoding)
    pieces = [reader.read(audio[start : start + n_bytes]) for start in range(0, len(audio), n_bytes)]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert len(whole) == 500


@pytest.mark.parametrize(("encoding", "rate"), [("mp3", 16_000), ("s16le", 7_999), ("s16le", 96_001)])
def test_audio_that_nobody_can_read(encoding: str, rate: int) -> None:
    with pytest.raises(ApiError, match="expected"):
        PcmReader(encoding, rate)


def test_a_queue_keeps_order_and_lets_its_putter_wait() -> None:
    """Audio is taken from any thread, up to the next command, and makes room when it was processed."""

    async def run() -> list[tuple[int, object]]:
        queue = InputQueue(max_samples=10)
        item = np.ones(4, np.float32)
        taken: list[tuple[int, object]] = []

        async def put() -> None:
            for _ in range(5):
                await queue.put_audio(item)
            await queue.put(1)
            await queue.put_audio(item)
            for _ in range(3 * MAX_COMMANDS):
                await queue.put(2)
            await queue.put(3)

        def take() -> int:
            with queue.taking(3) as samples:
                assert queue.n_samples >= len(samples), "not processed yet"
                return len(samples)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(put)
            await anyio.sleep(0.05)
            assert queue.n_samples == 12  # one more than the most, and no further one
            with anyio.fail_after(10):
                while not taken or taken[-1][1] != 3:
                    if (command := await queue.next(lambda: 2)) is None:
                        taken.append((await anyio.to_thread.run_sync(take), None))
                    else:
                        taken.append((queue.n_ready, command))
                        queue.end_command()
        return taken

    taken = anyio.run(run)
    at = taken.index((0, 1)) if (0, 1) in taken else taken.index((1, 1))
    assert sum(n for n, _ in taken[:at]) + taken[at][0] == 20
    audio = [n for n, command in taken[at + 1 :] if command is None]
    assert sum(audio) >= 3, "with what was left before the command"
    assert [command for _, command in taken[at + 1 :] if command] == [2] * (3 * MAX_COMMANDS) + [3]


def test_a_worker_takes_out_what_was_cancelled_and_forgets_an_old_wait(gate: Gate) -> None:
    done: list[int] = []
    with working() as worker:
        works = (gate, lambda: done.append(2), lambda: done.append(3))
        first, second, third = (
            worker.begin(RunOnHost(work), Priority.LIVE, worker.runtime.caller()) for work in works
        )
        second.cancel()
        time.sleep(0.1)
        assert worker.live_wait_s >= 0.1
        gate.open()
        first.result(10)
        third.result(10)
        assert done == [3]
    with pytest.raises(ApiError, match="shutting down"):
        worker.submit(lambda: None, Priority.LIVE)


def test_events_are_numbered_by_utterance_and_moved_in_time() -> None:
    word = Word(" a", 1.0, 2.0, 0.5, "en")
    partial = Partial(1.0, 2.0, " a", "en", (word,), 2.5)
    final = Final(1.0, 2.0, "a", "en", (word,), 2.5)
    events: list[Event] = [
        SpeechStarted(0.5, 0.8),
        partial,
        Unstable(2.0, 2.2, " b", "en", 2.5),
        final,
        LanguageChanged("en", "de", 2.0, 2.5),
        partial,
        final,
        SpeechEnded(2.2, 2.9),
        SpeechStarted(3.0, 3.1),
        SpeechEnded(3.2, 3.3),
        SpeechStarted(4.0, 4.1),
    ]
    numbers = UtteranceNumbers()
    reported = [*numbers.numbered(events[:3]), *numbers.numbered(events[3:])]
    assert [item.utterance for item in reported] == [1, 1, 1, 1, None, 2, 2, 2, 3, 3, 4]
    for before, after in zip(events, [shifted(event, 10.0) for event in events], strict=True):
        document = event_document(after)
        if isinstance(before, Partial | Final):
            assert document["start"] == before.start + 10
            assert document["words"][0]["end"] == 12.0  # type: ignore[index,call-overload]
        if isinstance(before, LanguageChanged):
            assert (document["at"], document["confirmed_at"]) == (12.0, 12.5)
        if not isinstance(before, LanguageChanged):
            assert document["emission_time"] == before.emission_time + 10


@pytest.mark.parametrize("texts", [[" a b", " c."], ["a ", "b"], [" ", " x", "  "], [], ["日本", "語"]])
def test_deltas_join_to_the_text(texts: list[str]) -> None:
    deltas = Deltas()
    joined = "".join(deltas.add(Segment(i, 0, 1, text, "en")) for i, text in enumerate(texts))
    assert joined == "".join(texts).strip()


def test_metrics_are_what_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.requests.labels("/v1/models", "GET", "200").inc()
    metrics.requests.labels('a"b\\c\n', "GET", "200").inc()
    metrics.live_wait.observe(0.3)
    metrics.live_wait.observe(1e9)
    result = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }
    assert result["sottovoce_requests_total", "GET", "/v1/models", "200"] == 1
    assert result["sottovoce_requests_total", "GET", 'a"b\\c\n', "200"] == 1
    assert result["sottovoce_live_wait_seconds_bucket", "0.25"] == 0
    assert result["sottovoce_live_wait_seconds_bucket", "0.5"] == 1
    assert result["sottovoce_live_wait_seconds_bucket", "+Inf"] == 2
    assert result[("sottovoce_live_wait_seconds_count",)] == 2
    assert result[("sottovoce_file_audio_seconds_total",)] == 0
    assert not [name for name, *_ in result if name.endswith("_created")]


def test_faults_of_the_program_say_nothing_of_it() -> None:
    fault = to_api_error(RuntimeError("secret"))
    assert (fault.status, "secret" in fault.message) == (500, False)
    memory = to_api_error(RuntimeError("CUDA out of memory. Tried to allocate"))
    assert (memory.status, memory.code) == (503, "out_of_memory")
    assert memory.retry_after > 0


@pytest.mark.parametrize("kind", [ModelNotFoundError, CheckpointError])
def test_clients_are_told_no_path_of_the_server(kind: type[Exception]) -> None:
    fault = to_api_error(kind("voices: not in the cache (/srv/secret/voices); the index cannot be reached"))
    assert (fault.status, fault.code) == (503, "model_unavailable")
    assert "/srv" not in fault.message


def test_a_package_that_the_server_lacks_is_named_by_its_use() -> None:
    fault = to_api_error(MissingExtraError("torch", "torch", "telling speakers apart"))
    assert (fault.status, fault.code) == (503, "model_unavailable")
    assert fault.message.startswith("telling speakers apart needs a package")
    assert "pip install" not in fault.message
