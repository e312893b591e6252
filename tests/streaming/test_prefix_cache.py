"""What an update knows of its prefix from the one before: less is read, and the same comes out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sottovoce.api import Model
from sottovoce.audio.io import load_audio
from sottovoce.audio.mel import log_mel, window_features
from sottovoce.decoding.filters import LiveVocabulary
from sottovoce.models.backend import EncoderOutput
from sottovoce.runtime.calls import DecodeCall
from sottovoce.streaming.alignatt import (
    AlignAttDecoder,
    AlignAttHypothesis,
    AlignAttRequest,
    DecoderPrefix,
    PrefixCache,
    StopRules,
)
from sottovoce.streaming.options import StreamOptions
from sottovoce.types import Samples
from tests.runtime.reading import decoded
from tests.streaming import sessions

CLIPS = Path(__file__).parents[2] / "examples" / "clips"
RULES = StopRules(frame_threshold=0)


@pytest.fixture(scope="module")
def audio() -> Samples:
    return load_audio(str(CLIPS / "en.flac"))


def reader(model: Model, beam_size: int = 1) -> AlignAttDecoder:
    tokenizer = model.tokenizer.with_language("en")
    vocabulary = LiveVocabulary.of(tokenizer, model.backend.dims.n_vocab)
    return AlignAttDecoder(model.backend, tokenizer.eot, vocabulary, beam_size)


def window(model: Model, audio: Samples) -> EncoderOutput:
    return model.backend.encode(window_features([log_mel(audio)], 2 * (len(audio) // 320)))


def prefix_of(model: Model, committed: tuple[int, ...]) -> DecoderPrefix:
    sot = model.tokenizer.with_language("en").sot_sequence_including_notimestamps
    return DecoderPrefix((*sot, *committed), 0, len(committed))


def read(reader: AlignAttDecoder, heard: EncoderOutput, request: AlignAttRequest) -> AlignAttHypothesis:
    (reading,) = decoded(reader, [heard], [request])
    return reading


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("n_reread", [1, 3])
def test_on_the_same_audio_the_same_is_read_on(
    model: Model, audio: Samples, beam_size: int, n_reread: int
) -> None:
    ours, heard = reader(model, beam_size), window(model, audio)
    said = read(ours, heard, AlignAttRequest(prefix_of(model, ()), RULES)).tokens
    assert len(said) > 8
    prefix = prefix_of(model, said[:6])
    first = read(ours, heard, AlignAttRequest(prefix, RULES, n_recomputed=n_reread))
    known = first.prefix_cache
    assert known is not None
    assert known.tokens == prefix.tokens[: len(prefix.tokens) - n_reread]
    for _ in range(2):
        again = read(ours, heard, AlignAttRequest(prefix, RULES, prefix_cache=known, n_recomputed=n_reread))
        assert (again.tokens, again.frames, again.stop_reason) == (
            first.tokens,
            first.frames,
            first.stop_reason,
        )
        assert again.no_speech_prob == pytest.approx(first.no_speech_prob, abs=1e-6)
        assert again.logprobs == pytest.approx(first.logprobs, abs=1e-4)
    longer = prefix_of(model, said[:8])
    gone_on = read(ours, heard, AlignAttRequest(longer, RULES, prefix_cache=known, n_recomputed=n_reread))
    assert gone_on.tokens == read(ours, heard, AlignAttRequest(longer, RULES)).tokens
    assert gone_on.prefix_cache is not None
    assert gone_on.prefix_cache.tokens == longer.tokens[: len(longer.tokens) - n_reread]


def test_only_the_beginning_of_a_prefix_is_known(model: Model, audio: Samples) -> None:
    heard = window(model, audio)
    prefix = prefix_of(model, (400, 300, 200))
    known = read(reader(model), heard, AlignAttRequest(prefix, RULES, n_recomputed=1)).prefix_cache
    assert isinstance(known, PrefixCache)
    n_frames = heard.n_content_frames[0]
    assert known.applies_to(prefix.tokens, n_frames)
    assert not known.applies_to(prefix.tokens, n_frames - 1)
    assert not known.applies_to(known.tokens, n_frames)
    assert not known.applies_to((1, *prefix.tokens[1:]), n_frames)


class Spying(sessions.Reading):
    """An utterance read by hand; which of the requests knew something."""

    def __init__(self, model: Model, options: StreamOptions) -> None:
        super().__init__(options, model=model.backend, tokenizer=model.tokenizer)
        self.n_known: list[int] = []

    def update(self, piece: Samples, *, final: bool = False) -> None:
        self.append(piece)
        heard = self.encode()
        self.runtime.done.clear()
        self.read(heard, final=final)
        for call in self.runtime.done:
            assert isinstance(call, DecodeCall)
            request = call.given
            assert isinstance(request, AlignAttRequest)
            self.n_known.append(0 if request.prefix_cache is None else len(request.prefix_cache.tokens))


def test_an_utterance_is_read_anew_at_its_end_and_where_its_audio_is_cut(
    model: Model, audio: Samples
) -> None:
    spied = Spying(model, replace(sessions.ALIGNATT, recompute_tokens=2))
    n = len(audio) // 8
    pieces = [audio[at : at + n] for at in range(0, 8 * n, n)]
    for piece in pieces[:6]:
        spied.update(piece)
    assert spied.n_known[0] == 0
    assert spied.n_known[5] > 3, "more than the start of the transcript"
    spied.utterance.drop_before(0.3)
    spied.update(pieces[6])
    spied.update(pieces[7], final=True)
    assert spied.n_known[6:] == [0, 0]


def test_without_it_everything_is_read_anew(model: Model, audio: Samples) -> None:
    spied = Spying(model, replace(sessions.ALIGNATT, recompute_tokens=None))
    for at in range(0, 6 * 8000, 8000):
        spied.update(audio[at : at + 8000])
    assert spied.n_known == [0] * 6
