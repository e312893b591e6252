"""What every backend keeps to, whatever runs beneath it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sottovoce.errors import OptionError
from sottovoce.models.backend import DecoderState
from sottovoce.types import EncoderOutput, Features
from tests.contracts.subjects import TOLERANCE, Subject, difference, one_row, windows


def prompt_rows(subject: Subject, n_rows: int) -> Tensor:
    return torch.tensor([subject.prompt] * n_rows)


def test_token_by_token_equals_all_at_once(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    heads = backend.alignment_heads
    whole = backend.step(tokens, backend.start(encoded), positions=None, capture=heads)
    state = backend.start(encoded)
    steps = [backend.step(tokens[:, i : i + 1], state, capture=heads) for i in range(tokens.shape[1])]
    assert state.n_tokens == tokens.shape[1]
    assert difference(torch.cat([step.logits for step in steps], 1), whole.logits) <= TOLERANCE
    attention = torch.cat([step.attention for step in steps if step.attention is not None], 2)
    assert difference(attention, whole.attention) <= TOLERANCE


def test_a_long_cache_outgrows_its_first_buffer(subject: Subject) -> None:
    backend = subject.backend
    n_tokens = backend.dims.n_text_ctx
    encoded = backend.encode(windows(backend, 1))
    tokens = torch.tensor([(subject.prompt * n_tokens)[:n_tokens]])
    whole = backend.step(tokens, backend.start(encoded))
    state = backend.start(encoded)
    for part in torch.split(tokens, n_tokens // 3, dim=1):
        last = backend.step(part, state)
    assert difference(last.logits, whole.logits) <= TOLERANCE


def test_a_batch_equals_single_windows(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    batch = backend.step(tokens, backend.start(encoded), capture=backend.alignment_heads)
    for row in range(2):
        single = backend.start(one_row(encoded, row))
        alone = backend.step(tokens[row : row + 1], single, capture=backend.alignment_heads)
        assert difference(batch.logits[row : row + 1], alone.logits) <= TOLERANCE
        assert difference(batch.attention[row : row + 1], alone.attention) <= TOLERANCE


def test_left_padding_equals_no_padding(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    lengths = (len(subject.prompt), len(subject.prompt) - 2)
    padding = torch.tensor([0, 2])
    tokens = torch.tensor([subject.prompt, (0, 0, *subject.prompt[:-2])])
    state = backend.start(encoded, left_padding=padding)
    padded = [backend.step(tokens, state), backend.step(tokens[:, :1], state)]
    for row, length in enumerate(lengths):
        single = backend.start(one_row(encoded, row))
        prompt = torch.tensor([subject.prompt[:length]])
        alone = [backend.step(prompt, single), backend.step(tokens[row : row + 1, :1], single)]
        for ours, theirs in zip(padded, alone, strict=True):
            assert difference(ours.logits[row : row + 1], theirs.logits) <= TOLERANCE


@pytest.mark.parametrize("rows", [[0, 0, 1], [1, 1, 0, 0], [1, 0], [3, 0, 0, 2], [2], [0, 3, 1, 2, 3]])
def test_reordered_rows_are_those_rows(subject: Subject, rows: list[int]) -> None:
    """Rows over two audios, picked in any number and order, go on as the rows they came from."""
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    state = backend.start(encoded, 2)
    first = torch.tensor([subject.prompt[:3]] * 4)
    second = torch.tensor([[token] for token in (5, 6, 7, 8)])
    third = torch.tensor([[9 + i] for i in range(len(rows))])
    backend.step(first, state)
    backend.step(second, state)
    state.reorder(torch.tensor(rows))
    assert state.n_rows == len(rows)
    ours = backend.step(third, state, capture=backend.alignment_heads)
    for place, row in enumerate(rows):
        alone = backend.start(one_row(encoded, row // 2))
        history = torch.cat([first[row], second[row], third[place]])[None]
        theirs = backend.step(history, alone, capture=backend.alignment_heads)
        assert difference(ours.logits[place], theirs.logits[0]) <= TOLERANCE
        assert difference(ours.attention[place], theirs.attention[0, :, -1:]) <= TOLERANCE


def test_reorder_again_after_audios_are_gone(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend, 4))
    state = backend.start(encoded)
    tokens = prompt_rows(subject, 4)
    backend.step(tokens, state)
    state.reorder(torch.tensor([1, 3]))
    state.reorder(torch.tensor([1, 1, 0]))
    ours = backend.step(tokens[:3, :1], state)
    for place, audio in enumerate((3, 3, 1)):
        alone = backend.start(one_row(encoded, audio))
        history = torch.cat([tokens[:1], tokens[:1, :1]], dim=1)
        assert difference(ours.logits[place : place + 1], backend.step(history, alone).logits) <= TOLERANCE


def test_truncate_forgets(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    state = backend.start(encoded)
    backend.step(tokens, state)
    state.truncate(2)
    assert state.n_tokens == 2
    again = backend.step(tokens[:, 2:], state, positions=None)
    whole = backend.step(tokens, backend.start(encoded), positions=None)
    assert difference(again.logits, whole.logits[:, 2:]) <= TOLERANCE


def test_captured_attention_is_a_distribution_in_the_order_asked(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 4)
    heads = backend.alignment_heads
    said = backend.step(tokens, backend.start(encoded, 2), capture=heads)
    turned = backend.step(tokens, backend.start(encoded, 2), capture=heads[::-1])
    assert said.attention.shape == (4, len(heads), tokens.shape[1], encoded.n_frames)
    assert said.attention.dtype == torch.float32
    assert difference(said.attention.sum(-1), torch.ones(said.attention.shape[:-1])) <= TOLERANCE
    assert difference(said.attention.flip(1), turned.attention) <= TOLERANCE


def test_capture_changes_no_logit(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    without = backend.step(tokens, backend.start(encoded))
    captured = backend.step(tokens, backend.start(encoded), capture=backend.alignment_heads)
    assert without.attention is None
    assert torch.equal(without.logits, captured.logits)


def test_positions_and_vocabulary_select(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    whole = backend.step(tokens, backend.start(encoded), positions=None)
    rows = torch.tensor([17, 3, backend.dims.n_vocab - 1])
    some = backend.step(tokens, backend.start(encoded), positions=(0, -1), vocabulary=rows)
    assert whole.logits.shape == (2, tokens.shape[1], backend.dims.n_vocab)
    assert whole.logits.dtype == torch.float32
    assert difference(some.logits, whole.logits[:, [0, -1]][:, :, rows]) <= TOLERANCE


def test_keys_and_values_of_the_audio_are_made_once(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend))
    assert encoded.cross_kv is None
    first = backend.start(encoded, 3)
    shared = encoded.cross_kv
    assert shared is not None
    backend.step(prompt_rows(subject, 6), first)
    backend.step(prompt_rows(subject, 2), backend.start(encoded))
    assert encoded.cross_kv is shared
    assert shared[0][0].shape[0] == encoded.batch_size


SPANS = (
    [(0, 30)],
    [(7, 8)],
    [(12, 25)],
    [(0, 30), (0, 30)],
    [(3, 9), (20, 30), (0, 30), (3, 9), (29, 30), (14, 21), (2, 4), (8, 28)],
)


@pytest.mark.parametrize("spans", SPANS)
def test_the_first_step_equals_a_step_over_the_span_alone(
    subject: Subject, spans: list[tuple[int, int]]
) -> None:
    """One token at position 0, hearing a stretch: whatever a backend leaves out, it was not needed."""
    backend = subject.backend
    rows = torch.tensor([17, 3, backend.dims.n_vocab - 1, 259, 50])
    encoded = one_row(backend.encode(windows(backend)), 1)
    ours = backend.first_step(encoded, spans, token=subject.prompt[0], vocabulary=rows)
    tokens = torch.tensor([subject.prompt[:1]])
    parts = [EncoderOutput(encoded.states[:, start:end], (end - start,)) for start, end in spans]
    alone = [backend.step(tokens, backend.start(part), vocabulary=rows).logits[:, 0] for part in parts]
    theirs = torch.cat(alone)
    assert ours.shape == (len(spans), len(rows))
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.log_softmax(1), theirs.log_softmax(1), atol=1e-4, rtol=0)


def first_step(subject: Subject, encoded: EncoderOutput, spans: list[tuple[int, int]]) -> Tensor:
    return subject.backend.first_step(encoded, spans, token=subject.prompt[0], vocabulary=torch.arange(9))


def test_the_first_step_leaves_no_trace(subject: Subject) -> None:
    """Decoders over the same audio say the same bit by bit, with first steps between theirs or without."""
    backend = subject.backend
    encoded = backend.encode(windows(backend, 1))
    tokens = prompt_rows(subject, 1)
    state = backend.start(encoded)
    shared = encoded.cross_kv
    copies = [(keys.clone(), values.clone()) for keys, values in shared]

    def said(probing: bool) -> list[Tensor]:
        state.truncate(0)
        steps = []
        for token in torch.split(tokens, 1, dim=1):
            if probing:
                first_step(subject, encoded, [(0, 12), (5, 30)])
            steps.append(backend.step(token, state).logits)
        return steps

    plain = said(probing=False)
    assert all(torch.equal(*pair) for pair in zip(said(probing=True), plain, strict=True))
    assert encoded.cross_kv is shared
    for (keys, values), (old_keys, old_values) in zip(shared, copies, strict=True):
        assert torch.equal(keys, old_keys)
        assert torch.equal(values, old_values)
    once = first_step(subject, encoded, [(0, 12), (5, 30)])
    assert torch.equal(once, first_step(subject, encoded, [(0, 12), (5, 30)]))


def test_the_first_step_makes_the_keys_and_values_that_decoders_need(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend, 1))
    first_step(subject, encoded, [(0, 12)])
    shared = encoded.cross_kv
    assert shared is not None
    backend.start(encoded)
    assert encoded.cross_kv is shared


def test_spans_outside_of_the_window_are_refused(subject: Subject) -> None:
    backend = subject.backend
    both = backend.encode(windows(backend))
    for span in ((-1, 4), (4, 4), (5, 4), (0, 31)):
        with pytest.raises(OptionError, match="first step"):
            first_step(subject, one_row(both, 0), [(0, 30), span])
    with pytest.raises(OptionError, match="at least one span"):
        first_step(subject, one_row(both, 0), [])
    with pytest.raises(OptionError, match="one window, got 2"):
        first_step(subject, both, [(0, 30)])


@pytest.mark.parametrize("n_frames", [2, 4, 18, 50, 78, 80])
def test_any_even_number_of_frames_is_encoded(subject: Subject, n_frames: int) -> None:
    backend = subject.backend
    encoded = backend.encode(Features(windows(backend, 2, n_frames).mel, (n_frames, n_frames - 1)))
    assert encoded.states.shape[:2] == (2, n_frames // 2)
    assert encoded.n_content_frames == (n_frames // 2, n_frames // 2)
    step = backend.step(prompt_rows(subject, 2), backend.start(encoded))
    assert torch.isfinite(step.logits).all()


def test_wrong_shapes_are_refused(subject: Subject) -> None:
    backend = subject.backend
    longest = 2 * backend.dims.n_audio_ctx
    for n_mels, n_frames in ((80, 61), (80, longest + 2), (79, 60), (80, 0)):
        with pytest.raises(OptionError, match="encode: "):
            backend.encode(Features(torch.zeros(1, n_mels, n_frames), (n_frames,)))
    encoded = backend.encode(windows(backend))
    tokens = prompt_rows(subject, 2)
    with pytest.raises(OptionError, match="hypotheses"):
        backend.start(encoded, 0)
    with pytest.raises(OptionError, match="left_padding"):
        backend.start(encoded, left_padding=torch.zeros(3, dtype=torch.int64))
    for wrong in (tokens[:1], tokens[:, :0], tokens[0]):
        with pytest.raises(OptionError, match="tokens"):
            backend.step(wrong, backend.start(encoded))
    for rows in ([2], [-1], []):
        with pytest.raises(OptionError, match="reorder"):
            start_and_read(subject, encoded).reorder(torch.tensor(rows, dtype=torch.int64))


def test_more_tokens_than_the_context_are_refused(subject: Subject) -> None:
    backend = subject.backend
    encoded = backend.encode(windows(backend, 1))
    tokens = torch.tensor([(subject.prompt * backend.dims.n_text_ctx)[: backend.dims.n_text_ctx]])
    state = backend.start(encoded)
    backend.step(tokens, state)
    with pytest.raises(OptionError, match=f"reads {backend.dims.n_text_ctx}"):
        backend.step(tokens[:, :1], state)


def start_and_read(subject: Subject, encoded: EncoderOutput) -> DecoderState:
    state = subject.backend.start(encoded)
    subject.backend.step(prompt_rows(subject, 2), state)
    return state
