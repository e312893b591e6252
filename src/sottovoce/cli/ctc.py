"""`sottovoce ctc`: decoding of CTC emissions, and choice of weights by the word error rate."""

from __future__ import annotations

import csv
import io
import itertools
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import click

from sottovoce.cli.invocation import invocation_of, say_error
from sottovoce.cli.options import SectionedCommand, grouped, is_typed
from sottovoce.cli.progress import progress_bar, read_headers
from sottovoce.ctc.labels import LabelList
from sottovoce.ctc.options import (
    CtcFusionOptions,
    CtcOptions,
    DecoderConfig,
    chosen_values,
    of_emissions,
    of_search,
    of_words,
    read_config,
    read_priors,
    write_config,
)
from sottovoce.errors import InputError, ManifestError, OptionError, SottovoceError, expecting
from sottovoce.options.schema import Option, Values, changed, from_values, options_of, present
from sottovoce.text.files import read_lines
from sottovoce.types import Hypothesis, Word

if TYPE_CHECKING:
    from sottovoce.ctc import CtcDecoder
    from sottovoce.ctc.decoder import StreamUpdate
    from sottovoce.ctc.models import Ngrams
    from sottovoce.ctc.network import AcousticModel
    from sottovoce.ctc.tuning import Counts, Range, Weights
    from sottovoce.evaluation.scores import ErrorCounts
    from sottovoce.lm.base import Floats
    from sottovoce.lm.boosting import Hotwords
    from sottovoce.lm.lexicon import Lexicon
    from sottovoce.lm.rescoring import History, WordLanguageModel

    Sources: TypeAlias = Iterator["EmissionSource | SottovoceError"]
    Decode: TypeAlias = Callable[[list[Floats], Sequence[int]], list[list[Hypothesis]]]

logger = logging.getLogger(__name__)

Lines: TypeAlias = "Sequence[Mapping[str, object]]"


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    config: Path | None = of_emissions(
        "decoder.toml of `ctc tune`; flags take precedence.", kind="file"
    ).as_field(None)
    model: str | None = of_emissions(
        "Network that reads FILES, which are recordings: TOML of an ONNX file, folder of an AutoModelForCTC, "
        "or a Whisper model with a CTC head, such as nano."
    ).as_field(None)
    logits: bool = of_emissions("FILES contain logits: apply log_softmax first.").as_field(False)
    device: str = of_search("Device of --neural-lm: cpu, cuda or cuda:N.").as_field("cpu")
    threads: int | None = of_search("Processor threads.", unset="default: all", least=1).as_field(None)
    vocabulary_from: tuple[Path, ...] = of_words(
        "Documents (PDF, DOCX, text) whose rare words are boosted too.", kind="file", many=True
    ).as_field(())


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    nbest: int = Option("Hypotheses per utterance.", least=1).as_field(1)
    greedy: bool = Option("Take the most probable path instead of searching.").as_field(False)
    batch_size: int = Option("Utterances decoded together.", least=1).as_field(8)
    stream: bool = Option(
        "Decode each utterance as a stream; print a line for each chunk that changes the text."
    ).as_field(False)
    chunk_ms: float = Option("Milliseconds of a chunk.", above=0.0).as_field(80.0)


@dataclass(frozen=True, slots=True)
class TuneOptions:
    tune: str | None = Option(
        "Weights to tune: `NAME` or `NAME=LOW..HIGH`, separated by commas; also beam_size.",
        unset="those of the given models",
    ).as_field(None)
    decodings: int = Option("Decodings of the set in a search.", least=2).as_field(64)
    folds: int = Option("Folds of the cross-validation.", least=1).as_field(5)
    seed: int = Option("Random seed of the search.", least=0).as_field(0)
    output: Path | None = Option("The decoder.toml to write.", short="-o", kind="file").as_field(None)


DECODER = tuple(
    option
    for owner in (DecoderOptions, DecoderConfig, CtcOptions, CtcFusionOptions)
    for option in options_of(owner)
)
SECTIONS = {
    heading: grouped(heading, of=DECODER) for heading in ("Emissions", "Search", "Language models", "Words")
}
EXCLUSIVE = {
    "model": ("labels", "blank", "frame_ms", "logits"),
    "greedy": ("lm", "label_lm", "lexicon", "hotwords", "vocabulary_from", "neural_lm", "nbest", "stream"),
}


