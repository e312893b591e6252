"""Static steps of rows, and what an accelerator would be asked to do in them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.decoding.filters import LiveVocabulary
from sottovoce.decoding.search import BestTokens, BestTokensEnd
from sottovoce.errors import OptionError
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.models.backend import (
    STEPS_AHEAD,
    EncoderOutput,
    EncoderState,
    IncrementalResult,
    IncrementalWindow,
    StepGroup,
)
from sottovoce.models.checkpoint.base import Checkpoint
from sottovoce.models.devices import NumberFormat, plan_memory
from sottovoce.models.dims import EXACT, EncoderMode
from sottovoce.models.load import load_checkpoint
from sottovoce.runtime import batching
from sottovoce.runtime.calls import DirectRuntime, Runtime
from sottovoce.runtime.static_rows import RowPool, StaticRows, step_sizes
from sottovoce.runtime.torch import TorchBackend
from sottovoce.runtime.torch_encoder import eagerly
from sottovoce.streaming.alignatt import (
    AlignAttDecoder,
    AlignAttRequest,
    DecoderPrefix,
    StopRules,
)
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Features, Samples
from tests.models import tiny
from tests.runtime.pretended import DEVICE, Counts, InThread, PretendedDevice, pretended_device
from tests.runtime.reading import decoded

CPU = torch.device("cpu")

N_LAYERS = tiny.dims().n_text_layer
CLIP = "examples/clips/en.flac"
FORBIDDEN = np.array([0, 7])


@cache
def nano() -> Checkpoint:
    return load_checkpoint("nano")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    with pretended_device(monkeypatch) as created:
        yield created


def on(device: PretendedDevice, backend: TorchBackend) -> TorchBackend:
    """Let a backend on the device record its steps."""
    backend.pool = RowPool(backend.dims, backend.dtype, backend.device, device.record)
    return backend


def static(backend: TorchBackend) -> TorchBackend:
    """Let a backend on the CPU take static steps."""
    backend.pool = RowPool(backend.dims, backend.dtype, backend.device, eagerly)
    return backend


def encoded(backend: TorchBackend, n: int = 1, n_frames: int = 60) -> EncoderOutput:
    generator = torch.Generator().manual_seed(n)
    return backend.encode(
        Features(torch.randn(n, 80, n_frames, generator=generator).numpy(), (n_frames,) * n)
    )


ALLOWED = ((0, 250, 300), (200, 260, 300), (0, 300, 300))
"""First text token, first timestamp and end of timestamps of rows, in turn."""


def ready(rows: StaticRows, n_best: int = 3, n_beams: int = 1) -> BestTokensEnd:
    """The choice of tokens as the end of a step, with the tokens that may follow no row in its state."""
    end = BestTokensEnd(n_best, 250, 300, 2, n_beams, forbidden=FORBIDDEN)
    rows.begin(end, {})
    return end


def chosen(rows: StaticRows, end: BestTokensEnd, tokens: list[int], n_steps: int = 1) -> list[BestTokens]:
    """What follows the tokens of each row, of each step."""
    columns = np.array([(*ALLOWED[row % 3], 0, 255, 0) for row in range(len(tokens))])
    group = StepGroup(end, range(len(tokens)), [(0,)] * len(tokens), columns)
    steps = rows.steps([[token] for token in tokens], [group], n_steps)
    return [end.best_of(part.outputs[0][part.places]) for (part,) in steps]


@pytest.mark.parametrize("chooses", [True, False])
def test_a_step_has_a_budget(device: PretendedDevice, chooses: bool) -> None:
    """At most 20 operators a layer and 30 others, one upload, and after the first nothing is allocated.

    The host reads once: the choice, or logits.
    """
    backend = on(device, tiny.backend(device=DEVICE))
    n_operators = []
    for n_rows in (1, 64):
        rows = backend.rows()
        rows.admit(encoded(backend, n_rows, 20))
        end = ready(rows)
        for _ in range(2):
            device.counts = Counts()
            if chooses:
                chosen(rows, end, [5] * n_rows)
            else:
                rows.step([[5]] * n_rows, [[0]] * n_rows)
        counts = device.counts
        n_kept = 0 if chooses else 2
        assert sum(counts.allocations.values()) == n_kept, counts.allocations
        assert sum(counts.operators.values()) == 1 + n_kept, counts.operators
        assert sum(counts.copies.values()) == 1 + n_kept // 2, counts.copies
        assert sum(counts.reads.values()) == 1, counts.reads
        recorded = device.recorded[-2 if chooses else -1]  # the last one is what follows a choice
        n_operators.append(sum(recorded.names.values()))
    assert len(set(n_operators)) == 1
    assert n_operators[0] <= 20 * N_LAYERS + 30, recorded.names


@pytest.mark.parametrize("n_beams", [1, 3])
def test_eight_steps_of_a_search_have_a_budget(device: PretendedDevice, n_beams: int) -> None:
    """One upload and one read, an operator of the host a step, and nothing is allocated."""
    backend = on(device, tiny.backend(tiny.dims(n_text_ctx=160), device=DEVICE))
    n_operators = []
    for n in (1, 16):
        rows = backend.rows()
        rows.admit(encoded(backend, n, 20))
        rows.select([row for row in range(n) for _ in range(n_beams)])
        end = ready(rows, n_beams + (n_beams > 1), n_beams)
        for _ in range(2):
            device.counts = Counts()
            n_steps = len(chosen(rows, end, [5] * n * n_beams, STEPS_AHEAD))
        counts = device.counts
        assert n_steps == 8
        assert not counts.allocations
        assert sum(counts.operators.values()) <= 1 + n_steps, counts.operators
        assert sum(counts.copies.values()) == 1, counts.copies
        assert sum(counts.reads.values()) == 1, counts.reads
        n_operators.append([sum(item.names.values()) for item in device.recorded[-2:]])
    (step, following), *others = n_operators
    assert others == [[step, following]]
    assert step <= 20 * N_LAYERS + 30
    assert following <= 39, device.recorded[-1].names


def test_a_recorded_step_computes_what_rows_on_the_processor_compute(device: PretendedDevice) -> None:
    """With rows that join, branch, leave and read several tokens between recorded steps."""
    backend, plain = on(device, tiny.backend(device=DEVICE)), tiny.backend()
    ours, theirs = backend.rows(), plain.rows()
    for n, order, tokens in (
        (3, [2, 0, 0, 1], [[1], [2], [3]]),
        (1, [4, 1, 0, 3, 2], [[4], [5], [6], [7], [8, 9, 10]]),
        (2, [0, 6, 3, 2], [[1], [2], [3], [4], [5], [6, 7], [8]]),
        (0, [3, 2, 1, 0], [[9], [8], [7], [6]]),
    ):
        if n:
            ours.admit(encoded(backend, n))
            theirs.admit(encoded(plain, n))
        wanted = [[len(new) - 1] for new in tokens]
        result = ours.step(tokens, wanted, capture=backend.alignment_heads)
        expected = theirs.step(tokens, wanted, capture=plain.alignment_heads)
        np.testing.assert_allclose(result.logits, expected.logits, atol=1e-4, rtol=0)
        for item, other in zip(result.attention, expected.attention, strict=True):
            np.testing.assert_allclose(item, other, atol=1e-4, rtol=0)
        ours.select(order)
        theirs.select(order)


def test_a_choice_is_that_of_the_rules(device: PretendedDevice) -> None:
    """Forbidden tokens, spans, and timestamps that are more probable than any text."""
    backend, plain = on(device, tiny.backend(device=DEVICE)), tiny.backend()
    ours, theirs = backend.rows(), plain.rows()
    ours.admit(encoded(backend, 6))
    theirs.admit(encoded(plain, 6))
    (best,) = chosen(ours, ready(ours), [1, 2, 3, 4, 5, 6])
    logits = torch.from_numpy(theirs.step([[1], [2], [3], [4], [5], [6]], [[0]] * 6).logits)
    logits[:, FORBIDDEN] = -torch.inf
    n_forced = 0
    for row, (first_text, first_time, end_time) in zip(logits, ALLOWED * 2, strict=True):
        row[:first_text] = row[250:first_time] = row[end_time:] = -torch.inf
        if row[250:].logsumexp(0) > row[:250].max():
            row[:250] = -torch.inf
            n_forced += 1
    assert 0 < n_forced < 6
    logprobs, tokens = logits.log_softmax(1).topk(3)
    assert np.array_equal(best.tokens, tokens.numpy())
    np.testing.assert_allclose(best.logprobs, logprobs.numpy(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("n_examples", [6, pytest.param(25, marks=pytest.mark.long)])
def test_rows_in_company_are_rows_alone(n_examples: int) -> None:
    """Ragged rows that come, branch, are cut and go at random, in static steps and others."""
    settings(max_examples=n_examples)(given(st.data())(rows_in_company))()


def rows_in_company(data: st.DataObject) -> None:
    backend, plain = static(tiny.backend()), tiny.backend()
    lengths = (20, 36, 60)
    windows = [encoded(plain, 1, n_frames) for n_frames in lengths]
    ours = backend.rows()
    alone: list[tuple[int, list[int]]] = []
    """Of each row, its window and tokens."""
    for _ in range(data.draw(st.integers(2, 5))):
        for window in data.draw(st.lists(st.integers(0, 2), min_size=0 if alone else 1, max_size=3)):
            ours.admit(windows[window])
            alone.append((window, []))
        longest = st.integers(1, 1) if data.draw(st.booleans()) else st.integers(0, 3)
        n_new = data.draw(st.lists(longest, min_size=len(alone), max_size=len(alone)))
        room = [min(n, 24 - len(read)) for n, (_, read) in zip(n_new, alone, strict=True)]
        if any(room):
            tokens = [data.draw(st.lists(st.integers(0, 299), min_size=n, max_size=n)) for n in room]
            result = ours.step(tokens, [[n - 1] if n else [] for n in room])
            at = 0
            for (window, read), new in zip(alone, tokens, strict=True):
                read += new
                if new:
                    row = plain.rows()
                    row.admit(windows[window])
                    expected = row.step([read], [[len(read) - 1]]).logits[0]
                    np.testing.assert_allclose(result.logits[at], expected, atol=1e-4, rtol=0)
                    at += 1
        if data.draw(st.booleans()):
            row, n = data.draw(st.integers(0, len(alone) - 1)), data.draw(st.integers(0, 2))
            ours.cut(row, n)
            del alone[row][1][max(0, len(alone[row][1]) - n) :]
        order = data.draw(st.lists(st.integers(0, len(alone) - 1), min_size=1, max_size=6))
        ours.select(order)
        alone = [(alone[row][0], list(alone[row][1])) for row in order]


def test_memory_is_borrowed_and_given_back() -> None:
    backend = static(tiny.backend())
    assert backend.pool is not None
    rows = backend.rows()
    rows.admit(encoded(backend, 3))
    del rows
    assert [memory.n_recordings for memory in backend.pool.free] == [16]
    again = backend.rows()
    again.admit(encoded(backend, 2))
    assert not backend.pool.free


def test_rows_beyond_the_memory_are_refused() -> None:
    backend = static(tiny.backend())
    backend.pool = RowPool(backend.dims, backend.dtype, backend.device, eagerly, most_recordings=6)
    rows = backend.rows()
    rows.admit(encoded(backend, 5))
    with pytest.raises(OptionError, match="2 recordings given, expected at most 0"):
        backend.rows().admit(encoded(backend, 2))
    rows.step([[5]] * 5, [[0]] * 5)
    del rows
    backend.rows().admit(encoded(backend, 2))


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(device: PretendedDevice) -> None:
    checkpoint = tiny.checkpoint()
    numbers = NumberFormat("float32")
    least = plan_memory(checkpoint.dims, numbers, 1e9, "tiny")
    needed = least.weights + least.work + least.recording
    assert least.weights == sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    with pytest.raises(OptionError, match=r"^random: expected [\d.]+ MB of device memory \(weights"):
        TorchBackend.from_checkpoint(checkpoint, device=DEVICE, dtype=torch.float32, most_bytes=needed - 1)
    assert not device.counts.allocations
    created = TorchBackend.from_checkpoint(checkpoint, device=DEVICE, dtype=torch.float32, most_bytes=needed)
    created.rows().admit(encoded(created, 1))
    with pytest.raises(OptionError, match="expected at most 1"):
        created.rows().admit(encoded(created, 2))


def test_sizes_of_steps() -> None:
    assert step_sizes(1) == [1]
    assert step_sizes(5) == [1, 2, 4, 8]
    assert step_sizes(130)[-3:] == [64, 128, 192]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("beam_size", "is_fused"), [(1, False), pytest.param(5, False, marks=pytest.mark.long), (5, True)]
)
def test_a_file_on_the_device_is_the_processors(
    device: PretendedDevice, beam_size: int, is_fused: bool, tmp_path: Path
) -> None:
    """The host reads once in eight steps, and a few times a window, also with language models."""
    checkpoint = nano()
    created = [
        Model(
            checkpoint,
            on(device, TorchBackend.from_checkpoint(checkpoint, device=DEVICE, dtype=torch.float32)),
        ),
        Model(checkpoint, TorchBackend.from_checkpoint(checkpoint, device=CPU, dtype=torch.float32)),
    ]
    fusions: list[ShallowFusion | None] = [None, None]
    if is_fused:
        path = tmp_path / "tokens.arpa"
        path.write_text(
            "\\data\\\nngram 1=4\nngram 2=1\n\\1-grams:\n-2\t<unk>\n-1\t</s>\n-2\t286\t-0.5\n-3\t456\n"
            "\\2-grams:\n-0.1\t286 456\n\\end\\\n"
        )
        fusions = [model.fusion(lm=path, hotwords=["a meeting", "zebra"]) for model in created]
    device.counts = Counts()
    ours, theirs = (
        model.transcribe(load_audio(CLIP)[:48000], language="en", beam_size=beam_size, fusion=fusion)
        for model, fusion in zip(created, fusions, strict=True)
    )
    assert ours.text == theirs.text != ""
    n_tokens = sum(len(segment.tokens) for segment in ours.segments)
    n_reads = sum(n for name, n in device.counts.reads.items() if "runtime/static_rows.py" in name)
    assert n_tokens > 16
    assert n_reads <= -(-n_tokens // 8), device.counts.reads
    assert sum(device.counts.reads.values()) <= n_reads + 8, device.counts.reads


def updates(backend: TorchBackend, states: list[EncoderState | None], n_more: int) -> list[IncrementalResult]:
    """Windows of different length that have grown, three of them unlike the others."""
    generator = torch.Generator().manual_seed(n_more)
    mels = [torch.randn(80, 100 + 20 * i + n_more, generator=generator).numpy() for i in range(len(states))]
    mode = EncoderMode(stride=10, anchors=(40, 50), recompute_s=0.4, refresh_s=0.0)
    whole = EncoderMode(tail_s=0.1)
    return backend.encode_incremental(
        [
            IncrementalWindow(mel, whole if i % 3 else mode, state)
            for i, (mel, state) in enumerate(zip(mels, states, strict=True))
        ]
    )


def test_a_recorded_encoder_computes_what_the_processor_computes(device: PretendedDevice) -> None:
    """Windows that grow, in recorded functions that run again with other values and companies."""
    checkpoint = tiny.checkpoint(tiny.dims(n_audio_ctx=300))
    ours, theirs = (
        TorchBackend.from_checkpoint(checkpoint, device=where, dtype=torch.float32) for where in (DEVICE, CPU)
    )
    on(device, ours)
    states: list[list[EncoderState | None]] = [[None] * 7, [None] * 7]
    for n_more in (0, 10, 20, 60):
        n_recorded = len(device.recorded)
        both = [
            updates(backend, owned, n_more) for backend, owned in zip((ours, theirs), states, strict=True)
        ]
        for result, expected in zip(*both, strict=True):
            assert result.n_computed == expected.n_computed
            assert result.encoded.cross_kv is not None
            assert expected.encoded.cross_kv is not None
            torch.testing.assert_close(
                result.encoded.states.cpu(), expected.encoded.states, atol=1e-4, rtol=0
            )
            for pair, other in zip(result.encoded.cross_kv, expected.encoded.cross_kv, strict=True):
                torch.testing.assert_close(pair[0].cpu(), other[0], atol=1e-4, rtol=0)
                torch.testing.assert_close(pair[1].cpu(), other[1], atol=1e-4, rtol=0)
        states = [[item.state for item in results] for results in both]
    assert len(device.recorded) == n_recorded  # the last one was replayed alone
    whole = [
        encoded(backend, 3, n_frames).states.cpu() for n_frames in (500, 520) for backend in (ours, theirs)
    ]
    torch.testing.assert_close(whole[0], whole[1], atol=1e-4, rtol=0)
    torch.testing.assert_close(whole[2], whole[3], atol=1e-4, rtol=0)


def test_the_encoder_works_in_inference_mode_and_outside() -> None:
    backend = static(tiny.backend())
    window = IncrementalWindow(torch.randn(80, 60).numpy(), EXACT)
    with torch.inference_mode():
        (first,) = backend.encode_incremental([window])
        backend.rows().admit(first.encoded)
        whole = encoded(backend)
    (second,) = backend.encode_incremental([window])
    assert torch.equal(first.encoded.states, second.encoded.states)
    assert torch.equal(whole.states, encoded(backend).states)


def test_an_update_of_the_encoder_has_a_budget(device: PretendedDevice) -> None:
    """Whatever the number of windows: what a window costs is one tensor of each kind that it keeps."""
    backend = on(device, tiny.backend(device=DEVICE))
    for n in (1, 16):
        mels = [torch.randn(80, 60).numpy() for _ in range(n)]
        results = backend.encode_incremental([IncrementalWindow(mel, EXACT) for mel in mels])
        windows = [IncrementalWindow(mel, EXACT, item.state) for mel, item in zip(mels, results, strict=True)]
        backend.encode_incremental(windows)
        device.counts = Counts()
        backend.encode_incremental(windows)
        counts = device.counts
        assert not counts.reads
        assert sum(counts.copies.values()) <= 3, counts.copies
        assert sum(counts.operators.values()) - 3 * n <= 6, counts.operators


def windows_of(backend: TorchBackend, n: int) -> list[EncoderOutput]:
    """Live windows of growing audio, of any length."""
    mels = [log_mel(load_audio(CLIP)[: 8000 + 1600 * i], 80) for i in range(n)]
    results = backend.encode_incremental([IncrementalWindow(mel, backend.encoder_mode) for mel in mels])
    return [result.encoded for result in results]


def live(
    backend: TorchBackend, tokenizer: Tokenizer, beam_size: int
) -> tuple[AlignAttDecoder, DecoderPrefix]:
    vocabulary = LiveVocabulary.of(tokenizer, backend.dims.n_vocab)
    decoder = AlignAttDecoder(backend, tokenizer.eot, vocabulary, beam_size)
    english = tokenizer.with_language("en")
    return decoder, DecoderPrefix(english.sot_sequence_including_notimestamps, 0, 0)


@pytest.mark.long
@pytest.mark.parametrize(("beam_size", "n_rows"), [pytest.param(1, 16, marks=pytest.mark.long), (3, 6)])
def test_live_rows_at_once_are_the_processors(device: PretendedDevice, beam_size: int, n_rows: int) -> None:
    """Windows of any length, each decoded by AlignAtt in the company of the others; then again with what is
    cached of their prefixes."""
    checkpoint = nano()
    result = []
    for where in (DEVICE, CPU):
        backend = TorchBackend.from_checkpoint(checkpoint, device=where, dtype=torch.float32)
        if where == DEVICE:
            on(device, backend)
        decoder, prefix = live(backend, Model(checkpoint, backend).tokenizer, beam_size)
        rules = StopRules(frame_threshold=2, max_tokens=8)
        windows = windows_of(backend, n_rows)
        request = AlignAttRequest(prefix, rules, n_recomputed=1, measures_end=True)
        first = decoded(decoder, windows, [request] * n_rows)
        decoded(decoder, windows[::-1], [request] * n_rows)  # leaves what is cached of the first as it is
        grown = [DecoderPrefix((*prefix.tokens, *item.tokens[:2]), 0, len(item.tokens[:2])) for item in first]
        again = decoded(
            decoder,
            windows,
            [
                replace(request, prefix=new, prefix_cache=item.prefix_cache)
                for new, item in zip(grown, first, strict=True)
            ],
        )
        result.append([*first, *again])
    for ours, theirs in zip(*result, strict=True):
        assert (ours.tokens, ours.frames, ours.stop_reason) == (
            theirs.tokens,
            theirs.frames,
            theirs.stop_reason,
        )
        assert ours.no_speech_prob == pytest.approx(theirs.no_speech_prob, abs=1e-5)
        assert ours.text_end is not None
        assert theirs.text_end is not None
        assert astuple(ours.text_end) == pytest.approx(astuple(theirs.text_end), abs=1e-4)
    assert sum(bool(item.tokens) for item in result[0]) > n_rows


def test_a_prefix_that_is_cached_but_for_one_token_is_read() -> None:
    checkpoint = nano()
    result = []
    for is_static in (True, False):
        backend = TorchBackend.from_checkpoint(checkpoint, device=CPU, dtype=torch.float32)
        decoder, prefix = live(
            static(backend) if is_static else backend, Model(checkpoint, backend).tokenizer, 1
        )
        request = AlignAttRequest(prefix, StopRules(max_tokens=8, frame_threshold=2), n_recomputed=1)
        (window,) = windows_of(backend, 1)
        (first,) = decoded(decoder, [window], [request])
        (again,) = decoded(decoder, [window], [replace(request, prefix_cache=first.prefix_cache)])
        assert again.tokens == first.tokens != ()
        result.append(again)
    assert result[0].tokens == result[1].tokens
    assert result[0].no_speech_prob == pytest.approx(result[1].no_speech_prob, abs=1e-5)


def test_a_live_update_has_a_budget(device: PretendedDevice) -> None:
    """Whatever the number of sessions: one read a step, and a step of beams is one recorded function."""
    checkpoint = nano()
    backend = on(device, TorchBackend.from_checkpoint(checkpoint, device=DEVICE, dtype=torch.float32))
    decoder, prefix = live(backend, Model(checkpoint, backend).tokenizer, 5)
    request = AlignAttRequest(prefix, StopRules(max_tokens=8, frame_threshold=2), n_recomputed=1)
    counted: list[list[Counts]] = []
    for n in (1, 6):
        windows = windows_of(backend, 6)[6 - n :]
        for _ in range(2):  # records, and again with room for beams
            decoded(decoder, windows, [request] * n)
        batch = decoder.new_batch()
        for window in windows:
            batch.admit(decoder, window, request)
        counted.append([])
        while batch.n_requests:
            device.counts = Counts()
            batch.step()
            counted[-1].append(device.counts)
        device.counts = Counts()
    for n, steps in zip((1, 6), counted, strict=True):
        first, second = steps[:2]
        assert sum(first.operators.values()) <= 16, first.operators
        assert sum(second.operators.values()) <= 3, second.operators
        for step in steps:
            assert sum(step.reads.values()) == 1, step.reads
            assert sum(step.operators.values()) <= 16 + n, step.operators


@pytest.mark.long
def test_live_speech_on_the_device_is_the_processors(device: PretendedDevice) -> None:
    """With a choice of languages, so that the probe runs too."""
    checkpoint = nano()
    samples = load_audio(CLIP)[: 16000 * 3]
    texts = []
    for where in (DEVICE, CPU):
        backend = TorchBackend.from_checkpoint(checkpoint, device=where, dtype=torch.float32)
        model = Model(checkpoint, on(device, backend) if where == DEVICE else backend)
        session = model.session(languages=["en", "de"])
        events = [
            event for at in range(0, len(samples), 16000) for event in session.push(samples[at : at + 16000])
        ]
        texts.append([getattr(event, "text", "") for event in [*events, *session.close()]])
    assert texts[0] == texts[1]
    assert any(texts[0])


@pytest.mark.parametrize("n_threads", [3, pytest.param(16, marks=pytest.mark.long)])
def test_threads_of_live_sessions_are_the_processors(
    device: PretendedDevice, monkeypatch: pytest.MonkeyPatch, n_threads: int
) -> None:
    """One engine runs the calls of all on the device; each session is what it is alone on a processor."""
    checkpoint = nano()
    samples = load_audio(CLIP)
    pieces = [samples[800 * i : 800 * i + 12800] for i in range(n_threads)]
    run = batching._Engine.run

    def run_on_device(self: batching._Engine) -> None:
        with InThread(device):
            run(self)

    monkeypatch.setattr(batching._Engine, "run", run_on_device)

    def spoken(model: Model, runtime: Runtime, piece: Samples) -> list[str]:
        session = model.session(languages=["en"], runtime=runtime)
        events = session.push(piece)
        return [getattr(event, "text", "") for event in [*events, *session.close()]]

    def models(where: torch.device) -> TorchBackend:
        return TorchBackend.from_checkpoint(checkpoint, device=where, dtype=torch.float32)

    backend = on(device, models(DEVICE))
    ours, theirs = Model(checkpoint, backend), Model(checkpoint, models(CPU))
    shared = batching.BatchingRuntime(backend, batching.ON_ACCELERATOR)

    def in_thread(piece: Samples) -> list[str]:
        with InThread(device), shared.caller() as caller:
            return spoken(ours, caller, piece)

    with ThreadPoolExecutor(n_threads) as threads:
        result = list(threads.map(in_thread, pieces))
    shared.close()
    shared.join(10.0)
    assert result == [spoken(theirs, DirectRuntime(theirs.backend), piece) for piece in pieces]
    assert sum(map(any, result)) > n_threads // 2


def test_a_ctc_model_on_the_device_is_the_processors(device: PretendedDevice) -> None:
    checkpoint = nano()
    features = window_features([log_mel(load_audio(CLIP))], 600)
    result = []
    for where in (DEVICE, CPU):
        backend = TorchBackend.from_checkpoint(checkpoint, device=where, dtype=torch.float32)
        head = Model(checkpoint, on(device, backend) if where == DEVICE else backend).ctc_head
        assert head is not None
        emissions = head.emissions(features)
        (hypotheses,) = CtcDecoder(head.labels, blank=head.blank, beam_size=8).decode(
            emissions.log_probs, emissions.lengths
        )
        result.append((emissions.log_probs, [hypothese.text for hypothese in hypotheses]))
    np.testing.assert_allclose(result[0][0], result[1][0], atol=1e-3, rtol=0)
    assert result[0][1] == result[1][1]
    assert result[0][1][0]
