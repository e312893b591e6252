"""Options that several commands share, and the objects they describe: models, speakers, translation.

Imports nothing heavy, so that `--help` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from sottovoce.cli.flags import LIBRARY, flag_of, grouped
from sottovoce.ctc.options import SearchEngine
from sottovoce.errors import OptionError
from sottovoce.lm.phrase_lists import HOTWORD_WEIGHT
from sottovoce.options.fallback import DeferralOptions
from sottovoce.options.schema import Option, made, options_of
from sottovoce.options.speakers import SpeakerOptions

if TYPE_CHECKING:
    from sottovoce.api import Model
    from sottovoce.ctc.options import Case, Level
    from sottovoce.lm.fusion import ShallowFusion
    from sottovoce.offline.transcriber import SecondModel
    from sottovoce.options.speakers import Diarizer, SpeakerOptions
    from sottovoce.options.transcribe import TranscribeOptions
    from sottovoce.translation.chat import ChatServer, ChatTranslator, Glossary
    from sottovoce.types import Samples, Segment


LM_WEIGHT, ROOT = 0.3, "root"
PATH_BEGINNINGS = ("/", "./", "../", "~")
TEXT_ENDINGS = (".txt", ".tsv", ".csv")

MODEL = (
    Option(
        "Model name, hub id, file or folder.",
        key="model",
        short="-m",
        metavar="NAME|PATH",
        unset="default: base; on CUDA large-v3-turbo",
    ),
    Option(
        "auto, cpu, cuda, cuda:N or mps.",
        key="device",
        default="auto",
    ),
    Option(
        "auto, float32, bfloat16, float16 or int8; int8_float32 and the like tell the activations.",
        key="dtype",
        default="auto",
    ),
    Option(
        "torch, native (an int8 decoder for CPUs; package sottovoce-kernels), or auto: the faster one here, "
        "and torch where --dtype names a format.",
        key="backend",
        default="auto",
    ),
    Option(
        "Processor threads.",
        key="threads",
        kind="integer",
        least=1,
        unset="default: all cores",
    ),
    Option(
        "Where fetched models live.",
        key="model_dir",
        metavar="DIR",
        unset="default: the usual caches",
    ),
    Option(
        "Branch, tag or commit of the model on the hub.",
        key="revision",
        metavar="REV",
    ),
    Option(
        "Fetch nothing: the model is on this machine.",
        key="local_only",
        kind="flag",
    ),
)
LANGUAGE = (
    Option(
        "Of the recording, as for `transcribe`.",
        key="language",
        short="-l",
        default="auto",
        metavar="auto|CODE[,CODE…]",
    ),
)
TASK = grouped("Task")
FUSION = (
    Option(
        "Words likely to be said: a file of phrases, one a line (a weight after a tab, `[class] weight` "
        "above several), is boosted in the beam search; text is put before the prompt.",
        key="hotwords",
        metavar="FILE|TEXT",
    ),
    Option(
        "Documents (PDF, DOCX, text) whose rare words are boosted too, as phrases of --hotwords.",
        key="vocabulary_from",
        metavar="FILE",
        many=True,
    ),
    Option("What each token of a phrase adds.", key="hotword_weight", kind="number", default=HOTWORD_WEIGHT),
    Option(
        "n-gram model over token ids, for the beam search.",
        key="lm",
        metavar="FILE.arpa",
    ),
    Option("Weight of --lm.", key="lm_weight", kind="number", default=LM_WEIGHT),
    Option(
        "The form that text has (GBNF; extra `grammar`), for the beam search.",
        key="grammar",
        metavar="FILE.gbnf",
    ),
    Option(
        "The rule of the grammar that text is.",
        key="grammar_rule",
        default=ROOT,
    ),
    Option(
        "What a token costs that the grammar does not allow.",
        key="grammar_penalty",
        kind="number",
        least=0.0,
        unset="it is never written",
    ),
)


DEFERRAL = tuple(option for option in options_of(DeferralOptions) if option.flags is not None)


def beam_size(default: int) -> tuple[Option]:
    (size,) = (option for option in LIBRARY if option.key == "beam_size")
    return (replace(size, cli_default=default),)


def open_model(given: Mapping[str, Any]) -> Model:
    import torch

    from sottovoce.api import load_model

    if given["threads"]:
        torch.set_num_threads(given["threads"])
    return load_model(
        given["model"],
        device=given["device"],
        dtype=given["dtype"],
        backend=given["backend"],
        model_dir=given["model_dir"],
        revision=given["revision"],
        local_only=given["local_only"],
    )


def second_of(given: Mapping[str, Any]) -> SecondModel | None:
    if given["second_model"] is None:
        return None
    model = open_model({**given, "model": given["second_model"]})
    return model.as_second(made(DeferralOptions, given), fusion_of(model, given))


def check_fusion(given: Mapping[str, Any], temperatures: Sequence[float] = (0.0,)) -> None:
    has_phrases = is_file(given["hotwords"])
    if not has_phrases and means_file(given["hotwords"]):
        raise OptionError(
            f"--hotwords: expected words or a file of phrases, no such file {given['hotwords']}"
        )
    has_phrases = has_phrases or bool(given["vocabulary_from"])
    is_greedy = given["beam_size"] == 1
    if (is_greedy or all(temperatures)) and (given["lm"] or given["grammar"] or has_phrases):
        got = "--beam-size 1" if is_greedy else "no temperature of 0"
        raise OptionError(
            f"--lm, --grammar, --vocabulary-from and a file of --hotwords: need a beam search, got {got}"
        )


def fusion_of(model: Model, given: Mapping[str, Any]) -> ShallowFusion | None:
    listed = given["hotwords"] if is_file(given["hotwords"]) else None
    documents = given["vocabulary_from"]
    if given["lm"] is None and listed is None and not documents and given["grammar"] is None:
        return None
    from sottovoce.formats.document_words import with_vocabulary
    from sottovoce.lm.grammar import Grammar

    weight = given["hotword_weight"]
    phrases = with_vocabulary(listed, documents, default_weight=weight, tokenizer=model.tokenizer)

    grammar = given["grammar"] and Grammar.read(given["grammar"], given["grammar_rule"])
    return model.fusion(
        lm=given["lm"],
        lm_weight=given["lm_weight"],
        hotwords=phrases,
        hotword_weight=weight,
        grammar=grammar,
        grammar_penalty=given["grammar_penalty"],
    )


def hotword_text(given: Mapping[str, Any]) -> str | None:
    return None if is_file(given["hotwords"]) else given["hotwords"]


def is_file(text: str | None) -> bool:
    return text is not None and len(text) < 1000 and Path(text).is_file()


def means_file(text: str | None) -> bool:
    """Return whether hotwords look like a file name, existing or not; AC/DC does not."""
    if text is None or "\n" in text:
        return False
    return text.startswith(PATH_BEGINNINGS) or text.lower().endswith(TEXT_ENDINGS)


SHORTEST_VOICE_S, LONGEST_VOICE_S = 1.0, 120.0
"""Of a known voice; more than a minute adds nothing."""
VOICES = grouped("Speakers", of=[one for one in LIBRARY if one.key == "speaker_voices"])
ENROLLED_VOICES = Option(
    "A recording of somebody alone, a few seconds, who has this name then. May be repeated.",
    key="known_voices",
    flag="--known-voice",
    many=True,
    metavar="NAME=FILE",
)


def speakers_of(given: Mapping[str, Any]) -> SpeakerOptions | Diarizer | None:
    if given["speakers"] is None:
        if given["known_voices"]:
            raise OptionError("--known-voice: needs --speakers")
        return None
    least, most = given["min_speakers"], given["max_speakers"]
    if least is not None and most is not None and least > most:
        raise OptionError(f"--min-speakers: expected at most --max-speakers {most}, got {least}")
    options = parsed_speakers(given["speakers"])
    if most is not None and options.n_speakers is not None and options.n_speakers > most:
        raise OptionError(f"--max-speakers: expected at least --speakers {options.n_speakers}, got {most}")
    return replace(
        options,
        least=least or options.least,
        most=most or max(options.most, least or 0),
        engine=given["speaker_engine"],
        voices=given["speaker_voices"],
        known=enrolled_voices(given["known_voices"]),
    )


def enrolled_voices(pairs: Sequence[str]) -> dict[str, Samples]:
    voices: dict[str, Samples] = {}
    for pair in pairs:
        name, _, path = (part.strip() for part in pair.partition("="))
        if not name or not path:
            raise OptionError(f"--known-voice: expected NAME=FILE, got '{pair}'")
        if name in voices:
            raise OptionError(f"--known-voice: expected one file for each name, got two of '{name}'")
        voices[name] = voice_of(path)
    return voices


def voice_of(path: str) -> Samples:
    from sottovoce.audio.io import load_audio
    from sottovoce.types import SAMPLE_RATE

    samples = load_audio(path, duration_s=2 * LONGEST_VOICE_S)
    seconds = len(samples) / SAMPLE_RATE
    if not SHORTEST_VOICE_S <= seconds <= LONGEST_VOICE_S:
        wanted = f"{SHORTEST_VOICE_S:.0f} to {LONGEST_VOICE_S:.0f} seconds of speech"
        got = "more" if seconds > LONGEST_VOICE_S else f"{seconds:.1f}"
        raise OptionError(f"--known-voice: expected {wanted} in {path}, got {got}")
    return samples


def live_speakers_of(given: Mapping[str, Any]) -> SpeakerOptions | None:
    if given["speakers"] is None:
        return None
    return replace(parsed_speakers(given["speakers"]), voices=given["speaker_voices"])


def parsed_speakers(value: str) -> SpeakerOptions:
    from sottovoce.speakers.choose import parse_speakers

    options = parse_speakers(value.strip())
    assert isinstance(options, SpeakerOptions)
    return options


KEY = "SOTTOVOCE_TRANSLATION_KEY"
SERVER = (
    Option(
        f"A server with OpenAI's chat API, as http://127.0.0.1:8080/v1; its key, if it wants one, in {KEY}.",
        key="translation_url",
        metavar="URL",
    ),
    Option("The model to ask there for.", key="translation_model", metavar="NAME"),
    Option("Terms for the server, one a line: term = translation.", key="glossary", metavar="FILE"),
)
TRANSLATION = (
    Option(
        "Write a translation beside what was said, sentence by sentence; into English by Whisper, into "
        "others by --translation-url.",
        key="translate_to",
        metavar="CODE",
    ),
    *SERVER,
)


@dataclass(frozen=True, slots=True)
class Translation:
    target: str
    translator: ChatTranslator | None

    def of(
        self, segments: Iterable[Segment], model: Model, source: Any, options: TranscribeOptions
    ) -> Iterator[Segment]:
        if self.translator is not None:
            return self.translator.segments(segments)
        from sottovoce.translation.whisper_translate import with_english

        return iter(with_english(model, source, list(segments), options))


def translation_of(given: Mapping[str, Any], files: Iterable[str] = ()) -> Translation | None:
    target = given["translate_to"]
    if target is None:
        return None
    from sottovoce.text.languages import find_language
    from sottovoce.translation.chat import ChatTranslator

    code = find_language(target)
    if given["task"] == "translate":
        raise OptionError("--translate-to: cannot be combined with --task translate")
    if given["translation_url"] is not None:
        chat, glossary = chat_server(given)
        return Translation(code, ChatTranslator(chat, code, glossary))
    if code != "en":
        raise OptionError(
            f"--translate-to {target}: needs --translation-url; Whisper itself translates into English alone"
        )
    for name in ("translation_model", "glossary"):
        if given[name] is not None:
            raise OptionError(f"{flag_of(name)}: needs --translation-url")
    if "-" in files:
        raise OptionError(
            "--translate-to en: reads a recording twice, which standard input is not; give a file"
        )
    return Translation(code, None)


def chat_server(given: Mapping[str, Any]) -> tuple[ChatServer, Glossary]:
    from sottovoce.translation.chat import ChatServer, Glossary

    if given["translation_model"] is None:
        raise OptionError("--translation-url: needs --translation-model, the name of the model there")
    chat = ChatServer(given["translation_url"], given["translation_model"], os.environ.get(KEY) or None)
    return chat, Glossary() if given["glossary"] is None else Glossary.read(given["glossary"])


_emissions = partial(Option, group="Emissions")
_search = partial(Option, group="Search")
_model = partial(Option, group="Language models")
_words = partial(Option, group="Words")


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """Options of `sottovoce ctc`: a decoder and its language models."""

    labels: Path | None = _emissions(
        "Labels: one a line, or JSON (a list, or vocab.json).", kind="file"
    ).as_field(None)
    blank: int | None = _emissions("Index of the blank; -1 is the last.", unset="default: 0").as_field(None)
    model: str | None = _emissions(
        "A model with a CTC head, such as nano: the files are then recordings."
    ).as_field(None)
    logits: bool = _emissions("The files hold logits: take log_softmax first.").as_field(False)
    is_normalised: bool = _emissions(
        "Emissions are scores on purpose: do not check them.", flag="--unnormalised", negated=True
    ).as_field(True)
    frame_s: float = _emissions(
        "Milliseconds a frame.", key="frame_ms", above=0.0, cli_default=20.0, reads=lambda ms: ms / 1000
    ).as_field(0.02)
    acoustic_scale: float = _emissions("Times the emissions.").as_field(1.0)
    blank_penalty: float = _emissions("Nats taken off the blank.").as_field(0.0)
    label_priors: Path | None = _emissions(
        "Frequencies of the labels, one a line: divided out.", kind="file"
    ).as_field(None)
    prior_scale: float = _emissions("Exponent of the priors.").as_field(1.0)

    beam_size: int = _search("Beams that stay.", least=1).as_field(16)
    beam_threshold: float | None = _search("Drop beams this far (nats) below the best.").as_field(None)
    top_tokens: int | None = _search("Tokens of a frame to extend by.", least=1).as_field(None)
    blank_skip: float | None = _search(
        "Skip runs of frames that are blank with more than this.", least=0.0, most=1.0
    ).as_field(None)
    engine: SearchEngine = _search("Frame loop.", choices=get_args(SearchEngine)).as_field("auto")
    device: str = _search("cpu, cuda or cuda:N.").as_field("cpu")
    threads: int | None = _search(
        "Threads that share the work.", unset="default: PyTorch's", least=1
    ).as_field(None)

    lm: Path | None = _model("N-gram model: ARPA, ARPA.gz or KenLM binary.", kind="file").as_field(None)
    lm_weight: float = _model("How much --lm counts.").as_field(0.5)
    level: Level = _model(
        "What --lm is over; auto looks at its words.", key="lm_level", choices=("auto", "token", "word")
    ).as_field("auto")
    token_offset: int | None = _model(
        "Words of the n-gram over labels are chr(label + this): 100 for models made by NeMo.", least=0
    ).as_field(None)
    look_ahead: bool = _model(
        "Do not use the n-gram's unigrams inside words.", flag="--no-look-ahead", negated=True
    ).as_field(True)
    label_lm: Path | None = _model(
        "N-gram model over labels, beside an --lm over words.", kind="file"
    ).as_field(None)
    label_lm_weight: float = _model("How much --label-lm counts.").as_field(0.3)
    neural_lm: str | None = _model(
        "Hugging Face causal model: folder, GGUF file or name.", metavar="DIR"
    ).as_field(None)
    neural_weight: float = _model("How much --neural-lm counts.").as_field(0.5)
    lm_kept: float = _model("Share of the n-gram's weight that stays beside the neural model.").as_field(0.0)

    word_score: float = _words("Added for every word.").as_field(0.0)
    lexicon: Path | None = _words(
        "Words and their labels, a word a line; or words alone.", kind="file"
    ).as_field(None)
    unknown_words: bool | None = _words(
        "Whether words outside the lexicon may be said.",
        unset="default: only without --lexicon",
        switch=True,
    ).as_field(None)
    unknown_score: float = _words("Per unknown word.").as_field(-10.0)
    case: Case = _words(
        "Case of the words of --lm and --hotwords.", choices=("keep", "lower", "upper")
    ).as_field("keep")
    hotwords: Path | None = _words(
        "Phrases, one a line; a weight after a tab, `[class] weight` above several.", kind="file"
    ).as_field(None)
    vocabulary_from: tuple[Path, ...] = _words(
        "Documents (PDF, DOCX, text) whose rare words are boosted too.", kind="file", many=True
    ).as_field(())
    hotword_weight: float = _words("What each label of a phrase adds.").as_field(2.0)
