"""An option is declared once: flag, field and form set the same value, for files and live."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import pytest

from sottovoce.cli.invocation import Invocation
from sottovoce.cli.options import LIBRARY, SectionedCommand, means_file
from sottovoce.cli.stream import stream
from sottovoce.cli.transcribe import EXCLUSIVE, transcribe, transcribe_options
from sottovoce.errors import OptionError
from sottovoce.options.decoding import (
    WINDOW_VAD,
    DecodingOptions,
    FallbackOptions,
    VadOptions,
    VadStreamOptions,
)
from sottovoce.options.schema import ApiField, Option, changed, check_options, from_values, options_of
from sottovoce.options.transcribe import TranscribeOptions, WriterOptions
from sottovoce.server.api import document
from sottovoce.server.apis.sottovoce_live import SessionRequest, with_changes
from sottovoce.server.apis.whisper_servers import inference_request
from sottovoce.server.app import APIS
from sottovoce.server.errors import ApiError
from sottovoce.server.fields import FORM, LIVE, Fields, fields_of, read_field, read_form, schema_of
from sottovoce.streaming.options import LiveOptions, StreamOptions
from sottovoce.text.filters import Replacements

CONTEXT: dict[str, Any] = {"obj": Invocation(), "help_option_names": ["-h", "--help"]}
"""As the whole command line has it: click keeps the names of the help option once they were looked at."""
BESIDE = {
    "hallucination_silence_threshold": ["-w"],
    "max_line_count": ["-w", "--max-line-width", "40"],
    "max_line_width": ["-w"],
    "max_words_per_line": ["-w"],
    "reading_speed": ["-w"],
    "highlight_words": ["-w"],
    "speaker_names": ["--speakers", "auto"],
    "min_speakers": ["--speakers", "auto"],
    "max_speakers": ["--speakers", "auto"],
    "speaker_engine": ["--speakers", "auto"],
    "speaker_voices": ["--speakers", "auto"],
}
"""What an option needs beside it."""
VALUES = {
    "temperature": ("0,0.4", (0.0, 0.4)),
    "suppress_tokens": ("-1,50", (-1, 50)),
    "clip_timestamps": ("4,0:09.5", (4.0, 9.5)),
    "speaker_names": ("Ann, Bob", ("Ann", "Bob")),
    "speakers": ("3", None),
    "audio_filter": ("highpass=f=100", "highpass=f=100"),
    "input_format": ("mulaw", "mulaw"),
    "duration": ("0:10", 10.0),
    "offset": ("1:00", 60.0),
    "replacements": (str(Path(__file__).with_name("replacements.txt")), Replacements((("ada", "Ada"),))),
    "mask_profanity": (str(Path(__file__).with_name("replacements.txt")), ("ada => Ada",)),
    "redact": ("emails", ("emails",)),
    "only_languages": ("de, fr", ("de", "fr")),
    "except_languages": ("en", ("en",)),
    "vad_threshold": ("0.6", 0.6),
    "vad_neg_threshold": ("0.2", 0.2),
}
"""What is typed, and what the field is then, where `sample` does not say it."""


def sample(option: Option) -> tuple[list[str], Any]:
    """A value other than the default: as words of the command line, and as the field has it."""
    name = str(option.flags)
    if option.key in VALUES:
        text, value = VALUES[option.key]
        return [name, text], value
    if option.key == "mode":
        return [name], "vad"
    if option.kind == "flag":
        return [name], not option.default
    if option.kind == "choice":
        return [name, option.choices[-1]], option.choices[-1]
    if option.kind == "integer":
        number = int(option.least or 0) + 7
        return [name, f"{number}"], number
    if option.kind == "number":
        share = 0.25 if option.most is not None else 20.0
        return [name, f"{share}"], share
    return [name, "x"], "x"


def call(*words: str) -> dict[str, Any]:
    """The values of a call of `transcribe` by the names of its parameters."""
    context = transcribe.make_context("transcribe", ["x.wav", *words], **CONTEXT)
    return {name: raw for name, raw in context.params.items() if name != "files"}


def owners(given: dict[str, Any]) -> list[Any]:
    """The options that a call makes."""
    options = transcribe_options(given)
    return [
        options,
        options.decoding,
        options.fallback,
        options.vad,
        options.speakers,
        from_values(WriterOptions, given),
    ]


@pytest.mark.parametrize("option", LIBRARY, ids=lambda option: option.key)
def test_a_flag_sets_its_field_as_python_does(option: Option) -> None:
    words, value = sample(option)
    if option.key == "read_again":
        words = ["--no-read-again"]
    given = call(*BESIDE.get(option.key, []), *words)
    if option.key == "task":
        assert given["task"] == value
        return
    (owner,) = (chosen for chosen in owners(given) if type(chosen).__name__ == option.owner)
    if option.key == "speakers":
        assert owner.speakers.n_speakers == 3
        return
    assert getattr(owner, option.field) == value
    assert replace(owner, **{option.field: value}) == owner


FORM_VALUES = {
    "beam_size": ("3", 3),
    "temperature": ("0.4", (0.4,)),
    "task": ("true", "translate"),
    "mode": ("true", "vad"),
    "channels": ("true", "energy"),
    "suppress_tokens": ("false", (50_258,)),
    "audio_ctx": ("500", 500),
    "max_context": ("20", 20),
    "offset": ("1500", 1.5),
    "duration": ("1500", 1.5),
    "word_threshold": ("0.25", 0.25),
    "initial_prompt": ("Anna", "Anna"),
    "carry_initial_prompt": ("true", True),
    "tinydiarize": ("true", True),
    "vad_threshold": ("0.6", 0.6),
    "input_format": ("mulaw", "mulaw"),
}
NAMED = [option for option in FORM if option.owner and "whisper_cpp" in option.apis]


@pytest.mark.parametrize("option", NAMED, ids=lambda option: option.key)
def test_a_field_of_a_form_sets_the_same(option: Option) -> None:
    names = option.apis["whisper_cpp"].names.split()
    text, value = FORM_VALUES.get(option.key, ("1", 1))
    for name in names:
        fields = [(name, text), ("vad", "true"), ("prompt", "Anna"), ("response_format", "verbose_json")]
        request = inference_request(Fields({**dict(fields), name: text}.items()), "model")
        options = request.options
        all_options: list[Any] = [options, options.decoding, options.fallback, options.vad]
        if option.owner == "WriterOptions":
            assert read_form(Fields([(name, text)]), "whisper_cpp")[option.key] == value
            continue
        (owner,) = (chosen for chosen in all_options if type(chosen).__name__ == option.owner)
        assert getattr(owner, option.field) == value


@dataclass(frozen=True)
class WithAnother(DecodingOptions):
    """The options of a window with one more, declared once."""

    loudness: float = Option(
        "How loud words are written.",
        group="Search",
        least=0.0,
        most=2.0,
        whisper_cpp=ApiField("loudness_thold", most=1.0),
    ).as_field(0.5)

    def __post_init__(self) -> None:
        check_options(self)


ANOTHER = options_of(WithAnother)[-1]


def test_a_new_option_is_a_flag_a_field_and_part_of_forms_by_its_declaration(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = SectionedCommand("try", sections={"Search": [ANOTHER]})
    by_flag = from_values(WithAnother, command.make_context("try", ["--loudness", "0.75"]).params)
    form = read_form(Fields([("loudness_thold", "0.75")]), "whisper_cpp", [ANOTHER])
    assert WithAnother(loudness=0.75) == by_flag == from_values(WithAnother, form)
    assert from_values(WithAnother, command.make_context("try", []).params).loudness == 0.5
    shown = command.get_help(click.Context(command))
    assert "--loudness NUMBER" in shown
    assert "How loud words are written." in shown


def test_its_range_holds_everywhere() -> None:
    command = SectionedCommand("try", sections={"Search": [ANOTHER]})
    with pytest.raises(OptionError, match="loudness: expected 0 to 2, got 3"):
        WithAnother(loudness=3)
    with pytest.raises(click.BadParameter, match="expected a number from 0 to 2, got '3'"):
        command.make_context("try", ["--loudness", "3"])
    with pytest.raises(ApiError, match=r"loudness_thold: expected a number from 0 to 1, got .1\.5."):
        read_form(Fields([("loudness_thold", "1.5")]), "whisper_cpp", [ANOTHER])
    with pytest.raises(ApiError, match=r"loudness: expected a number from 0 to 1, got .1\.5."):
        read_field("loudness", "1.5", ANOTHER, ANOTHER.apis["whisper_cpp"])
    described = schema_of(ANOTHER, ANOTHER.apis["whisper_cpp"])
    assert described == {"type": "number", "minimum": 0.0, "maximum": 1.0}


def test_keys_flags_and_names_are_there_once() -> None:
    keys = [option.key for option in LIBRARY]
    assert len(set(keys)) == len(keys)
    assert len({option.flags for option in LIBRARY}) == len(keys)
    for api in ("openai", "whisper_cpp"):
        names = [name for option in FORM if api in option.apis for name in option.apis[api].names.split()]  # type: ignore[index]
        assert len(set(names)) == len(names)


def test_every_field_of_the_forms_is_described() -> None:
    paths: Any = document(APIS)["paths"]
    for api, path in (("openai", "/v1/audio/transcriptions"), ("whisper_cpp", "/inference")):
        form = paths[path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
        assert list(form["properties"]) == list(fields_of(api))  # type: ignore[arg-type]


def test_defaults_of_the_command_line_are_those_of_the_library() -> None:
    options = transcribe_options(call())
    assert options.decoding == DecodingOptions()
    assert options.fallback == FallbackOptions(best_of=5)
    assert replace(options, decoding=DecodingOptions(), fallback=FallbackOptions()) == TranscribeOptions()
    assert from_values(VadOptions, {}) == VadOptions() != WINDOW_VAD
    assert from_values(WriterOptions, {}) == WriterOptions()


@pytest.mark.parametrize(
    "words",
    [
        "--temperature 0 --beam-size 1 --length-penalty 1 --best-of 3 --seed 3",
        "--temperature 0.4 --patience 2 --beam-size 3",
        "--max-context 20 --vad --prompt-reset-on-temperature 0.2",
        "--carry-initial-prompt --append-punctuations . --word-threshold 0.1",
        "--max-context 0 --carry-initial-prompt --initial-prompt Anna",
        "--processors 1 --speakers 2 --min-speakers 2",
        "--lm-weight 1 --hotword-weight 1 --grammar-rule thing --grammar-penalty 5",
        "--speaker-voices campplus --speaker-engine pyannote --max-speakers 3",
        "--defer-word 0.3",
    ],
)
def test_idle_options_are_taken(words: str) -> None:
    assert transcribe_options(call(*words.split()))


@pytest.mark.parametrize("others", EXCLUSIVE.items(), ids=lambda item: item[0])
def test_every_pair_of_the_table_is_refused(others: tuple[str, tuple[str, ...]]) -> None:
    values = {"processors": "2", "channels": "apart", "clip_timestamps": "0,1"}
    params = {param.name: param for param in transcribe.params}

    def typed(name: str) -> list[str]:
        flag = f"--{name.replace('_', '-')}"
        return [flag] if getattr(params[name], "is_flag", False) else [flag, values.get(name, "2")]

    first, excluded = others
    for second in excluded:
        with pytest.raises(OptionError, match="cannot be combined with"):
            call(*typed(first), *typed(second))


def test_names_of_files_are_told_by_how_they_are_written() -> None:
    words = ["AC/DC", "Anna, Otto", "9/11", "...", "names.wav", "Anna\nnames.txt", None]
    names = ["/tmp/names", "./names", "../names", "~/names", "names.txt", "a b.TSV"]
    assert [text for text in [*words, *names] if means_file(text)] == names


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_temperatures_have_one_range(value: float) -> None:
    with pytest.raises(OptionError, match="temperature: expected 0 to 1"):
        DecodingOptions(temperature=value)
    with pytest.raises(OptionError, match="temperatures: expected 0 to 1"):
        FallbackOptions(temperatures=(0.0, value))


def test_a_parameter_of_the_vad_implies_it() -> None:
    options = transcribe_options(call("--vad-overlap-s", "0.1"))
    assert (options.mode, options.vad) == ("vad", replace(WINDOW_VAD, overlap_s=0.1))


FLAGS = [option for option in (*options_of(StreamOptions), *options_of(VadStreamOptions)) if option.flags]
FIELDS: dict[str, tuple[object, Any]] = {
    "languages": ("en,german", ("en", "de")),
    "switching": ("off", "off"),
    "switch_certainty": (0.95, 0.95),
    "latency": ("low", "low"),
    "captions": ("revisable", "revisable"),
    "finals": ("read", "read"),
    "vad": (False, False),
    "speakers": ("3", "3"),
    "replacements": ("ada => Ada", Replacements((("ada", "Ada"),))),
    "numerals": (True, True),
    "redact[]": (["emails"], ("emails",)),
    "mask_profanity": ("damn, hell", ("damn", "hell")),
    "chinese": ("simplified", "simplified"),
    "task": ("translate", "translate"),
    "eagerness": ("high", "high"),
    "prompt": ("Anna said", "Anna said"),
    "terms": (["Tisza", "Duna"], "Tisza, Duna"),
}
LIVE_FIELDS = [option for option in LIVE if option.owner and "sottovoce" in option.apis]


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.key)
def test_a_flag_of_live_speech_sets_its_field_as_python_does(option: Option) -> None:
    number = 120 if option.owner == "VadStreamOptions" else int(option.least or 0) + 7
    value = {"text": "Anna", "choice": option.choices[-1:]}.get(option.kind, number)
    value = value[0] if isinstance(value, tuple) else value
    words = [str(option.flags), f"{value}"]
    given = stream.make_context("stream", ["-", *words], help_option_names=["-h", "--help"]).params
    owner = {"StreamOptions": StreamOptions, "VadStreamOptions": VadStreamOptions}[option.owner]
    chosen = from_values(owner, given)
    assert getattr(chosen, option.field) == value != option.default
    assert chosen == changed(owner(), {option.key: value})


@pytest.mark.parametrize("option", LIVE_FIELDS, ids=lambda option: option.key)
def test_a_field_of_the_protocol_sets_the_same(option: Option) -> None:
    name = option.apis["sottovoce"].name
    sent, value = FIELDS[name]
    request = with_changes(SessionRequest(), {name: sent})
    assert request.options == changed(LiveOptions(), {option.key: value}) != LiveOptions()
    assert with_changes(request, {"model": "nano"}).options == request.options


def test_a_choice_holds() -> None:
    with pytest.raises(OptionError, match="switching: expected 'off' or 'restart', got 'often'"):
        LiveOptions(switching="often")  # type: ignore[arg-type]
