"""`/v2/listen`: turns as Deepgram's own client hears them, and the rules that its API promises of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sottovoce.server.apis import flux
from sottovoce.server.apis.flux import (
    LONGEST_HANGOVER_S,
    FluxParams,
    FluxTurns,
    TurnThresholds,
    confidence_of,
    configured_flux,
    flux_params,
    pause_of,
)
from sottovoce.server.errors import ApiError
from sottovoce.server.models import ModelRegistry
from sottovoce.server.settings import ModelSettings
from sottovoce.streaming.options import Finals
from sottovoce.types import Event, Final, Partial, SpeechEnded, SpeechStarted, Unstable, Word
from tests.server.conversation import Message, exchanged, refusal
from tests.server.servers import CLIPS, SECOND, ServerThread
from tests.server.test_listen import CLOSE, heard_by_client, pcm_of

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
"""Deepgram's client asks websockets for what is old there."""
ADDRESS = "/v2/listen?model=flux-general-en&encoding=linear16&sample_rate=16000"


def check(messages: list[dict[str, Any]], *, eager: bool) -> None:
    """Hold messages against what Deepgram's page on the state of turns promises."""
    assert [message["sequence_id"] for message in messages] == list(range(len(messages)))
    turns = [message for message in messages if message["type"] == "TurnInfo"]
    allowed = {
        "idle": {"Update": "idle", "StartOfTurn": "on"},
        "on": {"Update": "on", "EagerEndOfTurn": "waiting", "EndOfTurn": "idle"},
        "waiting": {"Update": "waiting", "TurnResumed": "on", "EndOfTurn": "idle"},
    }
    state, index, eager_text = "idle", 0, ""
    for turn in turns:
        event = turn["event"]
        assert event in allowed[state], (state, turn)
        assert turn["turn_index"] == index
        assert ("trigger" in turn) == (event == "EndOfTurn")
        if state == "idle" and event == "Update":
            assert turn["transcript"] == ""
        if event == "EagerEndOfTurn":
            eager_text = turn["transcript"]
            assert eager
            assert eager_text
        if state == "waiting" and event in ("Update", "EndOfTurn"):
            assert turn["transcript"] == eager_text
        index += event == "EndOfTurn"
        state = allowed[state][event]
        assert 0.0 <= turn["end_of_turn_confidence"] <= 1.0
        assert turn["audio_window_start"] <= turn["audio_window_end"]
        assert [word["word"] for word in turn["words"]] == turn["transcript"].split()
    for item, after in pairwise(turns):
        assert item["audio_window_end"] <= after["audio_window_end"]


def turns_of_client(server: ServerThread, audio: bytes, **options: object) -> list[dict[str, Any]]:
    """What Deepgram's client is told, held against the rules of turns."""
    messages = heard_by_client(server, audio, version="v2", eager_eot_threshold=0.5, **options)
    result = [message.model_dump(exclude_none=True) for message in messages]
    check(result, eager=True)
    return result


def test_their_client_hears_turns(server: ServerThread) -> None:
    english = pcm_of(CLIPS / "en.flac")
    audio = SECOND + english + 2 * SECOND + english + 2 * SECOND
    result = turns_of_client(server, audio, model="flux-general-en", eot_threshold=0.8)
    assert result[0]["type"] == "Connected"
    ends = [item for item in result if item.get("event") == "EndOfTurn"]
    assert len(ends) == 2
    assert all("garden" in item["transcript"].lower() for item in ends)
    assert {item["trigger"] for item in ends} == {"model"}
    assert all(item["end_of_turn_confidence"] >= 0.8 for item in ends)
    assert ends[0]["words"][0]["start"] >= 0.9
    starts = [item for item in result if item.get("event") == "StartOfTurn"]
    assert all(item["transcript"] for item in starts)