class _DecodeByDefault(click.Group):
    """Makes `ctc FILE` an alias of `ctc decode FILE`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, "decode")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["decode", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_DecodeByDefault, context_settings={"help_option_names": ["-h", "--help"]})
def ctc() -> None:
    """Decode CTC emissions with language models: `ctc FILE… --labels FILE`.

    Recordings too: `ctc talk.wav --model network.toml`. `ctc decode --help` lists the options.
    """


def typed_values(context: click.Context, given: Values) -> dict[str, object]:
    return {option.key: given[option.key] for option in DECODER if is_typed(context, option.param)}


@ctc.command(
    "decode",
    cls=SectionedCommand,
    sections={**SECTIONS, "Output": options_of(DecodeOptions)},
    exclusive=EXCLUSIVE,
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.pass_context
def decode(context: click.Context, /, files: tuple[Path, ...], **given: object) -> int:
    """Decode FILES into one JSON line per hypothesis, best first.

    FILES: .npy, .npz or .csv; - is an .npy from standard input; a.npy,b.npy are the same utterances of
    several networks. With --model, FILES are recordings.
    """
    options, chosen = from_values(DecoderOptions, given), from_values(DecodeOptions, given)
    readable: Sequence[Path] = files
    if options.model is not None:
        headers = read_headers(list(map(str, files)), invocation_of(context))
        readable = [path for path in files if str(path) in headers]
    n_failed = len(files) - len(readable)
    if readable:
        utterances = Utterances.opened(options, typed_values(context, given))
        utterances, sources = utterances.with_blank(utterances.of_all(readable))
        for lines in (streamed if chosen.stream else decoded)(utterances, sources, chosen):
            if isinstance(lines, SottovoceError):
                if len(files) == 1:
                    raise lines
                say_error(str(lines))
                invocation_of(context).has_failed = True
                n_failed += 1
                continue
            for line in lines:
                click.echo(json.dumps(line, ensure_ascii=False))
    return 2 if n_failed == len(files) == 1 else int(n_failed > 0)


def _update_lines(name: str, update: StreamUpdate) -> Lines:
    if update.is_final:
        return _lines(name, update.hypotheses)
    if not (update.changes_text or update.committed):
        return []
    line = {
        "id": name,
        "time": round(update.time_s, 3),
        "text": update.text,
        "revised": update.n_revised,
        "committed": [_word(word) for word in update.committed],
        "alternatives": [
            {"text": each.text, "score": round(each.score, 5), "posterior": round(each.posterior or 0.0, 5)}
            for each in update.hypotheses
        ],
    }
    return [line]


def _word(word: Word) -> dict[str, object]:
    return {
        "word": word.word,
        "start": round(word.start, 3),
        "end": round(word.end, 3),
        "probability": round(word.probability, 4),
    }


def _lines(name: str, hypotheses: Sequence[Hypothesis]) -> Lines:
    return [
        {
            "id": name,
            "rank": rank,
            "text": hypothesis.text,
            "score": round(hypothesis.score, 5),
            "acoustic_score": round(hypothesis.acoustic_score, 5),
            "lm_score": round(hypothesis.lm_score, 5),
            "posterior": None if hypothesis.posterior is None else round(hypothesis.posterior, 5),
            "unfinished": hypothesis.is_unfinished,
            "words": [_word(word) for word in hypothesis.words],
            "tokens": list(hypothesis.tokens),
        }
        for rank, hypothesis in enumerate(hypotheses)
    ]


@ctc.command(
    "tune",
    cls=SectionedCommand,
    sections={"Tuning": options_of(TuneOptions), **SECTIONS},
    exclusive=EXCLUSIVE,
)
@click.argument("manifest", type=click.Path(path_type=Path))
@click.pass_context
def tune(context: click.Context, /, manifest: Path, **given: object) -> None:
    """Choose the weights of a decoder on a development set.

    Writes its decoder.toml, and prints one JSON line: word error rates before and after, and by
    cross-validation with a 95 % interval. MANIFEST: JSON lines with "emissions" (or "file", with --model) and
    "text"; utterances of one "speaker" stay in one fold.
    """
    chosen, typed = from_values(TuneOptions, given), typed_values(context, given)
    rows = listed(manifest)
    utterances = Utterances.opened(from_values(DecoderOptions, given), typed)
    ranges = _ranges(chosen.tune, tunable(utterances.config, utterances.options.vocabulary_from))
    with progress_bar() as bar:
        task = bar.add_task("tune", total=chosen.decodings * (chosen.folds + 1))
        weights, row = tuned(utterances, rows, ranges, chosen, progress=lambda: bar.advance(task))
    if chosen.output is not None:
        write_config(chosen.output, utterances.config_with(weights))
    click.echo(json.dumps(row))


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 4)


def _ranges(text: str | None, tunable: Sequence[str]) -> dict[str, Range]:
    from sottovoce.ctc.tuning import RANGES

    names = (*tunable, "beam_size")
    ranges: dict[str, Range] = {}
    for part in tunable if text is None else text.split(","):
        name, _, limits = part.strip().partition("=")
        name = name.replace("-", "_")
        if name not in names:
            raise OptionError(f"--tune: expected one of {', '.join(names)}, got '{part.strip()}'")
        ranges[name] = RANGES[name]
        if limits:
            low, _, high = limits.partition("..")
            try:
                ranges[name] = replace(RANGES[name], low=float(low), high=float(high))
            except ValueError:
                raise OptionError(f"--tune: expected {name}=LOW..HIGH, got '{part.strip()}'") from None
    return ranges


@dataclass(frozen=True, slots=True)
class EmissionSource:
    """Emissions (T, V) of an utterance, of each network."""

    name: str
    networks: tuple[Floats, ...]

    @property
    def values(self) -> Floats:
        return self.networks[0]


def read_emissions(path: Path) -> Iterator[EmissionSource]:
    """Yield the utterances of a file: (T, V) or (B, T, V) of an npy, each array of an npz, or the rows of a
    csv (commas or semicolons, no header). "-": an npy from standard input. Raises: InputError.
    """
    import numpy as np

    expected = "emissions as .npy" + ("" if str(path) == "-" else ", .npz or .csv")
    # NumPy raises errors of ten kinds for damaged files.
    with expecting(path, expected, InputError, (Exception,)):
        if str(path) == "-" or path.suffix == ".npy":
            with io.BytesIO(sys.stdin.buffer.read()) if str(path) == "-" else path.open("rb") as file:
                values = np.lib.format.read_array(file)  # type: ignore[no-untyped-call]
                if file.read(1):
                    raise ValueError(f"bytes behind an array of shape {values.shape}")
            yield from _utterances(str(path), values)
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                for name in archive.files:
                    yield from _utterances(f"{path}#{name}", archive[name])
        elif path.suffix == ".csv":
            lines = read_lines(path, expected, InputError)
            rows = csv.reader(lines, delimiter=";" if ";" in "".join(lines[:1]) else ",")
            cells = [[float(cell) for cell in row if cell.strip()] for row in rows if row]
            yield from _utterances(str(path), np.array(cells, np.float32))
        else:
            from sottovoce.archive.results import is_recording

            hint = "; a recording needs --model" if is_recording(Path(path.name)) else ""
            raise ValueError(f"a file that ends in {path.suffix!r}{hint}")


def _utterances(name: str, values: Floats) -> Iterator[EmissionSource]:
    if values.ndim not in (2, 3):
        raise InputError(
            f"{name}: expected emissions (T, V) or (B, T, V), got an array of shape {values.shape}"
        )
    for row, utterance in enumerate(values if values.ndim == 3 else values[None]):
        named = f"{name}[{row}]" if values.ndim == 3 else name
        yield EmissionSource(named, (utterance.astype("float32"),))


def recorded_emissions(path: Path, network: AcousticModel) -> EmissionSource:
    from sottovoce.audio.io import Recording

    with Recording(path) as recording, recording.open() as reader:
        return EmissionSource(str(path), (network.whole_emissions(reader),))


@dataclass(frozen=True, slots=True)
class Utterances:
    options: DecoderOptions
    config: DecoderConfig
    model: AcousticModel | None
    labels: LabelList

    @classmethod
    def opened(cls, options: DecoderOptions, typed: Mapping[str, object]) -> Utterances:
        """Open the model or the labels. typed: values that take precedence over `options.config`."""
        from sottovoce.threads import set_threads

        if isinstance(priors := typed.get("label_priors"), Path):
            typed = {**typed, "label_priors": read_priors(priors)}
        if options.threads is not None:
            set_threads(options.threads)
        if options.device != "cpu":
            from sottovoce.models.devices import choose_device

            choose_device(options.device)
        network, file = None, options.config
        if options.model is not None:
            from sottovoce.api import load_model
            from sottovoce.models.devices import has_torch

            # Weights and penalties of heads were tuned on the states of PyTorch's encoder.
            network = load_model(options.model, backend="torch" if has_torch() else "auto").network
            file = file or network.decoder
        config = changed(DecoderConfig() if file is None else read_config(file), typed)
        if network is not None:
            config = replace(config, options=replace(config.options, frame_s=network.frame_s))
            return cls(options, config, network, LabelList(network.labels.names, network.blank))
        if config.labels is None:
            raise OptionError(
                "--labels: expected a file of labels, or --model: a network (network.toml, a folder of "
                "transformers) or a Whisper model with a CTC head; got none"
            )
        return cls(options, config, None, config.label_list())

    def of(self, path: Path) -> Iterator[EmissionSource]:
        """Yield the utterances of a path, or of the comma-separated paths of several networks."""
        from sottovoce.ctc.emissions import log_softmax

        if self.model is not None:
            yield recorded_emissions(path, self.model)
            return
        paths = [path] if path.exists() else [Path(part) for part in str(path).split(",")]
        for aligned in itertools.zip_longest(*map(read_emissions, paths)):
            sources = [source for source in aligned if source is not None]
            if len(sources) < len(paths):
                raise InputError(
                    f"{path}: expected equal numbers of utterances of each network, got fewer of one"
                )
            networks = tuple(source.values for source in sources)
            if self.options.logits:
                networks = tuple(map(log_softmax, networks))
            if len({len(values) for values in networks}) > 1:
                lengths = ", ".join(str(len(values)) for values in networks)
                raise InputError(f"{path}: expected equal numbers of frames of each network, got {lengths}")
            n_labels, sizes = len(self.labels.names), {values.shape[1] for values in networks}
            if sizes != {n_labels}:
                file = self.config.labels if isinstance(self.config.labels, Path) else self.options.config
                got = max(sizes - {n_labels})
                raise InputError(f"{sources[0].name}: expected {n_labels} labels, as in {file}, got {got}")
            yield EmissionSource(",".join(source.name for source in sources), networks)

    def with_blank(self, sources: Sources) -> tuple[Utterances, Sources]:
        """Take the blank from the first utterance if the labels name none; also return all utterances."""
        from sottovoce.ctc.emissions import likely_blank

        names, blank = self.labels
        if blank is not None:
            return self, sources
        first: list[EmissionSource | SottovoceError] = []
        blank = 0  # decodes nothing if no utterance can be read, whose errors then come
        for source in sources:
            first.append(source)
            if isinstance(source, EmissionSource):
                blank = likely_blank(source.values)
                break
        if blank is not None and isinstance(first[-1], EmissionSource):
            name = names[blank] if blank < len(names) else ""
            logger.warning("blank: label %d (%r), the likeliest in most frames", blank, name)
        return replace(self, labels=LabelList(names, blank)), itertools.chain(first, sources)

    def of_all(self, paths: Sequence[Path]) -> Sources:
        for path in paths:
            try:
                yield from self.of(path)
            except SottovoceError as error:
                yield error

    def decoder(
        self,
        n_best: int,
        lm: Ngrams | None = None,
        *,
        lexicon: Lexicon | None = None,
        neural_lm: WordLanguageModel | None = None,
    ) -> CtcDecoder:
        from sottovoce.ctc import CtcDecoder

        loaded = {"lm": lm, "lexicon": lexicon, "neural_lm": neural_lm}
        arguments = {**self.config.arguments, **present(loaded), "hotwords": self._hotwords()}
        return CtcDecoder(*self.labels, **arguments, n_best=n_best, device=self.options.device)

    def _hotwords(self) -> Hotwords | None:
        from sottovoce.formats.document_words import with_vocabulary

        documents, weight = self.options.vocabulary_from, self.config.fusion.hotword_weight
        return with_vocabulary(self.config.hotwords, documents, default_weight=weight)

    def config_with(self, weights: Mapping[str, float]) -> dict[str, object]:
        values = chosen_values(self.config)
        values["labels"] = self.config.labels if self.model is None else self.labels.names
        values["blank"] = self.labels.blank
        if self.options.vocabulary_from:
            values["hotwords"] = self._hotwords()
        if isinstance(self.config.lm, dict):
            values["lm"] = {Path(name): weight for name, weight in self.config.lm.items()}
        if self.config.neural_lm is not None and Path(self.config.neural_lm).exists():
            values["neural_lm"] = Path(self.config.neural_lm)
        return {**values, **weights}


def decoded(
    utterances: Utterances, sources: Sources, options: DecodeOptions
) -> Iterator[Lines | SottovoceError]:
    """Yield the JSON lines, or the error, of every utterance in order."""
    decoder = utterances.decoder(options.nbest)

    def greedy(batch: list[Floats], lengths: Sequence[int]) -> list[list[Hypothesis]]:
        return [[best] for best in decoder.greedy(batch, lengths)]

    together = partial(_together, greedy if options.greedy else decoder.decode)
    waiting: list[EmissionSource] = []
    for source in sources:
        if isinstance(source, EmissionSource):
            waiting.append(source)
        if isinstance(source, SottovoceError) or len(waiting) == options.batch_size:
            yield from together(waiting)
            waiting = []
        if isinstance(source, SottovoceError):
            yield source
    yield from together(waiting)


def streamed(
    utterances: Utterances, sources: Sources, options: DecodeOptions
) -> Iterator[Lines | SottovoceError]:
    decoder = utterances.decoder(options.nbest)
    n_frames = max(1, round(options.chunk_ms / 1000 / utterances.config.options.frame_s))
    for source in sources:
        if isinstance(source, SottovoceError):
            yield source
            continue
        starts = range(0, len(source.values), n_frames)
        chunks = ([values[i : i + n_frames] for values in source.networks] for i in starts)
        try:
            for update in decoder.stream(chunks):
                yield _update_lines(source.name, update)
        except InputError as error:
            yield InputError(f"{source.name}: {error}")


def _together(decode: Decode, sources: Sequence[EmissionSource]) -> Iterator[Lines | SottovoceError]:
    if len({(source.values.shape[1], len(source.networks)) for source in sources}) == 1 < len(sources):
        try:
            lists = _decode(decode, sources)
        except InputError:  # which one it is shows below
            pass
        else:
            yield from (
                _lines(source.name, hypotheses) for source, hypotheses in zip(sources, lists, strict=True)
            )
            return
    for source in sources:
        try:
            yield _lines(source.name, _decode(decode, [source])[0])
        except InputError as error:
            yield InputError(f"{source.name}: {error}")


def _decode(decode: Decode, sources: Sequence[EmissionSource]) -> list[list[Hypothesis]]:
    from sottovoce.ctc.emissions import batch_of

    networks = [batch_of(rows)[0] for rows in zip(*(source.networks for source in sources), strict=True)]
    return decode(networks, [len(source.values) for source in sources])


class RememberedWords:
    """Caches the scores of a neural model, which do not depend on the weights."""

    def __init__(self, model: WordLanguageModel) -> None:
        self._model = model
        self._words: dict[tuple[History, str], float] = {}
        self._ends: dict[History, float] = {}

    def score_words(self, pairs: Sequence[tuple[History, str]]) -> Mapping[tuple[History, str], float]:
        new = [pair for pair in pairs if pair not in self._words]
        self._words.update(self._model.score_words(new) if new else {})
        return {pair: self._words[pair] for pair in pairs}

    def score_ends(self, histories: Sequence[History]) -> Mapping[History, float]:
        new = [history for history in histories if history not in self._ends]
        self._ends.update(self._model.score_ends(new) if new else {})
        return {history: self._ends[history] for history in histories}


def tunable(config: DecoderConfig, documents: Sequence[Path]) -> tuple[str, ...]:
    """Return the weights that have an effect."""
    has_unknown = config.lexicon is None if config.unknown_words is None else config.unknown_words
    has_hotwords = bool(config.hotwords or documents)
    applies = {
        "acoustic_scale": bool(config.lm or config.label_lm or config.neural_lm) or has_hotwords,
        "blank_penalty": True,
        "lm_weight": isinstance(config.lm, Path),
        "label_lm_weight": config.label_lm is not None,
        "word_score": True,
        "unknown_score": has_unknown and bool(config.lm or config.lexicon),
        "neural_weight": config.neural_lm is not None,
        "lm_kept": bool(config.neural_lm and config.lm),
        "hotword_weight": has_hotwords,
    }
    return tuple(name for name, does in applies.items() if does)


def tuned(
    utterances: Utterances,
    rows: Sequence[TuningRow],
    ranges: Mapping[str, Range],
    options: TuneOptions,
    *,
    progress: Callable[[], None],
) -> tuple[Weights, dict[str, object]]:
    """Choose weights by word errors. Return also the line that reports them. Raises: InputError.

    progress: called after each decoding of the set.
    """
    import numpy as np

    from sottovoce.ctc import load_ngram
    from sottovoce.ctc.models import causal_words
    from sottovoce.ctc.tuning import folds_of, tune
    from sottovoce.evaluation.scores import ErrorCounts, ScoreOptions, count_edits, error_rate
    from sottovoce.text.normalize import composed

    sources = [_only(row.path, utterances.of(row.path)) for row in rows]
    utterances, _ = utterances.with_blank(iter(sources))
    references = [composed(row.text).split() for row in rows]
    config, fusion = utterances.config, utterances.config.fusion
    lm: Ngrams | None = None
    if isinstance(config.lm, Path):
        lm = load_ngram(config.lm)
    elif config.lm is not None:
        lm = [(load_ngram(name), weight) for name, weight in config.lm.items()]
    lexicon = None
    neural_lm = None
    if config.neural_lm is not None:
        neural_lm = RememberedWords(causal_words(config.neural_lm, config.fusion))
    known: dict[tuple[float, ...], list[ErrorCounts]] = {}

    def errors(weights: Weights) -> Counts:
        nonlocal lexicon
        weighted = replace(utterances, config=changed(config, weights))
        decoder = weighted.decoder(1, lm, lexicon=lexicon, neural_lm=neural_lm)
        lexicon = decoder.lexicon  # spellings do not depend on weights
        texts = [composed(best[0].text if best else "") for best in _decode(decoder.decode, sources)]
        counts = [count_edits(wanted, text.split()) for wanted, text in zip(references, texts, strict=True)]
        known[tuple(weights.values())] = counts
        progress()
        return np.array([each.n_errors for each in counts], np.int64)

    values = {
        option.field: getattr(part, option.field)
        for part in (fusion, config.options)
        for option in options_of(type(part))
    }
    start = {name: values[name] for name in ranges}
    folds = folds_of([row.speaker for row in rows], options.folds)
    best = tune(errors, start, ranges, folds, n_decodings=options.decodings, seed=options.seed)
    before, after = (
        error_rate(known[tuple(each.values())], ScoreOptions()) for each in (start, best.weights)
    )
    held_out = None
    if best.held_out is not None:
        # The interval needs errors and sizes alone.
        pairs = zip(best.held_out.tolist(), map(len, references), strict=True)
        counts = [ErrorCounts(hits=size - n, substitutions=n) for n, size in pairs]
        held_out = error_rate(counts, ScoreOptions())
    return best.weights, {
        "wer": _rounded(after.rate),
        "before": _rounded(before.rate),
        "held_out": held_out and _rounded(held_out.rate),
        "interval": held_out and [_rounded(held_out.low), _rounded(held_out.high)],
        **best.weights,
        "decodings": best.n_decodings,
    }


def _only(path: Path, sources: Iterator[EmissionSource]) -> EmissionSource:
    listed = list(itertools.islice(sources, 2))
    if len(listed) != 1:
        raise InputError(f"{path}: expected one utterance, got {'several' if listed else 'none'}")
    return listed[0]


class TuningRow(NamedTuple):
    path: Path
    text: str
    speaker: str


def listed(manifest: Path) -> list[TuningRow]:
    """Read a development set. Raises: ManifestError."""
    rows: list[TuningRow] = []
    for number, line in enumerate(read_lines(manifest, "JSON lines", ManifestError), 1):
        if not line.strip():
            continue
        causes = (ValueError, KeyError, AttributeError)
        with expecting(
            f"{manifest}, line {number}", "JSON with 'emissions' and 'text'", ManifestError, causes
        ):
            row = json.loads(line)
            path = manifest.parent / str(row.get("emissions") or row["file"])
            rows.append(TuningRow(path, str(row["text"]), str(row.get("speaker") or f"line {number}")))
    if not rows:
        raise ManifestError(f"{manifest}: expected at least one utterance, got none")
    return rows
