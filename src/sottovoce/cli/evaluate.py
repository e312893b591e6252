"""`sottovoce eval`: measurements over a manifest. Imports nothing heavy, so that `--help` is fast."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from sottovoce.cli.flags import Given, flag, given_as, read_list
from sottovoce.cli.options import MODEL, ModelOptions, open_model
from sottovoce.formats.output import writable_folder
from sottovoce.options.live import Switching
from sottovoce.options.schema import Option
from sottovoce.text.languages import LanguageChoice

if TYPE_CHECKING:
    from sottovoce.api import Model

SET = (
    Option("Number of recordings to use, spread over the list.", key="limit", kind="integer", least=1),
    Option(
        "Languages to choose from; recordings in others are skipped.",
        key="languages",
        default="auto",
        metavar="auto|CODE[,CODE…]",
    ),
)
LIVE = (
    Option("Audio between two updates.", key="chunk_ms", kind="integer", default=250, least=10),
    Option(
        "Most seconds of audio that are kept.",
        key="audio_max_len",
        kind="number",
        default=30.0,
        least=1.0,
        most=30.0,
    ),
)
PROBE = (
    Option("Window widths of the probe in seconds.", key="widths", default="0.5,1,1.5,2,3,5"),
    Option("Noise recording to mix in. Repeatable.", key="noise", many=True, metavar="FILE"),
    Option("Signal-to-noise ratio in dB.", key="snr_db", kind="number", default=10.0),
)
SWITCHING = (
    Option(
        "How changes of language are followed. `parallel` means `restart`.",
        key="switching",
        kind="choice",
        default="restart",
        choices=("restart", "parallel"),
        metavar="[restart]",
    ),
    Option("Folder for pictures of the timelines.", key="plots", metavar="DIRECTORY"),
)
THRESHOLDS = (
    Option(
        "Distances from the end of the audio within which words wait, in 20 ms frames.",
        key="frame_thresholds",
        default="10,25,50,100",
    ),
)
Decorated = TypeVar("Decorated", bound=Callable[..., object])


@click.group("eval")
def evaluate() -> None:
    """Measure a model over a manifest (JSON lines: file, language, text, segments)."""


def with_options(*groups: Sequence[Option]) -> Callable[[Decorated], Decorated]:
    def decorate(command: Decorated) -> Decorated:
        for option in reversed([option for group in groups for option in group]):
            command = flag(option)(command)
        return click.argument("manifest", type=click.Path(dir_okay=False))(command)

    return decorate


def set_up(given: Given, languages: str) -> tuple[Model, tuple[str, ...]]:
    model = open_model(given_as(ModelOptions, given))
    choice = LanguageChoice.parse(languages, model.languages)
    return model, (choice.fixed,) if choice.fixed else choice.allowed or model.languages


def say(document: Mapping[str, object]) -> None:
    click.echo(json.dumps(document, ensure_ascii=False, indent=1))


@evaluate.command()
@with_options(MODEL, SET)
def wer(manifest: str, limit: int | None, languages: str, **given: object) -> None:
    """Measure word, character and mixed error rates of offline transcripts."""
    from sottovoce.cli.measures import chosen_entries, error_rates

    model, allowed = set_up(given, languages)
    entries = chosen_entries(manifest, limit, allowed, spoken=True)
    say({"model": model.name, **error_rates(model, entries, allowed)})


@evaluate.command()
@with_options(MODEL, SET, PROBE)
def language(
    manifest: str,
    limit: int | None,
    languages: str,
    widths: str,
    noise: tuple[str, ...],
    snr_db: float,
    **given: object,
) -> None:
    """Measure the language accuracy of the probe for each window width, on recordings in one language."""
    from sottovoce.audio.io import load_audio
    from sottovoce.cli.measures import chosen_entries, language_accuracy

    model, allowed = set_up(given, languages)
    entries = chosen_entries(manifest, limit, allowed, single=True)
    widths_s = read_list("numbers", "--widths", widths)
    noises = [load_audio(path) for path in noise]
    rows = language_accuracy(model, entries, allowed, widths=widths_s, noises=noises, snr_db=snr_db)
    n_recordings, snr = len(entries), snr_db if noises else None
    say({"model": model.name, "n_recordings": n_recordings, "snr_db": snr, "widths": rows})


@evaluate.command()
@with_options(MODEL, SET, LIVE, SWITCHING)
def switching(
    manifest: str,
    limit: int | None,
    languages: str,
    chunk_ms: int,
    audio_max_len: float,
    switching: Switching,
    plots: str | None,
    **given: object,
) -> None:
    """Measure change points, delays, false switches and mixed error rates of live sessions."""
    from sottovoce.cli.measures import chosen_entries, stream_options, switch_scores
    from sottovoce.options.live import without_parallel
    from sottovoce.pictures import require_plots

    if plots:
        require_plots()
        writable_folder(Path(plots))
    model, allowed = set_up(given, languages)
    entries = chosen_entries(manifest, limit, allowed)
    mode = without_parallel(switching)
    found = switch_scores(model, entries, allowed, stream_options(chunk_ms, audio_max_len), mode, plots)
    say({"model": model.name, "mode": mode, **found})


@evaluate.command()
@with_options(MODEL, SET, LIVE, THRESHOLDS)
def latency(
    manifest: str,
    limit: int | None,
    languages: str,
    chunk_ms: int,
    audio_max_len: float,
    frame_thresholds: str,
    **given: object,
) -> None:
    """Measure errors and latency of live sessions for each frame threshold; the language is given."""
    from sottovoce.cli.measures import chosen_entries, latency_by_threshold, stream_options

    model, allowed = set_up(given, languages)
    entries = chosen_entries(manifest, limit, allowed, spoken=True, single=True)
    thresholds = read_list("numbers", "--frame-thresholds", frame_thresholds)
    stream = stream_options(chunk_ms, audio_max_len)
    found = latency_by_threshold(model, entries, allowed, thresholds, stream)
    say({"model": model.name, "n_recordings": len(entries), "chunk_ms": chunk_ms, **found})