def test_a_short_pause_is_an_eager_end_and_resumed(server: ServerThread) -> None:
    english = pcm_of(CLIPS / "en.flac")
    audio = SECOND + english + SECOND + english + 3 * SECOND
    result = turns_of_client(server, audio, model="flux-general-multi", eot_threshold=0.99)
    events = [item["event"] for item in result if item["type"] == "TurnInfo" and item["event"] != "Update"]
    assert events[:4] == ["StartOfTurn", "EagerEndOfTurn", "TurnResumed", "EagerEndOfTurn"]
    assert events.count("EndOfTurn") == 1
    (end,) = [item for item in result if item.get("event") == "EndOfTurn"]
    assert end["transcript"].lower().count("garden") == 2
    assert end["languages"] == ["en"]


def word(text: str, start: float, end: float) -> Word:
    return Word(f" {text}", start, end, 0.9, "en")


def partial(*words: Word) -> Partial:
    text = "".join(item.word for item in words)
    return Partial(words[0].start, words[-1].end, text, "en", words, words[-1].end)


def final(*words: Word) -> Final:
    text = "".join(item.word for item in words).strip()
    return Final(words[0].start, words[-1].end, text, "en", words, words[-1].end)


class Talk:
    """Turns of made-up speech: words and pauses, as a session with that hangover tells of them."""

    def __init__(self, thresholds: TurnThresholds, finals: Finals = "committed") -> None:
        self.thresholds, self.finals = thresholds, finals
        self.turns = FluxTurns(FluxParams(thresholds=thresholds, finals=finals), "req", is_multi=False)
        self.late: list[Event] = []
        self.told: list[dict[str, Any]] = []
        self.now_s = 0.0
        self._said: list[Word] = []
        self._is_speech = False

    def pass_time(self, seconds: float, *events: Event) -> None:
        self.now_s += seconds
        events, self.late = (*self.late, *events), []
        self.told += list(self.turns.render(events, self.now_s))

    def speak(self, *texts: str) -> None:
        if not self._is_speech:
            self.pass_time(0.1, SpeechStarted(self.now_s, self.now_s + 0.1))
        self._is_speech = True
        for text in texts:
            self.pass_time(
                0.2, Unstable(self.now_s, self.now_s + 0.2, f" {text[:1]}", "en", self.now_s + 0.2)
            )
            self._said.append(word(text, self.now_s, self.now_s + 0.2))
            self.pass_time(0.2, partial(self._said[-1]))

    def rest(self, seconds: float) -> None:
        hangover_s, quiet_s = self.thresholds.hangover_s, self.now_s
        end_s = quiet_s + seconds
        if seconds >= hangover_s:
            at = quiet_s + hangover_s
            ended = SpeechEnded(quiet_s, at)
            words = self._said
            if self.finals == "read":  # the second pass takes its time, and has another text
                words = [replace(word, word=word.word.upper()) for word in words]
            finals = [final(*words)] if words else []
            self.pass_time(hangover_s, *(finals if self.finals == "committed" else []), ended)
            self.late += finals if self.finals == "read" else []
            self._said, self._is_speech = [], False
        while self.now_s < end_s - 1e-9:
            self.pass_time(min(0.1, end_s - self.now_s))

    @property
    def events(self) -> list[str]:
        return [item["event"] for item in self.told if item["event"] != "Update"]

    @property
    def ends(self) -> list[dict[str, Any]]:
        return [item for item in self.told if item["event"] == "EndOfTurn"]


def test_a_pause_that_is_long_enough_ends_a_turn() -> None:
    talk = Talk(TurnThresholds(certain=0.7))
    talk.speak("hello", "there")
    talk.rest(pause_of(0.7) + 0.05)
    check(talk.told, eager=False)
    assert talk.events == ["StartOfTurn", "EndOfTurn"]
    end = talk.told[-1]
    assert (end["transcript"], end["trigger"]) == ("hello there", "model")
    assert end["end_of_turn_confidence"] >= 0.7


def test_without_an_eager_threshold_nothing_is_told_before_the_end() -> None:
    talk = Talk(TurnThresholds(certain=0.95))
    for text in ("one", "two"):
        talk.speak(text)
        talk.rest(LONGEST_HANGOVER_S + 0.05)
    talk.rest(2.0)
    check(talk.told, eager=False)
    assert talk.events == ["StartOfTurn", "EndOfTurn"]
    assert talk.told[-1]["transcript"] in ("one two", "")
    (end,) = talk.ends
    assert end["transcript"] == "one two"


