"""What every backend keeps to, whatever runs beneath it."""

from __future__ import annotations

from copy import deepcopy as copy

import numpy as np
import pytest

from sottovoce.decoding.filters import log_softmax
from sottovoce.errors import OptionError
from sottovoce.models.backend import EncoderOutput
from sottovoce.types import Features, Floats, Ints
from tests.contracts.subjects import TOLERANCE, Subject, difference, one_row, windows
from tests.runtime.fake import FakeBackend
from tests.runtime.reading import read, start, step


def prompt_rows(subject: Subject, n_rows: int) -> Ints:
    return np.array([subject.prompt] * n_rows)


def test_token_by_token_equals_all_at_once(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    heads = backend.alignment_heads
    whole = read(backend, encoded, tokens, capture=heads)
    rows = start(backend, encoded)
    steps = [step(rows, tokens[:, i : i + 1], capture=heads) for i in range(tokens.shape[1])]
    assert difference(np.concatenate([item.logits for item in steps], 1), whole.logits) <= TOLERANCE
    assert difference(np.concatenate([item.attention for item in steps], 2), whole.attention) <= TOLERANCE


def test_a_long_cache_outgrows_its_first_buffer(subject: Subject) -> None:
    backend = subject.backend
    n_tokens = backend.dims.n_text_ctx
    encoded = backend.encode(windows(backend, 1))
    tokens = np.array([(subject.prompt * n_tokens)[:n_tokens]])
    whole = read(backend, encoded, tokens)
    rows = start(backend, encoded)
    parts = [step(rows, part) for part in np.array_split(tokens, 3, axis=1)]
    assert difference(parts[-1].logits[:, -1], whole.logits[:, -1]) <= TOLERANCE


def test_a_batch_equals_single_windows(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    batch = read(backend, encoded, tokens, capture=backend.alignment_heads)
    for row in range(2):
        single = one_row(encoded, row)
        alone = read(backend, single, tokens[row : row + 1], capture=backend.alignment_heads)
        assert difference(batch.logits[row : row + 1], alone.logits) <= TOLERANCE
        assert difference(batch.attention[row : row + 1], alone.attention) <= TOLERANCE


@pytest.mark.parametrize("chosen", [[0, 0, 1], [1, 1, 0, 0], [1, 0], [3, 0, 0, 2], [2], [0, 3, 1, 2, 3]])
def test_selected_rows_are_those_rows(subject: Subject, chosen: list[int]) -> None:
    """Rows over two windows, picked in any number and order, go on as the rows they came from."""
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    rows = start(backend, encoded, 2)
    first = np.array([subject.prompt[:3]] * 4)
    second = np.array([[5], [6], [7], [8]])
    third = 9 + np.arange(len(chosen))[:, None]
    step(rows, first)
    step(rows, second)
    rows.select(chosen)
    assert rows.n_rows == len(chosen)
    ours = step(rows, third, capture=backend.alignment_heads)
    for place, row in enumerate(chosen):
        history = np.concatenate([first[row], second[row], third[place]])[None]
        theirs = read(backend, one_row(encoded, row // 2), history, capture=backend.alignment_heads)
        assert difference(ours.logits[place], theirs.logits[0, -1:]) <= TOLERANCE
        assert difference(ours.attention[place], theirs.attention[0, :, -1:]) <= TOLERANCE


def test_rows_are_selected_again_after_windows_are_gone(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend, 4))
    rows = start(backend, encoded)
    tokens = prompt_rows(subject, 4)
    step(rows, tokens)
    rows.select([1, 3])
    rows.select([1, 1, 0])
    ours = step(rows, tokens[:3, :1])
    for place, window in enumerate((3, 3, 1)):
        history = np.concatenate([tokens[:1], tokens[:1, :1]], axis=1)
        theirs = read(backend, one_row(encoded, window), history)
        assert difference(ours.logits[place], theirs.logits[0, -1:]) <= TOLERANCE


def test_captured_attention_is_a_distribution_in_the_order_asked(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 4)
    heads = backend.alignment_heads
    result = step(start(backend, encoded, 2), tokens, capture=heads).attention
    turned = step(start(backend, encoded, 2), tokens, capture=heads[::-1]).attention
    assert result.shape == (4, len(heads), tokens.shape[1], encoded.n_frames)
    assert result.dtype == np.float32
    assert difference(result.sum(-1), np.ones(result.shape[:-1], np.float32)) <= TOLERANCE
    assert difference(result[:, ::-1], turned) <= TOLERANCE


def test_capture_changes_no_logit(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    without = read(backend, encoded, tokens)
    captured = read(backend, encoded, tokens, capture=backend.alignment_heads)
    assert without.attention.shape[1] == 0
    assert np.array_equal(without.logits, captured.logits)


def test_positions_and_vocabulary_select(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    whole = read(backend, encoded, tokens).logits
    ids = np.array([17, 3, backend.dims.n_vocab - 1])
    places = [[0, len(subject.prompt) - 1], [1]]
    some = start(backend, encoded).step(tokens.tolist(), places, vocabulary=ids).logits
    assert whole.shape == (2, tokens.shape[1], backend.dims.n_vocab)
    assert whole.dtype == np.float32
    assert difference(some, np.concatenate([whole[0, places[0]], whole[1, places[1]]])[:, ids]) <= TOLERANCE


def test_keys_and_values_of_the_audio_are_made_once(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    first = start(backend, encoded, 3)
    shared = encoded.cross_kv
    assert shared is not None
    step(first, prompt_rows(subject, 6))
    read(backend, encoded, prompt_rows(subject, 2))
    assert encoded.cross_kv is shared
    assert shared[0][0].shape[0] == encoded.batch_size


SPANS = (
    [(0, 30)],
    [(7, 8)],
    [(12, 25)],
    [(0, 30), (0, 30)],
    [(3, 9), (20, 30), (0, 30), (3, 9), (29, 30), (14, 21), (2, 4), (8, 28)],
)


@pytest.mark.parametrize("n_tokens", [1, 3])
@pytest.mark.parametrize("spans", SPANS)
def test_a_step_within_spans_equals_one_over_these_frames_alone(
    subject: Subject, spans: list[tuple[int, int]], n_tokens: int
) -> None:
    backend = subject.backend
    ids = np.array([17, 3, backend.dims.n_vocab - 1, 259, 50])
    encoded = one_row(backend.encode(windows(backend)), 1)
    rows, heads = start(backend, encoded, len(spans)), backend.alignment_heads
    tokens = [subject.prompt[:n_tokens]] * len(spans)
    ours = step(rows, tokens, vocabulary=ids, spans=spans, capture=heads)
    assert ours.logits.shape == (len(spans), n_tokens, len(ids))
    assert ours.logits.dtype == np.float32
    for row, (begin, end) in enumerate(spans):
        part = type(encoded)(encoded.states[:, begin:end], (end - begin,))
        alone = read(backend, part, tokens[:1], vocabulary=ids, capture=heads)
        same = (log_softmax(logits) for logits in (ours.logits[row], alone.logits[0]))
        np.testing.assert_allclose(*same, atol=1e-4, rtol=0)
        if not isinstance(backend, FakeBackend):  # it attends to frame 0 before the first token
            within = ours.attention[row, ..., begin:end]
            np.testing.assert_allclose(within, alone.attention[0], atol=1e-4, rtol=0)


def first_logits(subject: Subject, encoded: EncoderOutput, spans: list[tuple[int, int]]) -> Floats:
    rows = start(subject.backend, encoded)
    rows.select([0] * len(spans))
    return step(rows, [subject.prompt[:1]] * len(spans), vocabulary=np.arange(9), spans=spans).logits


def test_a_step_within_spans_leaves_no_trace(subject: Subject) -> None:
    """Rows over the same audio give the same logits bit by bit, with such steps between theirs or without."""
    backend = subject.backend
    encoded = backend.encode(windows(backend, 1))
    tokens = prompt_rows(subject, 1)
    rows = start(backend, encoded)
    shared = encoded.cross_kv
    assert shared is not None
    copies = [(copy(keys), copy(values)) for keys, values in shared]

    def logits(probing: bool) -> list[Floats]:
        rows.cut(0, tokens.shape[1])
        steps = []
        for token in np.split(tokens, tokens.shape[1], axis=1):
            if probing:
                first_logits(subject, encoded, [(0, 12), (5, 30)])
                step(rows, [subject.prompt[:2]], spans=[(0, 12)])
            steps.append(step(rows, token).logits)
        return steps

    plain = logits(probing=False)
    assert all(np.array_equal(*pair) for pair in zip(logits(probing=True), plain, strict=True))
    assert encoded.cross_kv is shared
    for (keys, values), (old_keys, old_values) in zip(shared, copies, strict=True):
        assert np.array_equal(keys, old_keys)
        assert np.array_equal(values, old_values)


def test_spans_outside_of_the_window_are_refused(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend, 1))
    for span in ((-1, 4), (4, 4), (5, 4), (0, 31)):
        with pytest.raises(OptionError, match="rows: expected frames within"):
            first_logits(subject, encoded, [(0, 30), span])
    with pytest.raises(OptionError, match="spans for 0 of 1 rows"):
        step(start(backend, encoded), [[1]], spans=[])


@pytest.mark.parametrize("n_frames", [2, 4, 18, 50, 78, 80])
def test_any_even_number_of_frames_is_encoded(subject: Subject, n_frames: int) -> None:
    backend = subject.backend
    encoded = backend.encode(Features(windows(backend, 2, n_frames).mel, (n_frames, n_frames - 1)))
    assert encoded.states.shape[:2] == (2, n_frames // 2)
    assert encoded.n_content_frames == (n_frames // 2, n_frames // 2)
    assert np.isfinite(read(backend, encoded, prompt_rows(subject, 2)).logits).all()


def test_wrong_shapes_are_refused(subject: Subject) -> None:
    backend = subject.backend
    longest = 2 * backend.dims.n_audio_ctx
    for n_mels, n_frames in ((80, 61), (80, longest + 2), (79, 60), (80, 0)):
        with pytest.raises(OptionError, match="encode: "):
            backend.encode(Features(np.zeros((1, n_mels, n_frames), np.float32), (n_frames,)))
    rows = start(backend, backend.encode(windows(backend)))
    for wrong in ([[1]], [[], []], [[1], [2], [3]]):
        with pytest.raises(OptionError, match="tokens"):
            rows.step(wrong, [[0]] * len(wrong))
    for head in ((backend.dims.n_text_layer, 0), (0, backend.dims.n_text_head), (-1, 0)):
        with pytest.raises(OptionError, match=f"{backend.dims.n_text_layer} layers of"):
            rows.step([[1], [2]], [[0], [0]], capture=(head,))


def test_more_tokens_than_the_context_are_refused(subject: Subject) -> None:
    backend = subject.backend
    tokens = (subject.prompt * backend.dims.n_text_ctx)[: backend.dims.n_text_ctx]
    rows = start(backend, backend.encode(windows(backend, 1)))
    step(rows, [tokens])
    with pytest.raises(OptionError, match=f"reads {backend.dims.n_text_ctx}"):
        step(rows, [tokens[:1]])
