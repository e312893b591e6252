"""Options that several subcommands share; PyTorch is imported when a model is opened, not for their help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sottovoce.cli.flags import LIBRARY, grouped
from sottovoce.cli.sections import Flag, decorator_of
from sottovoce.errors import OptionError
from sottovoce.lm.phrase_lists import HOTWORD_WEIGHT
from sottovoce.options.deferral import DeferralOptions
from sottovoce.options.needs import BEAMS
from sottovoce.options.schema import Need, Option, made, options_of

if TYPE_CHECKING:
    from sottovoce.api import Model
    from sottovoce.lm.fusion import ShallowFusion
    from sottovoce.offline.transcriber import SecondModel

LM_WEIGHT, ROOT = 0.3, "root"
PATH_BEGINNINGS = ("/", "./", "../", "~")
TEXT_ENDINGS = (".txt", ".tsv", ".csv")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

MODEL = (
    Option(
        "Model name, hub id, file or folder.",
        key="model",
        short="-m",
        metavar="NAME|PATH",
        unset="default: base; on CUDA large-v3-turbo",
        elsewhere={"cpp": "-m --model", "openai": "model name", "faster": "model_size_or_path"},
    ),
    Option(
        "auto, cpu, cuda, cuda:N or mps.",
        key="device",
        default="auto",
        elsewhere={
            "cpp": "-ng --no-gpu use_gpu -dev --device gpu_device",
            "openai": "device",
            "faster": "device device_index",
        },
    ),
    Option(
        "auto, float32, bfloat16, float16 or int8; int8_float32 and the like tell the activations.",
        key="dtype",
        default="auto",
        elsewhere={"openai": "fp16", "faster": "compute_type"},
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
        elsewhere={"cpp": "-t --threads n_threads", "openai": "threads", "faster": "cpu_threads"},
    ),
    Option(
        "Where fetched models live.",
        key="model_dir",
        metavar="DIR",
        unset="default: the usual caches",
        elsewhere={"openai": "model_dir download_root", "faster": "download_root"},
    ),
    Option(
        "Branch, tag or commit of the model on the hub.",
        key="revision",
        metavar="REV",
        elsewhere={"faster": "revision"},
    ),
    Option(
        "Fetch nothing: the model is on this machine.",
        key="local_only",
        kind="flag",
        elsewhere={"faster": "local_files_only"},
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
"""For commands that read a recording only to do something else with it."""
TASK = grouped("Task")
FUSION = (
    Option(
        "Words likely to be said: a file of phrases, one a line (a weight after a tab, `[class] weight` "
        "above several), is boosted in the beam search; text is put before the prompt.",
        key="hotwords",
        metavar="FILE|TEXT",
        needs=(Need(BEAMS.why, lambda v: not is_file(v["hotwords"]) or BEAMS.holds(v), when="typed"),),
    ),
    Option(
        "Documents (PDF, DOCX, text) whose rare words are boosted too, as phrases of --hotwords.",
        key="vocabulary_from",
        metavar="FILE",
        many=True,
        needs=(BEAMS,),
        not_with=("processors",),
    ),
    Option("What each token of a phrase adds.", key="hotword_weight", kind="number", default=HOTWORD_WEIGHT),
    Option(
        "n-gram model over token ids, for the beam search.",
        key="lm",
        metavar="FILE.arpa",
        needs=(BEAMS,),
        not_with=("processors",),
    ),
    Option("Weight of --lm.", key="lm_weight", kind="number", default=LM_WEIGHT),
    Option(
        "The form that text has (GBNF; extra `grammar`), for the beam search.",
        key="grammar",
        metavar="FILE.gbnf",
        needs=(BEAMS,),
        not_with=("processors",),
        elsewhere={"cpp": "--grammar grammar_rules n_grammar_rules i_start_rule"},
    ),
    Option(
        "The rule of the grammar that text is.",
        key="grammar_rule",
        default=ROOT,
        elsewhere={"cpp": "--grammar-rule"},
    ),
    Option(
        "What a token costs that the grammar does not allow.",
        key="grammar_penalty",
        kind="number",
        least=0.0,
        unset="it is never written",
        elsewhere={"cpp": "--grammar-penalty grammar_penalty"},
    ),
)


DEFERRAL = tuple(option for option in options_of(DeferralOptions) if option.flags is not None)
"""When a second model reads again."""


def beam_size(default: int) -> tuple[Option]:
    """Make the option of that name, by itself: commands differ in its default."""
    (size,) = (option for option in LIBRARY if option.key == "beam_size")
    return (replace(size, cli_default=default),)


def open_model(given: Mapping[str, Any]) -> Model:
    """Load the model that the options of `MODEL` name.

    Raises: ModelNotFoundError, CheckpointError, OptionError.
    """
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
    """Load the model that reads what the first is not sure of, where one is named.

    Raises: as `open_model` and `fusion_of`.
    """
    if given["second_model"] is None:
        return None
    model = open_model({**given, "model": given["second_model"]})
    return model.as_second(made(DeferralOptions, given), fusion_of(model, given))


def check_fusion(given: Mapping[str, Any]) -> None:
    """Raises: OptionError for a greedy search, the weight of what is not there, and a file that is not."""
    has_phrases = is_file(given["hotwords"])
    if not has_phrases and means_file(given["hotwords"]):
        raise OptionError(
            f"--hotwords: expected words or a file of phrases, no such file {given['hotwords']}"
        )
    has_phrases = has_phrases or bool(given["vocabulary_from"])
    if given["beam_size"] == 1 and (given["lm"] or given["grammar"] or has_phrases):
        raise OptionError(
            "--lm, --grammar, --vocabulary-from and a file of --hotwords: need a beam search, "
            "got --beam-size 1"
        )
    if given["grammar"] is None and (given["grammar_rule"] != ROOT or given["grammar_penalty"] is not None):
        raise OptionError("--grammar-rule and --grammar-penalty: need --grammar")
    if given["lm"] is None and given["lm_weight"] != LM_WEIGHT:
        raise OptionError("--lm-weight: needs --lm")
    if not has_phrases and given["hotword_weight"] != HOTWORD_WEIGHT:
        raise OptionError("--hotword-weight: needs a file of --hotwords, or --vocabulary-from")


def fusion_of(model: Model, given: Mapping[str, Any]) -> ShallowFusion | None:
    """Language models beside the beam search, where the options of `FUSION` ask for any.

    Raises: LanguageModelError, OptionError.
    """
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
    """Hotwords that are given as text, for the prompt."""
    return None if is_file(given["hotwords"]) else given["hotwords"]


def is_file(text: str | None) -> bool:
    """Tell whether hotwords are given as a file."""
    return text is not None and len(text) < 1000 and Path(text).is_file()


def means_file(text: str | None) -> bool:
    """Tell whether hotwords are written as the name of a file, whatever lies there; AC/DC is none."""
    if text is None or "\n" in text:
        return False
    return text.startswith(PATH_BEGINNINGS) or text.lower().endswith(TEXT_ENDINGS)


def with_options(*groups: Sequence[Flag]) -> Callable[[Decorated], Decorated]:
    """Decorate a command with all options of the groups; its help shows them in this order."""

    def decorate(command: Decorated) -> Decorated:
        for group in reversed(groups):
            for option in reversed(group):
                command = decorator_of(option)(command)
        return command

    return decorate