def test_at_1_only_the_timeout_and_the_client_end_a_turn() -> None:
    talk = Talk(TurnThresholds(certain=1.0, timeout_ms=3_000.0))
    talk.speak("one")
    talk.rest(2.9)
    assert talk.events == ["StartOfTurn"]
    talk.rest(0.0)
    talk.pass_time(0.2)
    (end,) = talk.ends
    assert end["trigger"] == "timeout"
    talk.speak("two")
    talk.told += list(talk.turns.force([], talk.now_s))
    assert talk.told[-1]["trigger"] == "manual"
    assert talk.told[-1]["transcript"] == "two"
    assert list(talk.turns.force([], talk.now_s)) == [], "no turn, nothing to end"
    check(talk.told, eager=False)


def test_a_turn_has_an_end_whatever_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flux, "MOST_WORDS", 10)
    talk = Talk(TurnThresholds(certain=1.0, timeout_ms=60_000.0))
    for i in range(30):
        talk.speak(f"a{i}", f"b{i}")
        talk.pass_time(0.1, final(*talk._said))
        talk._said = []
    check(talk.told, eager=False)
    assert {end["trigger"] for end in talk.ends} == {"length"}
    said = " ".join(end["transcript"] for end in talk.ends).split()
    assert said == [f"{a}{i}" for i in range(30) for a in "ab"]
    assert max(len(end["words"]) for end in talk.told) <= 12


STEPS = st.lists(
    st.tuples(st.lists(st.sampled_from(["a", "b", "c"]), max_size=3), st.floats(0.0, 4.0)), max_size=6
)


@given(
    steps=STEPS,
    eager=st.none() | st.floats(0.3, 0.9),
    certain=st.floats(0.5, 1.0),
    timeout_ms=st.floats(500.0, 5_000.0),
    finals=st.sampled_from(get_args(Finals)),
)
def test_whatever_is_said_the_rules_of_turns_hold_and_no_word_is_lost(
    steps: list[tuple[list[str], float]],
    eager: float | None,
    certain: float,
    timeout_ms: float,
    finals: Finals,
) -> None:
    eager = None if eager is None else min(eager, certain)
    talk = Talk(TurnThresholds(eager, certain, timeout_ms), finals)
    said = []
    for texts, pause_s in steps:
        talk.speak(*texts)
        said += texts
        talk.rest(pause_s)
    talk.told += list(talk.turns.force(talk.late, talk.now_s))
    check(talk.told, eager=eager is not None)
    assert " ".join(end["transcript"] for end in talk.ends).lower().split() == said
    if finals == "read":
        assert all(end["transcript"].isupper() for end in talk.ends if end["trigger"] != "manual")


def test_a_threshold_is_a_pause_and_back() -> None:
    for confidence in (0.3, 0.5, 0.7, 0.9, 0.99):
        assert confidence_of(pause_of(confidence)) == pytest.approx(confidence)
    assert pause_of(1.0) == math.inf
    pauses = [pause_of(confidence) for confidence in np.linspace(0.3, 0.99, 20)]
    assert pauses == sorted(pauses)


def test_messages_of_the_client_are_answered(fake_server: ServerThread) -> None:
    thresholds = {"eot_threshold": 0.9, "eager_eot_threshold": 0.4, "eot_timeout_ms": 4000}
    configure: Message = {"type": "Configure", "thresholds": thresholds, "keyterms": ["Anna"]}
    wrong: Message = {"type": "Configure", "thresholds": {"eot_threshold": 0.1}}
    later: Message = {"type": "Configure", "thresholds": {"eot_threshold": 0.6}}
    events, _ = exchanged(fake_server, ADDRESS, {"type": "KeepAlive"}, configure, wrong, later, SECOND, CLOSE)
    check(events, eager=True)
    kinds = [message["type"] for message in events]
    assert kinds[0] == "Connected"
    first, second = [message for message in events if message["type"] == "ConfigureSuccess"]
    assert (first["thresholds"], first["keyterms"]) == (thresholds, ["Anna"])
    assert second["thresholds"] == {**thresholds, "eot_threshold": 0.6}
    (failure,) = [message for message in events if message["type"] == "ConfigureFailure"]
    assert "eot_threshold" in failure["description"]
    last = events[-1]
    assert (last["event"], last["trigger"], last["transcript"]) == ("EndOfTurn", "manual", "word")


