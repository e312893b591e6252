"""The probe sees its window alone, shares keys and values, and reports what lies outside the allow-list."""

from __future__ import annotations

import numpy as np
import pytest

from sottovoce.errors import OptionError
from sottovoce.language.probe import LanguageProbe, ProbeOptions
from sottovoce.models.backend import EncoderOutput
from sottovoce.text.tokenizer import Tokenizer
from sottovoce.types import Features
from tests.runtime.fake import FAKE_DIMS, FakeBackend, Script, SpokenLanguage, by_row

TOKENIZER = Tokenizer.for_model(51865)

BOTH = Script(languages=(SpokenLanguage("en", 0, 50), SpokenLanguage("de", 50, 100)))
SILENT = Script(languages=(SpokenLanguage("en", 0, 100),))


def encoded(backend: FakeBackend) -> EncoderOutput:
    return backend.encode(Features(np.zeros((1, FAKE_DIMS.n_mels, 240), np.float32), (240,)))


def test_each_window_is_heard_by_itself_and_all_in_one_step() -> None:
    backend = FakeBackend(BOTH)
    probe = LanguageProbe(backend, TOKENIZER, ("de", "en"))
    probed = probe.detect_spans(encoded(backend), [(0, 50), (50, 100), (25, 75), (40, 60)])
    assert [int(span.probabilities.argmax()) for span in probed[:2]] == [1, 0]
    for span in probed[2:]:
        assert span.probabilities.tolist() == pytest.approx([0.5, 0.5])


def test_mass_outside_the_allow_list_is_reported() -> None:
    backend = FakeBackend(BOTH)
    probed = LanguageProbe(backend, TOKENIZER, ("de", "fr")).detect_spans(
        encoded(backend), [(0, 100), (50, 100), (100, 120)]
    )
    assert probed[0].allowed_mass == pytest.approx(0.5, abs=1e-3)
    assert probed[1].allowed_mass == pytest.approx(1.0, abs=1e-3)
    assert probed[2].no_speech > 0.99
    assert all(span.probabilities.sum() == pytest.approx(1.0) for span in probed)


def test_the_probe_computes_no_keys_of_its_own() -> None:
    backend = FakeBackend(BOTH)
    states = encoded(backend)
    backend.rows().admit(states)
    shared = states.cross_kv
    LanguageProbe(backend, TOKENIZER, ("de", "en")).detect_spans(states, [(0, 50)])
    assert states.cross_kv is shared


def test_stretches_are_heard_each_by_itself_in_one_batch() -> None:
    english, german = (Script(languages=(SpokenLanguage(code, 0, 400),)) for code in ("en", "de"))
    backend = FakeBackend(by_row(english, german))
    probed = LanguageProbe(backend, TOKENIZER, ("de", "en")).detect(
        [np.zeros((FAKE_DIMS.n_mels, 100), np.float32), np.zeros((FAKE_DIMS.n_mels, 41), np.float32)]
    )
    assert [int(span.probabilities.argmax()) for span in probed] == [1, 0]
    assert backend.n_encoded == 3, "two stretches, and silence once"
    assert LanguageProbe(backend, TOKENIZER, ("de", "en")).detect([]) == []


def test_the_bias_of_silence_counts_against_a_language() -> None:
    backend = FakeBackend(lambda mel, _: SILENT if float(mel.std()) == 0.0 else BOTH)
    noise = np.random.default_rng(0).standard_normal((FAKE_DIMS.n_mels, 200), np.float32)
    (probed,) = LanguageProbe(backend, TOKENIZER, ("de", "en")).detect([noise])
    assert probed.probabilities[0] > 0.9, "silence is heard as English, so German is likelier of the two"
    assert probed.no_speech < 0.01


def test_wrong_use_is_refused() -> None:
    backend = FakeBackend(BOTH)
    probe = LanguageProbe(backend, TOKENIZER, ("de", "en"))
    assert probe.detect_spans(encoded(backend), []) == []
    with pytest.raises(OptionError, match=r"\[100, 100\)"):
        probe.detect_spans(encoded(backend), [(100, 100)])
    with pytest.raises(OptionError, match="'xx'"):
        LanguageProbe(backend, TOKENIZER, ("xx",))
    with pytest.raises(OptionError, match="English-only"):
        LanguageProbe(backend, Tokenizer.for_model(51864), ("en",))


def test_a_stretch_holds_the_whole_opening_and_then_the_newest_part() -> None:
    second = 16_000
    plain, opening = ProbeOptions(opening_s=0.0), ProbeOptions(opening_s=5.0)
    assert [plain.start(second, end * second, opening=True) // second for end in (2, 4, 5, 6)] == [1, 1, 2, 3]
    assert [opening.start(second, end * second, opening=True) // second for end in (2, 6, 7)] == [1, 1, 4]
    assert opening.start(second, 6 * second, opening=False) == 3 * second, "a change was found"
