"""Rows that come and go, on every backend: each says what it says alone."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.errors import OptionError
from sottovoce.models.backend import EncoderOutput
from sottovoce.types import Floats
from tests.contracts.subjects import TOLERANCE, Subject, difference, one_row, subject_of, windows
from tests.runtime.fake import FakeBackend
from tests.runtime.reading import read


def heard(subject: Subject) -> list[EncoderOutput]:
    """Windows of different lengths."""
    backend = subject.backend
    return [one_row(backend.encode(windows(backend, 2, n)), row) for n, row in ((60, 0), (40, 1), (60, 1))]


def alone(subject: Subject, encoded: EncoderOutput, tokens: list[int]) -> tuple[Floats, Floats]:
    """Logits and attention after the last token, read in one go."""
    output = read(subject.backend, encoded, [tokens], capture=subject.backend.alignment_heads)
    return output.logits[0, -1], output.attention[0, :, -1:]


def test_rows_of_any_age_audio_and_length_read_as_alone(subject: Subject) -> None:
    backend, prompt = subject.backend, list(subject.prompt)
    first, second, third = heard(subject)
    rows, heads = backend.rows(), backend.alignment_heads
    rows.admit(first)
    rows.step([prompt[:3]], [[2]], capture=heads)
    rows.admit(second)
    output = rows.step([prompt[3:], prompt], [[len(prompt) - 4], [0, len(prompt) - 1]], capture=heads)
    rows.admit(third)
    rows.admit(third)
    last = rows.step([[9], [], prompt[:2], prompt[:4]], [[0], [], [1], [3]], capture=heads)
    for logits, attention, expected in (
        (output.logits[0], output.attention[0][:, -1:], alone(subject, first, prompt)),
        (output.logits[2], output.attention[1][:, -1:], alone(subject, second, prompt)),
        (last.logits[0], last.attention[0], alone(subject, first, [*prompt, 9])),
        (last.logits[1], last.attention[2][:, -1:], alone(subject, third, prompt[:2])),
        (last.logits[2], last.attention[3][:, -1:], alone(subject, third, prompt[:4])),
    ):
        assert difference(logits, expected[0]) <= TOLERANCE
        n_frames = expected[1].shape[-1]
        assert difference(attention[..., :n_frames], expected[1]) <= TOLERANCE
        assert not attention[..., n_frames:].any()
    assert last.attention[1].shape[1] == 0


def test_several_windows_are_admitted_at_once(subject: Subject) -> None:
    backend, prompt = subject.backend, list(subject.prompt)
    encoded = backend.encode(windows(backend))
    rows = backend.rows()
    rows.admit(encoded)
    assert rows.n_rows == encoded.batch_size > 1
    every = [prompt[: 1 + row] for row in range(rows.n_rows)]
    output = rows.step(every, [[row] for row in range(rows.n_rows)])
    for row, tokens in enumerate(every):
        assert difference(output.logits[row], alone(subject, one_row(encoded, row), tokens)[0]) <= TOLERANCE
    nothing = rows.step([[9]] * rows.n_rows, [[]] * rows.n_rows)
    assert nothing.logits.shape == (0, backend.dims.n_vocab), "no position is wanted"


@pytest.mark.parametrize("chosen", [[1, 0], [0, 0, 1], [1], [1, 1, 1], []])
def test_rows_branch_move_and_leave(subject: Subject, chosen: list[int]) -> None:
    backend, prompt = subject.backend, list(subject.prompt)
    encoded = heard(subject)[:2]
    rows = backend.rows()
    for item in encoded:
        rows.admit(item)
    rows.step([prompt, prompt[:2]], [[0], [0]])
    rows.select(chosen)
    assert rows.n_rows == len(chosen)
    if not chosen:
        return
    output = rows.step([[5 + i] for i in range(len(chosen))], [[0]] * len(chosen))
    for place, row in enumerate(chosen):
        history = [*(prompt, prompt[:2])[row], 5 + place]
        assert difference(output.logits[place], alone(subject, encoded[row], history)[0]) <= TOLERANCE


def test_wrong_guesses_are_forgotten_by_their_row_alone(subject: Subject) -> None:
    backend, prompt = subject.backend, list(subject.prompt)
    encoded = heard(subject)[:2]
    rows = backend.rows()
    for item in encoded:
        rows.admit(item)
    rows.step([[*prompt, 7, 8], [*prompt, 7]], [[0], [0]])
    rows.cut(0, 2)
    output = rows.step([[9], [9]], [[0], [0]])
    assert difference(output.logits[0], alone(subject, encoded[0], [*prompt, 9])[0]) <= TOLERANCE
    assert difference(output.logits[1], alone(subject, encoded[1], [*prompt, 7, 9])[0]) <= TOLERANCE


def test_several_tokens_behind_others_see_what_came_before_each(subject: Subject) -> None:
    backend, prompt = subject.backend, list(subject.prompt)
    encoded = heard(subject)[0]
    rows = backend.rows()
    rows.admit(encoded)
    rows.step([prompt[:2]], [[0]])
    output = rows.step([prompt[2:]], [list(range(len(prompt) - 2))])
    for i in range(2, len(prompt)):
        assert difference(output.logits[i - 2], alone(subject, encoded, prompt[: i + 1])[0]) <= TOLERANCE


def test_a_vocabulary_is_all_that_is_computed(subject: Subject) -> None:
    rows, some = subject.backend.rows(), np.array([3, 50])
    encoded = heard(subject)[0]
    rows.admit(encoded)
    result = rows.step([list(subject.prompt)], [[len(subject.prompt) - 1]], vocabulary=some)
    assert difference(result.logits[0], alone(subject, encoded, list(subject.prompt))[0][some]) <= TOLERANCE


def test_what_cannot_be_is_said_in_one_line(subject: Subject) -> None:
    backend = subject.backend
    rows = backend.rows()
    with pytest.raises(OptionError, match="one window"):
        rows.admit(backend.encode(windows(backend)), heard(subject)[0])
    encoded = heard(subject)[0]
    rows.admit(encoded)
    for tokens, wanted in (([], []), ([[1], [2]], [[0], [0]]), ([[]], [[]])):
        with pytest.raises(OptionError, match="tokens"):
            rows.step(tokens, wanted)
    with pytest.raises(OptionError, match="tokens"):
        rows.step([[1] * (backend.dims.n_text_ctx + 1)], [[0]])
    with pytest.raises(OptionError, match="expected indices"):
        rows.select([1])


def test_what_a_row_kept_is_gone_on_from_as_if_it_were_read_anew(subject: Subject) -> None:
    """Any number of times, and whatever was read behind it meanwhile."""
    backend, prompt = subject.backend, list(subject.prompt)
    encoded, heads = heard(subject)[0], subject.backend.alignment_heads
    rows = backend.rows()
    rows.admit(encoded)
    rows.step([[*prompt, 7, 8]], [[0]])
    (kept,) = rows.prefixes_of([(0, len(prompt) - 1)])
    if kept is None:
        assert isinstance(subject.backend, FakeBackend)
        return
    assert kept.n_tokens == len(prompt) - 1
    rows.step([[11] * 6], [[0]])
    for newest in (9, 10):
        again = backend.rows()
        again.admit(encoded)
        again.admit(encoded, kept)
        output = again.step([prompt[:1], [prompt[-1], newest]], [[0], [1]], capture=heads)
        logits, attention = alone(subject, encoded, [*prompt, newest])
        assert difference(output.logits[1], logits) <= TOLERANCE
        assert difference(output.attention[1][:, -1:], attention) <= TOLERANCE
        again.step([[], [12] * 6], [[], [0]])
        assert kept.n_tokens == len(prompt) - 1


def test_a_state_of_another_kind_is_refused() -> None:
    subject = subject_of("torch")
    with pytest.raises(OptionError, match="state of a row"):
        subject.backend.rows().admit(heard(subject)[0], subject.backend.rows())


def test_a_limited_window_is_attended_to_within_its_span(subject: Subject) -> None:
    if isinstance(subject.backend, FakeBackend):
        return  # it reads the script, whatever the attention
    encoded = one_row(subject.backend.encode(windows(subject.backend, 1, 60)), 0)
    rows = subject.backend.rows()
    rows.admit(encoded)
    expected = rows.step([[7]], [[0]], spans=[(3, 11)]).logits[0]
    assert difference(alone(subject, encoded.limited(3, 11), [7])[0], expected) <= TOLERANCE
    assert difference(alone(subject, encoded.limited(0, encoded.n_frames), [7])[0], expected) > TOLERANCE
