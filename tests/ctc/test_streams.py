"""Streams without end: what is settled leaves the state, and the result stays that of the whole."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sottovoce.cli.main import run
from sottovoce.ctc import CtcDecoder
from sottovoce.ctc.emissions import log_softmax
from sottovoce.ctc.options import CtcOptions
from sottovoce.lm.rescoring import History
from sottovoce.types import Partial
from tests.ctc.enumeration import all_texts, emissions
from tests.ctc.lists import differences

LABELS = ["-", "a", "b", "c", "d", " "]
WORDS = ["ab", "ba", "cad", "dab", "bad", "ad", "cab"]
CHUNK = 25


def speech(n_words: int, seed: int, *, doubt: float = 0.9) -> np.ndarray:
    """Emissions (T, V) of random words, as of a model that is mostly sure."""
    random = np.random.default_rng(seed)
    rows = []
    for index in random.integers(len(WORDS), size=n_words):
        for letter in WORDS[index] + " ":
            rows += [LABELS.index(letter), *([0] * random.integers(1, 4))]
    logits = random.standard_normal((len(rows), len(LABELS)), np.float32) * doubt
    logits[np.arange(len(rows)), np.array(rows)] += 4.0
    return log_softmax(logits)


def chunks(rows: np.ndarray) -> list[np.ndarray]:
    return np.split(rows, range(CHUNK, len(rows), CHUNK))


def decoder(kind: str, **options: object) -> CtcDecoder:
    chosen = CtcOptions(**{"beam_size": 8, "n_best": 3, **options})  # type: ignore[arg-type]
    if kind == "plain":
        return CtcDecoder(LABELS, 0, options=chosen)
    if kind == "lexicon":
        return CtcDecoder(
            LABELS, 0, options=chosen, lexicon=[(w, [LABELS.index(x) for x in w]) for w in WORDS]
        )
    if kind == "open":  # no separator: words end anywhere
        names = [*LABELS[:-1], "e"]
        spelled = [(w, [LABELS.index(x) for x in w] + [5]) for w in WORDS]
        return CtcDecoder(names, 0, options=chosen, lexicon=spelled, hotwords=["cad"])
    return CtcDecoder([*LABELS[:-1], "e"], 0, options=chosen)  # no words at all


KINDS = ["plain", "lexicon", "open", "letters"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"blank_skip": 0.9}, {"times": False}])
def test_a_stream_is_the_whole(kind: str, options: dict[str, object]) -> None:
    rows = np.zeros((2, 400, len(LABELS)), np.float32)
    rows[:, :, 0] = 1.0
    parts = [speech(40, seed) for seed in (1, 2)]
    lengths = np.array([min(len(part), 400 - 137 * i) for i, part in enumerate(parts)])
    for row, part, n in zip(rows, parts, lengths.tolist(), strict=True):
        row[:n] = part[:n]
    searcher = decoder(kind, commit_frames=None, **options)
    state = searcher.start(2)
    for begin in range(0, 400, CHUNK):
        counts = (lengths - begin).clip(0, CHUNK)
        searcher.decode_chunk(state, log_softmax(rows[:, begin : begin + CHUNK]), counts)
    assert all(past.n_frames > 0 for past in state.committed)
    assert differences(searcher.finish(state), searcher.decode(log_softmax(rows), lengths)) == []


@pytest.mark.parametrize("kind", ["plain", "lexicon"])
@pytest.mark.parametrize("options", [{}, {"times": False}])
def test_a_stream_stays_level(kind: str, options: dict[str, object]) -> None:
    """Nothing in the state grows with what was said, but for the text itself."""
    searcher = decoder(kind, commit_frames=200, **options)
    state = searcher.start()
    parts = [speech(30, seed) for seed in range(3)]
    for part in chunks(np.concatenate(parts)):
        searcher.decode_chunk(state, part)
        assert sum(chunk.shape[1] for chunk, _ in state.emissions) < 500
        assert state.symbols.shape[2] <= 256
    assert state.n_frames[0] > 700
    ours, theirs = searcher.finish(state)[0][0], searcher.decode(np.concatenate(parts))[0][0]
    assert ours.score > theirs.score - 0.1  # what is dropped makes room: it is often higher


@pytest.mark.parametrize("kind", ["plain", "lexicon"])
def test_silence_is_dropped(kind: str) -> None:
    rows = np.random.default_rng(1).standard_normal((1000, len(LABELS)), np.float32)
    rows[:, 0] += 9.0
    rows[950, 1] += 20.0
    rows[970, 2] += 20.0
    rows = log_softmax(rows)
    searcher = decoder(kind, commit_frames=200)
    state = searcher.start()
    for part in chunks(rows):
        searcher.decode_chunk(state, part)
        assert sum(chunk.shape[1] for chunk, _ in state.emissions) < 800
    ours, theirs = searcher.finish(state)[0][0], searcher.decode(rows)[0][0]
    assert (ours.text, ours.words) == (theirs.text, theirs.words)


@pytest.mark.parametrize("kind", KINDS)
def test_committed_words_are_told_once_and_stay(kind: str) -> None:
    searcher = decoder(kind, commit_frames=200)
    state = searcher.start()
    events: list[Partial] = []
    texts = []
    for part in chunks(speech(80, 3)):
        texts.append(searcher.decode_chunk(state, part)[0])
        events += searcher.committed(state)
        assert searcher.committed(state) == []
        reported = "".join(event.text for event in events).replace(" ", "")
        assert texts[-1].replace(" ", "").startswith(reported)
    best = searcher.finish(state)[0][0]
    words = [word for event in events for word in event.words]
    assert len(events) > 3
    assert len(reported) > 0.6 * len(best.text.replace(" ", ""))
    if kind == "letters":
        assert best.text.replace(" ", "").startswith(reported)
    else:
        assert list(best.words[: len(words)]) == words
    for event in events:
        assert event.utterance == 0
        assert event.end <= event.emission_time
        assert (event.start, event.end) == (event.words[0].start, event.words[-1].end)


@pytest.mark.parametrize("kind", ["plain", "lexicon", "letters"])
def test_words_on_which_the_text_ahead_is_based_are_committed(kind: str) -> None:
    """With all later frames ahead, they are those of the whole, and all words before the last chunk."""
    rows, searcher = speech(40, 3), decoder(kind, beam_size=64)
    whole = searcher.start()
    searcher.decode_chunk(whole, rows)
    text, state = searcher.partials(whole)[0][0].text, searcher.start()
    for begin in range(0, len(rows), CHUNK):
        part, later = rows[begin : begin + CHUNK], rows[begin + CHUNK :]
        searcher.decode_chunk(state, part)
        ahead = searcher.look_ahead(state, later)
        assert searcher.partials(ahead)[0][0].text == text
        assert text.startswith(state.committed[0].text)
        late = int(state.n_frames[0]) - state.committed[0].n_frames
        assert late < 2 * CHUNK
    assert len(state.committed[0].words) > 35
    assert searcher.partials(state)[0][0].text == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{}, {"times": False}])
def test_partial_texts_are_those_of_the_beams(kind: str, options: dict[str, object]) -> None:
    """At any chunk: the first is the text so far, no text twice, and words follow the committed ones."""
    searcher = decoder(kind, commit_frames=200, **options)
    state = searcher.start(2)
    rows = np.stack([speech(40, seed)[:400] for seed in (3, 5)])
    for part in np.split(rows, range(CHUNK, 400, CHUNK), axis=1):
        texts = searcher.decode_chunk(state, part)
        for row, (result, text) in enumerate(zip(searcher.partials(state), texts, strict=True)):
            assert result[0].text == text
            assert 1 <= len(result) <= 3
            assert len({h.text for h in result}) == len(result)
            assert [h.score for h in result] == sorted((h.score for h in result), reverse=True)
            assert 0 < sum(h.posterior or 0.0 for h in result) <= 1 + 1e-4
            reported = state.committed[row]
            for h in result:
                assert h.score == pytest.approx(h.acoustic_score + h.lm_score, abs=1e-3)
                said = [*(word.text for word in reported.words), *(word.word for word in h.words)]
                if options == {}:
                    assert "".join(said) == h.text.replace(" ", "")
                    frames = [*reported.first[: reported.n_closed], *h.token_frames]
                    assert frames == sorted(frames)
    assert all(past.n_frames > 0 for past in state.committed)
    settled = searcher.finish(state)[0][0].text
    assert settled.split()[:20] == searcher.partials(state)[0][0].text.split()[:20]


def test_partial_texts_are_the_likeliest_of_all() -> None:
    """Those of a beam that holds everything, by enumeration of all paths; shares are of all texts."""
    names, log_probs = ["-", "a", "b", " "], emissions(6, 4, seed=8)
    searcher = CtcDecoder(names, options=CtcOptions(beam_size=1500, n_best=10, times=False))
    state = searcher.start()
    for end in (2, 4, 6):
        searcher.decode_chunk(state, log_probs[end - 2 : end])
        sums: dict[str, float] = {}
        for tokens, score in all_texts(log_probs[:end], 0).items():
            text = " ".join("".join(names[token] for token in tokens).split())
            sums[text] = sums.get(text, 0.0) + math.exp(score)
        for result in searcher.partials(state)[0]:
            assert result.posterior == pytest.approx(sums[result.text], abs=1e-4)


def test_without_times_committed_text_has_no_words() -> None:
    searcher = decoder("plain", times=False, commit_frames=200)
    state = searcher.start()
    for part in chunks(speech(60, 4)):
        searcher.decode_chunk(state, part)
    (event,) = searcher.committed(state)
    assert event.words == ()
    assert event.start == event.end == event.emission_time
    assert searcher.finish(state)[0][0].text.startswith(event.text)


def test_scores_of_a_long_stream_count_from_its_beginning() -> None:
    """What was taken off the beams on the way is in the scores at the end."""
    parts = [speech(40, seed, doubt=2.0) for seed in range(8)]
    searcher = decoder("lexicon", commit_frames=200)
    state = searcher.start()
    for part in parts:
        searcher.decode_chunk(state, part)
    assert state.acoustic_offset[0] < -1000
    assert float((state.acoustic + state.lm).max()) > -1100
    ours, theirs = searcher.finish(state)[0][0], searcher.decode(np.concatenate(parts))[0][0]
    assert ours.score == pytest.approx(theirs.score, rel=1e-2)
    assert ours.acoustic_score + ours.lm_score == pytest.approx(ours.score)


class LastWord:
    """A neural model that scores words by themselves and the word before."""

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> dict[tuple[History, str], float]:
        return {pair: -1.0 - len(pair[1]) - 3.0 * (pair[0][-1:] == (pair[1],)) for pair in pairs}

    def score_ends(self, histories: Sequence[History]) -> dict[History, float]:
        return dict.fromkeys(histories, -1.0)


@pytest.mark.parametrize("chunk", [4, 7])
@pytest.mark.parametrize("neural", [False, True])
def test_updates_of_a_stream_end_with_the_whole(chunk: int, neural: bool) -> None:
    """Chunks of 80 ms, with the words told once and a list after each, the neural model included."""
    options = CtcOptions(beam_size=8, n_best=3, adjust_every_frames=5)
    words = [(word, [LABELS.index(letter) for letter in word]) for word in WORDS]
    searcher = CtcDecoder(LABELS, 0, options=options, lexicon=words, neural_lm=LastWord() if neural else None)
    frames = speech(30, 3)
    updates = list(searcher.stream(np.split(frames, range(chunk, len(frames), chunk))))
    whole = searcher.decode(frames)[0]
    assert differences([updates[-1].hypotheses], [whole]) == []
    assert [update.is_final for update in updates] == [False] * (len(updates) - 1) + [True]
    reported = [word for update in updates for word in update.committed]
    assert reported == list(whole[0].words)
    assert sum(len(update.committed) > 0 for update in updates) > 1
    before: list[str] = []
    for update in updates:
        text = update.text.split()
        assert update.changes_text == (text != before)
        n_same = len(before) - update.n_revised
        assert text[:n_same] == before[:n_same]
        assert update.n_revised == 0 or text[n_same : n_same + 1] != before[n_same : n_same + 1]
        if not update.is_final:
            assert update.hypotheses[0].text == update.text
        before = text
    assert updates[-1].time_s == pytest.approx(len(frames) * 0.02)


def test_the_command_reads_a_file_as_a_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    frames = speech(6, 1)
    np.save("one.npy", frames)
    Path("labels.txt").write_text("".join(f"{'|' if label == ' ' else label}\n" for label in LABELS))
    arguments = ["ctc", "one.npy", "--labels", "labels.txt", "--nbest", "2"]
    assert run(arguments) == 0
    whole = capsys.readouterr().out.splitlines()
    assert run([*arguments, "--stream", "--chunk-ms", "80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == whole
    rows = [json.loads(line) for line in lines[:-2]]
    assert len(rows) > 3
    assert all(round(row["time"] / 0.02) % 4 == 0 for row in rows[:-1])
    assert rows[-1]["alternatives"][0]["text"] == rows[-1]["text"]
