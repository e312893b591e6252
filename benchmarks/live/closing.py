"""The closing read of utterances in several ways, and the file's reading: where its errors come from.

A session runs as usual. At each end of an utterance the closing read is repeated in every way of `WAYS`, from
the same audio and the same committed words. A way's text is what the session committed earlier, and then
the words of that way.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarks.harness.report import apart, percent, show_table
from benchmarks.live.counts import beside, error_rate, errors
from benchmarks.live.runs import Bench, Item, Setting, add_clips, chosen, counted, run_command, settings
from sottovoce.api import Model
from sottovoce.backends.base import EXACT, EncoderMode, IncrementalWindow
from sottovoce.decoding.decode import decode_with_fallback, finish
from sottovoce.evaluation.latency import run_live
from sottovoce.options.decoding import DecodingOptions
from sottovoce.options.fallback import FallbackOptions
from sottovoce.streaming.alignatt import AlignAttRequest
from sottovoce.streaming.utterance_decoder import SingleLanguage, UtteranceDecoder
from sottovoce.text.word_edits import align_words
from sottovoce.types import EncoderOutput, Word

ANEW = (
    ("anew, no timestamps", True, None),
    ("anew, timestamps", False, None),
    ("anew, timestamps, beam 5", False, 5),
)
"""Ways that do not read on from the committed words: as a file's window is read. Name, options."""
HELP = """Words wrong of live sessions whose closing reads are done in several ways."""


class Closings:
    """Reads again what a session reads last. found: of each end of an utterance, the text of each way."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.found: list[dict[str, Any]] = []

    def read(self, decoder: UtteranceDecoder, until_sample: int, *, is_last: bool) -> dict[str, str] | None:
        strategy, utterance = decoder.strategy, decoder.utterance
        assert isinstance(strategy, SingleLanguage)
        mels = copy.deepcopy(utterance._mels)
        log_mel = mels.frames(final=is_last, until_sample=until_sample)
        if log_mel.shape[1] < 2:
            return None
        prefix = utterance.prefix(strategy.language)
        committed = self._model.tokenizer.decode(prefix.committed)
        thin = self._encode(log_mel, decoder._mode.whole())
        full = self._encode(log_mel, EXACT)
        rules = strategy.policy.stop_rules(decoder.undecoded_s(log_mel.shape[1] / 100), final=True)
        tokenizer = self._model.tokenizer.with_language(strategy.language)

        def on(encoded: EncoderOutput, beam_size: int = 1) -> str:
            reader = replace(strategy._decoder, beam_size=beam_size)
            (one,) = reader.decode([encoded], [AlignAttRequest(prefix, rules)])
            return tokenizer.decode(one.tokens)

        denser = replace(decoder._mode.whole(), stride=8)
        ways = {
            "thin": on(thin),
            "thin, beam 5": on(thin, 5),
            "stride 8": on(self._encode(log_mel, denser)),
            "full": on(full),
            "full, beam 5": on(full, 5),
        }
        for name, without_timestamps, beam_size in ANEW:
            options = DecodingOptions(
                language=strategy.language,
                without_timestamps=without_timestamps,
                beam_size=beam_size,
                prompt=tuple(prefix.tokens[1 : prefix.sot]) or None,
            )
            steps = decode_with_fallback(self._model.backend, tokenizer, full, [options], FallbackOptions())
            (attempt,) = finish(steps)
            ways[name] = rest(committed, attempt.result.text)
        return ways

    def _encode(self, log_mel: Any, mode: EncoderMode) -> EncoderOutput:
        (result,) = self._model.backend.encode_incremental([IncrementalWindow(log_mel, mode, None)])
        return replace(result.encoded, n_content_frames=(log_mel.shape[1] // 2,))

    @contextmanager
    def watching(self) -> Iterator[None]:
        flush = UtteranceDecoder.flush

        def watched(decoder: UtteranceDecoder, until_sample: int, *, is_last: bool = False) -> Any:
            ways = self.read(decoder, until_sample, is_last=is_last)
            emitted: list[str] = []
            on_words = decoder._on_words

            def noted(words: Sequence[Word], language: str) -> None:
                emitted.extend(word.word for word in words)
                on_words(words, language)

            decoder._on_words = noted
            yield from flush(decoder, until_sample, is_last=is_last)
            decoder._on_words = on_words
            if ways is not None:
                self.found.append({"words": emitted, "ways": ways})

        UtteranceDecoder.flush = watched  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            UtteranceDecoder.flush = flush  # type: ignore[method-assign]


def rest(committed: str, text: str) -> str:
    """The words of a text after the committed ones, which may differ from its own."""
    said, words = committed.split(), text.split()
    plain = [["".join(filter(str.isalnum, word)).lower() for word in some] for some in (said, words)]
    at = 0
    for i, j in align_words(*plain):
        if i is not None and j is not None:
            at = j + 1
    return "".join(f" {word}" for word in words[at:])


def run_clip(bench: Bench, setting: Setting, item: Item) -> dict[str, Any]:
    model = bench.model(setting.model, setting.dtype)
    closings = Closings(model)
    with closings.watching():
        live = run_live(bench.session(setting, item), item.samples(), chunk_s=setting.chunk_s)
    words = [word.word for word in live.words]
    files = {
        name: model.transcribe(item.samples(), language=item.language, beam_size=beam_size).collect().text
        for name, beam_size in (("file", None), ("file, beam 5", 5))
    }
    return {"words": words, "files": files, "closings": closings.found}


def text_of(found: dict[str, Any], way: str) -> str:
    """The session's text with the last words of each utterance read another way."""
    if way in found["files"]:
        return str(found["files"][way])
    words, at, text = found["words"], 0, ""
    for closing in found["closings"]:
        last, begin = closing["words"], at
        while words[begin : begin + len(last)] != last:
            begin += 1
        text += "".join(words[at:begin])
        text += closing["ways"].get(way, "".join(last))
        at = begin + len(last)
    return (text + "".join(words[at:])).strip()


WAYS = (
    *("file", "file, beam 5", "session", "thin", "thin, beam 5", "stride 8", "full", "full, beam 5"),
    *(name for name, _, _ in ANEW),
)


def run(given: argparse.Namespace) -> None:
    bench = Bench(given.log)
    items = chosen(given)
    for setting in settings(given):
        key = json.dumps({"closing": setting.key})
        found = []
        for item in counted(items, setting.name):
            one = given.log.get(key, item.name)
            if one is None:
                one = run_clip(bench, setting, item)
                given.log.add(key, item.name, one)
            found.append(one)
        show(setting.name, items, found)


def show(name: str, items: Sequence[Item], found: Sequence[dict[str, Any]]) -> None:
    texts = {way: [text_of(one, way) for one in found] for way in WAYS}
    rows = []
    for way, some in texts.items():
        against = "" if way == "file" else apart(beside(items, texts["file"], some))
        session = "" if way == "file" else apart(beside(items, texts["session"], some))
        rows.append([way, percent(error_rate(items, some)), against, session])
    n_words = sum(errors(item, "").n_reference for item in items)
    show_table(
        [f"{name}, {len(items)} clips, {n_words} words", "errors", "over the file", "over the session"], rows
    )


def main() -> None:
    run_command(HELP, add_clips, run)
