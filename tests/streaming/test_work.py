"""Work of several sessions side by side, and what it costs to open one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sottovoce.api import Model, load_model
from sottovoce.backends.base import Backend, EncoderMode, IncrementalWindow
from sottovoce.engine.executor import LocalExecutor
from sottovoce.streaming.alignatt import AlignAttDecoder, AlignAttRequest, LiveVocabulary
from sottovoce.streaming.audio_window import MelBuffer
from sottovoce.streaming.hypothesis import DecoderPrefix, StopRules
from sottovoce.streaming.session import Session, SessionOptions
from sottovoce.streaming.utterance import PromptContext
from sottovoce.streaming.words import WordBuilder
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import EncoderOutput
from tests.streaming.sessions import TOKENIZER
from tests.streaming.speech import backend, say

MODES = [EncoderMode(tail_s=1.0), EncoderMode(tail_s=2.0, stride=4), EncoderMode(tail_s=0.0)]


@pytest.fixture(scope="module")
def nano() -> Model:
    return load_model("nano", device="cpu", dtype="float32")


def grown(model: Backend, words: list[str], mode: EncoderMode) -> EncoderOutput:
    buffer = MelBuffer(model.dims.n_mels, 0, model.device)
    buffer.append(say(words))
    return model.encode_incremental([IncrementalWindow(buffer.frames(), mode)])[0].encoded


@pytest.mark.parametrize("first", MODES, ids=str)
@pytest.mark.parametrize("second", MODES, ids=str)
def test_windows_encoded_in_any_way_are_read_side_by_side_as_alone(
    nano: Model, first: EncoderMode, second: EncoderMode
) -> None:
    """Of a real network: what is behind a shorter window is hidden, and thin padding has its weight."""
    tokenizer, model = nano.tokenizer, nano.backend
    heard = [grown(model, ["time", "year", "people"], first), grown(model, ["und", "der"] * 3, second)]
    vocabulary = LiveVocabulary.of(tokenizer, model.dims.n_vocab, model.device)
    reader = AlignAttDecoder(model, tokenizer.eot, vocabulary)
    rules = StopRules(frame_threshold=0, max_tokens=8)
    requests = [
        AlignAttRequest(
            DecoderPrefix(tokenizer.with_language(code).sot_sequence_including_notimestamps, 0, 0), rules
        )
        for code in ("en", "de")
    ]
    alone = [reader.decode([one], [request])[0] for one, request in zip(heard, requests, strict=True)]
    for ours, theirs in zip(reader.decode(heard, requests), alone, strict=True):
        assert (ours.tokens, ours.frames, ours.stop_reason) == (
            theirs.tokens,
            theirs.frames,
            theirs.stop_reason,
        )
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        assert ours.no_speech_prob == pytest.approx(theirs.no_speech_prob, abs=1e-5)


def test_what_fails_in_the_engine_fails_in_the_steps_and_may_be_caught_there() -> None:
    class Broken(LocalExecutor):
        def execute(self, call: object) -> None:
            raise MemoryError

    def caught() -> Iterator[object]:
        try:
            yield object()
        except MemoryError:
            return "given up"
        return "done"

    def not_caught() -> Iterator[object]:
        yield object()

    assert Broken(backend()).run(caught()) == "given up"  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        Broken(backend()).run(not_caught())  # type: ignore[arg-type]


@pytest.mark.parametrize("switching", ["off", "restart", "parallel"])
def test_opening_a_session_makes_nothing_for_a_language(
    switching: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words, prompts and tokenizers of a language are made when it is first spoken."""
    made: list[str] = []

    def counting(owner: type, name: str) -> None:
        plain = getattr(owner, name)

        def counted(*given: object, **options: object) -> object:
            made.append(f"{owner.__name__}.{name}")
            return plain(*given, **options)

        monkeypatch.setattr(owner, name, counted)

    for owner, name in (
        (Tokenizer, "encode"),
        (Tokenizer, "with_task"),
        (PromptContext, "__init__"),
        (WordBuilder, "__init__"),
    ):
        counting(owner, name)
    Session(backend(), TOKENIZER, SessionOptions())  # what all sessions of a model share
    counts = []
    for languages in (("en", "de"), ()):
        made.clear()
        options = SessionOptions(languages, switching=switching)  # type: ignore[arg-type]
        live = Session(backend(), TOKENIZER, options)
        counts.append(sorted(made))
    assert len(live.languages) == 99
    assert counts[0] == counts[1]
    assert not [name for name in made if name.startswith(("PromptContext", "WordBuilder"))]
