"""Translation into English by Whisper's own task, sentence by sentence, beside what was said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sottovoce.api import Model
from sottovoce.audio.io import AudioSource
from sottovoce.errors import OptionError
from sottovoce.offline.options import TranscribeOptions
from sottovoce.translation.sentences import sentences
from sottovoce.types import Segment

TARGET = "en"


def check_own(model: Model) -> None:
    """Raises: OptionError for a model that cannot translate."""
    if not model.tokenizer.is_multilingual:
        raise OptionError(f"translation into 'en': {model.name} is an English-only model")


def with_english(
    model: Model, source: AudioSource, segments: Sequence[Segment], options: TranscribeOptions
) -> list[Segment]:
    """The sentences of a transcript with what the model hears as English in each; English stays as it is.

    source: the recording, read once more. options: those of the transcript; its parts are set here.
    Raises: AudioError; OptionError for a model that cannot translate.
    """
    check_own(model)
    whole = list(sentences(segments))
    foreign = [one for one in whole if one.language != TARGET and one.end > one.start and one.text.strip()]
    found: dict[int, str] = {}
    for language in dict.fromkeys(one.language for one in foreign):
        own = [one for one in foreign if one.language == language]
        found |= _translated(model, source, own, language, options)
    return [
        replace(one, translation=found.get(one.id, one.text).strip() if one.text.strip() else None)
        for one in whole
    ]


def _translated(
    model: Model, source: AudioSource, own: Sequence[Segment], language: str, options: TranscribeOptions
) -> dict[int, str]:
    """English by the id of the sentence it belongs to: the one whose middle is nearest."""
    chosen = replace(
        options,
        mode="seek",
        vad=None,
        batch_size=1,
        clip_timestamps=tuple(time for one in _apart(own) for time in one),
        offset_s=0.0,
        duration_s=None,
        initial_prompt=None,
        carry_initial_prompt=False,
        word_timestamps=False,
        word_threshold=0.0,
        hallucination_silence_threshold=None,
        condition_on_previous_text=False,
    )
    found: dict[int, str] = {}
    for segment in model.transcribe(source, language=language, task="translate", options=chosen):
        middle = (segment.start + segment.end) / 2
        nearest = min(own, key=lambda one: max(one.start - middle, middle - one.end))
        found[nearest.id] = found.get(nearest.id, "") + segment.text
    return found


def _apart(own: Sequence[Segment]) -> list[tuple[float, float]]:
    """Start and end of each sentence, none before the end of the one before."""
    spans: list[tuple[float, float]] = []
    for one in own:
        start = max(one.start, spans[-1][1] if spans else 0.0)
        if one.end > start:
            spans.append((start, one.end))
    return spans
