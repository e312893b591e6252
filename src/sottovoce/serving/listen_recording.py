"""A transcript as Deepgram's API answers it. Knows no web framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import pairwise

from sottovoce.formats.document import Json, score, seconds
from sottovoce.formats.layout import SENTENCE_ENDS, ends_with
from sottovoce.serving.listen_items import alternative_of, model_info
from sottovoce.serving.listen_wish import ListenWish
from sottovoce.speakers.names import place_of
from sottovoce.types import Transcript, Word

PARAGRAPH_PAUSE_S = 1.0
"""Between sentences, from which another paragraph begins."""
MOST_SENTENCES = 5
"""Of a paragraph."""


def recording_document(
    transcript: Transcript, wish: ListenWish, request_id: str, sha256: str
) -> dict[str, Json]:
    """The document of a recording; sha256: of its bytes."""
    words = [
        replace(word, speaker=word.speaker or segment.speaker)
        for segment in transcript.segments
        for word in segment.words or ()
    ]
    alternative = alternative_of(words, wish)
    if wish.paragraphs:
        alternative["paragraphs"] = paragraphs_of(words, wish)
    channel: dict[str, Json] = {"alternatives": [alternative]}
    if len(wish.languages) != 1 and transcript.language:
        channel["detected_language"] = transcript.language
        if transcript.language_probability is not None:
            channel["language_confidence"] = score(transcript.language_probability)
    results: dict[str, Json] = {"channels": [channel]}
    if wish.utterances:
        parts = cut(words, lambda a, b: b.start - a.end >= wish.utt_split_s or a.speaker != b.speaker)
        results["utterances"] = [utterance(part, i, wish) for i, part in enumerate(parts)]
    name = wish.model or ""
    metadata: dict[str, Json] = {
        "transaction_key": "deprecated",
        "request_id": request_id,
        "sha256": sha256,
        "created": datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "duration": seconds(transcript.duration),
        "channels": 1,
        "models": [name],
        "model_info": {name: model_info(name)},
    }
    return {"metadata": metadata, "results": results}


def utterance(words: Sequence[Word], number: int, wish: ListenWish) -> dict[str, Json]:
    """One of `utterances`."""
    times = {"start": seconds(words[0].start), "end": seconds(words[-1].end), "channel": 0}
    document: dict[str, Json] = {**times, **alternative_of(words, wish), "id": str(number)}
    return {**document, **speaker_of(words, wish)}


def paragraphs_of(words: Sequence[Word], wish: ListenWish) -> dict[str, Json]:
    """`paragraphs`: sentences of one speaker, up to a pause or so many of them."""
    found: list[Json] = []
    texts: list[str] = []
    for sentences in paragraphs(words):
        own = [word for sentence in sentences for word in sentence]
        speaker = speaker_of(own, wish)
        said: list[Json] = [
            {"text": text_of(part), "start": seconds(part[0].start), "end": seconds(part[-1].end)}
            for part in sentences
        ]
        times = {"start": seconds(own[0].start), "end": seconds(own[-1].end)}
        found.append({"sentences": said, "num_words": len(own), **times, **speaker})
        before = f"Speaker {speaker['speaker']}: " if speaker else ""
        texts.append(before + " ".join(text_of(part) for part in sentences))
    return {"transcript": "\n" + "\n\n".join(texts) if texts else "", "paragraphs": found}


def paragraphs(words: Sequence[Word]) -> Iterator[list[Sequence[Word]]]:
    """Words by sentences, and those by paragraphs."""
    held: list[Sequence[Word]] = []
    for sentence in cut(words, lambda a, b: ends_with(a.word, SENTENCE_ENDS) or a.speaker != b.speaker):
        if held:
            last, first = held[-1][-1], sentence[0]
            is_apart = first.start - last.end >= PARAGRAPH_PAUSE_S or last.speaker != first.speaker
            if is_apart or len(held) == MOST_SENTENCES:
                yield held
                held = []
        held.append(sentence)
    if held:
        yield held


def cut(words: Sequence[Word], between: Callable[[Word, Word], bool]) -> Iterator[Sequence[Word]]:
    """Words in parts, cut wherever it is so between two of them."""
    ends = [i for i, (a, b) in enumerate(pairwise(words), start=1) if between(a, b)]
    borders = [0, *ends, len(words)]
    return (words[start:end] for start, end in pairwise(borders) if end > start)


def text_of(words: Sequence[Word]) -> str:
    """Words as they are written."""
    return "".join(word.word for word in words).strip()


def speaker_of(words: Sequence[Word], wish: ListenWish) -> dict[str, Json]:
    """`speaker`, where it is asked for and known."""
    name = words[0].speaker
    return {"speaker": place_of(name)} if wish.has_speakers and name is not None else {}
