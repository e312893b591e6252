"""Grammars with a search: what they allow is what the notation says; grammars without an end are refused."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from sottovoce.api import Model, load_model
from sottovoce.audio.io import load_audio
from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.fusion import ShallowFusion
from sottovoce.lm.grammar import CACHE_SIZE, Grammar, GrammarModel, endless_rules, left_open
from sottovoce.options.decoding import DecodingOptions, FallbackOptions
from sottovoce.options.transcribe import TranscribeOptions
from sottovoce.types import SAMPLE_RATE

pytest.importorskip("llguidance", reason="llguidance is not installed")
LETTERS = [b" ", b"a", b"b", b"c", b"ab", b"\xc3", b"\xbc"]
CLIPS = Path(__file__).parents[2] / "examples" / "clips"


def encode(text: str) -> list[int]:
    letters = [bytes([byte]) for byte in text.encode()]
    return [LETTERS.index(letter) for letter in letters if letter in LETTERS]


def model_of(text: str, rule: str = "root", penalty: float | None = None) -> GrammarModel:
    return GrammarModel(Grammar(text, rule), LETTERS, encode, penalty=penalty)


def scored(model: GrammarModel, tokens: tuple[int, ...]) -> float:
    """What a whole utterance is given."""
    states, total = model.start(1), 0.0
    for token in tokens:
        every, _ = model.score(states)
        (score,), states = model.score(states, np.array([token]))
        assert every[0, token] == score
        total += score
    return float(total + model.finish(states)[0])


@pytest.mark.parametrize(
    ("grammar", "same"),
    [
        ('root ::= "ab" | "c"', "ab|c"),
        ('root ::= a "c"\na ::= "a" | "a" a', "a+c"),
        ('root ::= [a-b]* "c"?  # letters', "[ab]*c?"),
        ('root ::= ("a" "b")+ | [cü]', "(ab)+|c|ü"),
        ('root ::= "a" root "b" | "c"', "c|acb|aacbb"),
        ('root ::= "a root" | "ü"', "a root|ü"),
    ],
)
def test_what_is_allowed_is_what_the_grammar_says(grammar: str, same: str) -> None:
    wanted, n_wanted = re.compile(f" ?(?:{same})"), 0
    model = model_of(grammar)
    for length in (1, 2, 3, 4):
        for tokens in itertools.product(range(len(LETTERS)), repeat=length):
            said = b"".join(LETTERS[token] for token in tokens)
            is_wanted = wanted.fullmatch(said.decode("utf-8", "replace")) is not None
            n_wanted += is_wanted
            given = scored(model, tokens)
            if not is_wanted:
                assert given == -np.inf, said
            elif LETTERS.index(b"ab") not in tokens and (b"ab" not in said):
                assert given == 0, said  # where text is forced, one way of spelling it is
    assert n_wanted


def test_another_rule_may_be_the_utterance() -> None:
    text = 'root ::= "a"\nother ::= "b" root'
    assert scored(model_of(text, "other"), (2, 1)) == 0
    assert scored(model_of(text, "other"), (1,)) == -np.inf


def test_a_penalty_is_paid_once_and_then_nothing_is_asked() -> None:
    model = model_of('root ::= "aa"', penalty=3.0)
    assert scored(model, (1, 1)) == 0
    assert scored(model, (1, 2, 3, 3)) == -3.0
    assert scored(model, (1,)) == -3.0
    _, broken = model.score(model.start(1), np.array([2]))
    assert not model.score(broken)[0].any()


def test_silence_needs_no_grammar() -> None:
    model = model_of('root ::= "a"')
    assert model.finish(model.start(1)).tolist() == [0.0]


def test_states_stay_valid_while_other_searches_begin_and_go_on() -> None:
    """Windows that share a grammar keep more prefixes than the cache, and begin after one another."""
    fusion = ShallowFusion([(model_of('root ::= "a"? "b"? [a-c]* "c"'), 1.0)])
    early = fusion.start(3)
    for tokens in ((1, 1, 7), (2, 2, 2)):  # 7: no text
        _, early = fusion.score(early, np.array(tokens))
    rows, ends = fusion.score(early)[0], fusion.finish(early)
    n_rows, n_steps = 64, 2 * CACHE_SIZE // 64
    late = [fusion.start(n_rows)]
    picked = np.random.default_rng(0).integers(1, 4, (n_steps, n_rows))
    for tokens in picked:
        late.append(fusion.score(late[-1], tokens)[1])
    fusion.start(1)
    assert np.array_equal(fusion.score(early)[0], rows)
    assert np.array_equal(fusion.finish(early), ends)
    assert np.array_equal(fusion.score(early[::-1])[0], rows[::-1])
    for step in (1, n_steps // 2, n_steps):
        ended = picked[step - 1] == 3
        assert np.array_equal(fusion.finish(late[step]) == 0, ended)


@pytest.mark.long
def test_recordings_that_share_a_grammar_are_read_as_each_alone(
    nano: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sottovoce.lm.grammar.CACHE_SIZE", 8)
    grammar = Grammar('root ::= [A-Za-z ,.]+ "."')
    speech = load_audio(CLIPS / "en.flac")
    clips = [speech[: int(seconds * SAMPLE_RATE)] for seconds in (1.5, 3.0, 2.0)]
    options = TranscribeOptions(decoding=DecodingOptions(beam_size=2, language="en"))
    fusion = nano.fusion(grammar=grammar)
    alone = [nano.transcribe(clip, options=options, fusion=fusion).text for clip in clips]
    together = nano.transcribe_files(clips, batch_size=2, options=options, fusion=fusion)
    assert [transcript.text for _, transcript in together] == alone  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "got none"),
        ('other ::= "a"', "a rule 'root'"),
        ('root ::= "a', "line 1: expected an end"),
        ("root ::= ((", "GBNF"),
        ("root ::= nowhere", "nowhere"),
        ("root ::= root", "allows nothing"),
    ],
)
def test_what_is_no_grammar_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(LanguageModelError, match=said) as caught:
        model_of(text)
    assert "\n" not in str(caught.value)


def test_files_and_penalties_are_checked(tmp_path: Path) -> None:
    with pytest.raises(LanguageModelError, match="expected a grammar"):
        Grammar.read(tmp_path / "nowhere.gbnf")
    with pytest.raises(OptionError, match="penalty"):
        model_of('root ::= "a"', penalty=-1.0)


@pytest.fixture(scope="module")
def nano() -> Model:
    return load_model("nano", device="cpu", dtype="float32")


def test_speech_comes_out_in_the_form_that_is_asked_for(nano: Model) -> None:
    said = 'root ::= "The garden is " ("quiet" | "loud") " in the " ("morning" | "evening") "."'
    for text, wanted in (
        (said, "The garden is quiet in the morning."),
        (
            'root ::= ("the house" | "the garden") " is" .*'.replace(".*", '" " [a-z ]+'),
            r"the garden is [a-z ]+",
        ),
        ('root ::= "evening" | "morning"', "(evening|morning)"),
    ):
        fusion = nano.fusion(grammar=Grammar(text))
        result = nano.transcribe(CLIPS / "en.flac", language="en", beam_size=5, fusion=fusion).text
        assert re.fullmatch(wanted, result), result


@pytest.mark.quick(1)
@pytest.mark.parametrize("clip", ["en", "de", "es"])
def test_speech_that_is_nothing_of_the_grammar_has_no_way_around_it(nano: Model, clip: str) -> None:
    """Tokens of languages, tasks and the like are no text, and were written between its halves."""
    fusion = nano.fusion(grammar=Grammar('root ::= "Quixotic zebras" | "Xylophone"'))
    result = nano.transcribe(
        CLIPS / f"{clip}.flac", language=clip, beam_size=5, fusion=fusion, word_timestamps=False
    ).collect()
    assert result.text in ("", "Quixotic zebras", "Xylophone")
    tokens = [token for segment in result.segments for token in segment.tokens]
    assert not [token for token in tokens if nano.tokenizer.eot < token < nano.tokenizer.timestamp_begin]


def test_a_light_penalty_changes_nothing_and_a_heavy_one_does(nano: Model) -> None:
    def text(penalty: float) -> str:
        fusion = nano.fusion(
            grammar=Grammar('root ::= "The morning is quiet in the garden."'), grammar_penalty=penalty
        )
        return nano.transcribe(CLIPS / "en.flac", language="en", beam_size=5, fusion=fusion).text

    assert text(0.0) == nano.transcribe(CLIPS / "en.flac", language="en", beam_size=5).text
    assert text(100.0) == "The morning is quiet in the garden."


def test_a_grammar_that_asks_for_a_suppressed_sign_ends_where_it_cannot_go_on(nano: Model) -> None:
    fusion = nano.fusion(grammar=Grammar('root ::= "The garden; quiet"'))
    options = TranscribeOptions(fallback=FallbackOptions(temperatures=(0.0, 0.5)))
    result = nano.transcribe(CLIPS / "en.flac", language="en", beam_size=2, options=options, fusion=fusion)
    assert "The garden; quiet".startswith(result.text.strip())
    allowed = TranscribeOptions(decoding=DecodingOptions(suppress_tokens=()))
    result = nano.transcribe(CLIPS / "en.flac", language="en", beam_size=2, options=allowed, fusion=fusion)
    assert result.text.strip() == "The garden; quiet"


@pytest.mark.parametrize(
    ("text", "endless"),
    [
        ('root ::= "yes" | "no"', set()),
        ('root ::= "and " dead\ndead ::= "x" dead', {"root", "dead"}),
        ('root ::= "and " list\nlist ::= "x" | "x, " list', set()),
        ('root ::= "a" dead?\ndead ::= "x" dead', {"dead"}),
        ('root ::= "a" dead*\ndead ::= "x" dead', {"dead"}),
        ('root ::= "a" dead+\ndead ::= "x" dead', {"root", "dead"}),
        ('root ::= "a" dead{0,3}\ndead ::= "x" dead', {"dead"}),
        ('root ::= "a" dead{1,3}\ndead ::= "x" dead', {"root", "dead"}),
        ('root ::= ("a" | dead) [0-9]+ .\ndead ::= (dead "|")', {"dead"}),
        ('root ::= "dead" # | dead\ndead ::= dead', {"dead"}),
        ('root ::= one | two\none ::= two "x"\ntwo ::= one "y"', {"root", "one", "two"}),
        ('root ::= "a" nowhere', set()),
        ("root ::=", set()),
        ('root ::= "a" |\n  "\\"b" [\\]x"]\nnext ::= root', set()),
    ],
)
def test_rules_that_no_text_ends_in(text: str, endless: set[str]) -> None:
    assert endless_rules(text) == endless


def test_a_grammar_without_end_is_refused() -> None:
    with pytest.raises(LanguageModelError, match="expected a rule 'root' with texts"):
        Grammar('root ::= "and " dead\ndead ::= "x" dead')
    assert Grammar('root ::= "yes"\ndead ::= "x" dead').rule == "root"
    with pytest.raises(LanguageModelError, match="'dead'"):
        Grammar('root ::= "yes"\ndead ::= "x" dead', rule="dead")


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('root ::= "a', (1, '"')),
        ('# "\nroot ::= "a" [a-z\n', (2, "[")),
        ('root ::= "a\\" b', (1, '"')),
        ('root ::= "[" [\\]"] # "', None),
        ('root ::= "a" |\n  "b"', None),
    ],
)
def test_what_is_left_open_is_found_in_the_text_as_it_is_written(
    text: str, result: tuple[int, str] | None
) -> None:
    assert left_open(text) == result
    if result:
        with pytest.raises(LanguageModelError, match=f"grammar, line {result[0]}: expected an end"):
            Grammar(text)
