"""Options of speaker diarization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, Protocol, TypeAlias

from sottovoce.errors import OptionError
from sottovoce.options.schema import Option, check_options
from sottovoce.types import Samples, Turn

Engine: TypeAlias = Literal["own", "pyannote"]
VoiceName: TypeAlias = Literal["ge2e", "campplus"]
_bound = partial(Option, group="Speakers", cli_default=None, metavar="N", least=1)


class Diarizer(Protocol):
    """Finds the speaker turns of a recording."""

    @property
    def turns(self) -> Callable[..., list[Turn]]:
        """Return the turns of an `audio.recording.Recording` by start; speakers are A, B, … by appearance.

        Raises: AudioError.
        """
        ...


@dataclass(frozen=True, slots=True)
class SpeakerOptions:
    """Options of speaker diarization, chosen on development voices (docs/speakers.md).

    Raises: OptionError for values out of range.
    """

    n_speakers: int | None = Option(
        "Number of speakers.",
        unset="unknown",
        flag=None,
        least=1,
        called="speakers",
        expected="'auto' or at least 1",
    ).as_field(None)
    least: int = _bound("Smallest number that `auto` finds.", unset="1", key="min_speakers").as_field(1)
    most: int = _bound("Largest number that `auto` finds.", unset="10", key="max_speakers").as_field(10)
    engine: Engine = Option(
        "own, or pyannote's pipeline from the Hugging Face hub (extra `pyannote`).",
        group="Speakers",
        key="speaker_engine",
        choices=("own", "pyannote"),
        called="speakers",
        expected="the engine 'own' or 'pyannote'",
    ).as_field("own")
    voices: VoiceName = Option(
        "Network that compares voices; campplus is more accurate and five times as slow.",
        group="Speakers",
        key="speaker_voices",
        choices=("ge2e", "campplus"),
    ).as_field("ge2e")
    """For the engine "own"."""
    distance: float | None = Option(
        "Largest cosine distance (0 to 2) of two voices of one speaker.",
        unset="that of the network",
        flag=None,
    ).as_field(None)
    """Used if the number of speakers is unknown."""
    least_speech_s: float = Option(
        "Speakers with less speech in the whole recording are merged into others.",
        flag=None,
        least=0.0,
        expected="0 or more seconds",
    ).as_field(3.0)
    """Used if the number of speakers is unknown."""
    known: Mapping[str, Samples] = field(default_factory=dict, hash=False, compare=False)
    """Seconds of enrolment speech (n,) by name: voices within `distance` get the name (engine "own")."""

    def __post_init__(self) -> None:
        self._check_bounds()
        check_options(self)
        if self.voices != "ge2e" and self.engine != "own":
            raise OptionError(f"voices '{self.voices}': expected the engine 'own', got '{self.engine}'")
        if self.distance is not None and not 0 < self.distance < 2:
            raise OptionError(f"distance of voices: expected between 0 and 2, got {self.distance}")
        if self.known and self.engine != "own":
            raise OptionError(f"known speakers: expected the engine 'own', got '{self.engine}'")

    def _check_bounds(self) -> None:
        if self.most < 1:
            raise OptionError(f"most speakers: expected at least 1, got {self.most}")
        if not 1 <= self.least <= self.most:
            raise OptionError(f"least speakers: expected 1 to {self.most}, the most, got {self.least}")
        if self.n_speakers is not None and 1 <= self.n_speakers < self.least:
            raise OptionError(f"speakers: expected at least {self.least}, the least, got {self.n_speakers}")


def check_speaker_names(names: Sequence[str], speakers: SpeakerOptions | Diarizer | None) -> None:
    """Check names of speakers.

    Raises: OptionError for a name that is empty, duplicate, not one line, or known, and for too many names.
    """
    for name in names:
        if not name.strip() or not name.isprintable():
            raise OptionError(f"speaker names: expected a name, got '{name}'")
        if names.count(name) > 1:
            raise OptionError(f"speaker names: expected different ones, got '{name}' twice")
    if not isinstance(speakers, SpeakerOptions):
        return
    for name in names:
        if name in speakers.known:
            raise OptionError(f"speaker_names: '{name}' is a known voice already")
    most = speakers.n_speakers or speakers.most
    if len(names) + len(speakers.known) > most:
        enrolled = f" beside {len(speakers.known)} known voices" if speakers.known else ""
        raise OptionError(
            f"speaker_names: expected at most {most}, as there are speakers, got {len(names)}{enrolled}"
        )