def test_force_ends_a_turn(fake_server: ServerThread) -> None:
    force: Message = {"type": "ForceEndTurn"}
    events, _ = exchanged(fake_server, ADDRESS, force, SECOND, force, force, SECOND, CLOSE)
    check(events, eager=False)
    ends = [message for message in events if message.get("event") == "EndOfTurn"]
    result = [(end["transcript"], end["trigger"], end["turn_index"]) for end in ends]
    assert result == [("word", "manual", 0), ("word", "manual", 1)]


@pytest.mark.parametrize("message", ["no JSON", "{}", '{"type": "Finalize"}', "[]"])
def test_a_message_that_is_none_ends_the_stream_with_an_error(
    fake_server: ServerThread, message: str
) -> None:
    events, _ = exchanged(fake_server, ADDRESS, message)
    assert (events[-1]["type"], events[-1]["sequence_id"]) == ("Error", 1)
    assert events[-1]["code"].isupper()


@pytest.mark.parametrize(
    ("query", "reported"),
    [
        ("", "model"),
        ("model=other-model", "other-model"),
        ("model=flux-general-en&encoding=linear32", "encoding"),
        ("model=flux-general-en&encoding=linear16&eot_threshold=0.4", "eot_threshold"),
        ("model=flux-general-en&encoding=linear16&eot_threshold=0.5&eager_eot_threshold=0.6", "eager"),
        ("model=flux-general-en&encoding=linear16&eot_timeout_ms=100", "eot_timeout_ms"),
        ("model=flux-general-en&encoding=linear16&language_hint=de", "language_hint"),
        ("model=flux-general-en&encoding=linear16&redact=pci", "redact"),
    ],
)
def test_what_cannot_be_refuses_the_handshake(fake_server: ServerThread, query: str, reported: str) -> None:
    answer = refusal(fake_server, f"/v2/listen?{query}")
    assert answer.status_code in (400, 404)
    assert reported in json.loads(answer.body)["err_msg"]


def read(query: str) -> FluxParams:
    pairs = [cast("tuple[str, str]", tuple(part.split("="))) for part in query.split("&")]
    return flux_params(pairs, ModelRegistry(ModelSettings("nano"), cast(Any, None), cast(Any, None)))


def test_models_are_languages() -> None:
    assert read("model=flux-general-en&encoding=linear16").languages == ("en",)
    several = read("model=flux-general-multi&encoding=linear16&language_hint=en&language_hint=de-DE")
    assert (several.languages, several.has_hints) == (("en", "de"), True)
    assert read("model=flux-general-multi&encoding=linear16").languages == ()
    assert read("model=nano&encoding=linear16").model == "nano"
    assert read("model=flux-general-en").raw is None, "a container says its own"


def test_a_configure_changes_what_it_names() -> None:
    params = read("model=flux-general-multi&encoding=linear16&keyterm=Anna&eot_threshold=0.8")
    changed = configured_flux(params, {"type": "Configure", "language_hints": ["de"]})
    assert changed == replace(params, languages=("de",), has_hints=True)
    more = {"other": 1, "thresholds": {"other": 1}}
    assert configured_flux(params, {"type": "Configure", **more}).ignored == ("other", "thresholds.other")
    for wrong in ({"thresholds": 1}, {"keyterms": 1}, {"numerals": True}):
        with pytest.raises(ApiError):
            configured_flux(params, {"type": "Configure", **wrong})
