"""Language models of a CTC decoder: spelling of words and phrases in labels, and fusion.

A phrase is spelled in its own letters, else in lower or upper case, then with simpler signs: hyphens become
spaces or nothing, other signs are dropped, accents last.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from sottovoce.ctc.labels import PIECE_START, Labels
from sottovoce.ctc.options import Case, CtcFusionOptions
from sottovoce.ctc.search import IMPOSSIBLE, PrefixScorer, WeightedModel
from sottovoce.errors import LanguageModelError, MissingExtraError, OptionError, SottovoceError
from sottovoce.lm.base import LanguageModel, WordModel
from sottovoce.lm.boosting import (
    Edges,
    ListedPhrase,
    Phrase,
    PhraseBooster,
    WholeWordBooster,
    usable,
    word_counter,
)
from sottovoce.lm.lexicon import Entries, Lexicon, listed_spellings, read_lexicon
from sottovoce.lm.ngram import load_ngram
from sottovoce.text.normalize import composed, forms_of, ids_by_form, is_composed, letter_spellings

if TYPE_CHECKING:
    from sottovoce.lm.neural import CausalWordModel

MOST_SPELLINGS = 8
"""Most label sequences of a phrase; the first has the longest labels, the others are the shortest."""
_SIGNS = str.maketrans({"’": "'", "ʼ": "'", "‐": "-", "‑": "-", "–": "-", "—": "-", "“": '"', "”": '"'})

_CASES: Mapping[Case, Callable[[str], str]] = {"keep": str, "lower": str.lower, "upper": str.upper}

WeightedWords = Sequence[tuple[WordModel, float]]
"""N-gram models with their weights."""
Ngrams = str | Path | WordModel | Mapping[str, float] | Sequence[tuple[str | Path | WordModel, float]]
"""An n-gram model or its file, or several with their weights."""
Pronunciations = Mapping[str, Sequence[tuple[int, ...]]]


def weighted_ngrams(given: Ngrams | None, *, default_weight: float) -> list[tuple[WordModel, float]]:
    """Load n-gram models. Raises: LanguageModelError; OptionError: not pairs of models and numbers."""
    if given is None:
        return []
    if isinstance(given, str | Path | WordModel):
        return [(load_ngram(given), default_weight)]
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        return [(load_ngram(model), float(weight)) for model, weight in pairs]
    except (TypeError, ValueError) as error:
        if isinstance(error, SottovoceError):
            raise
        raise OptionError(f"lm: expected models with their weights, got {given!r:.80}") from error


def causal_words(name: str, fusion: CtcFusionOptions, device: str = "cpu") -> CausalWordModel:
    """Load a causal model of Hugging Face. Raises: MissingExtraError; others as `CausalWordModel.load`."""
    from sottovoce.models.devices import choose_device, has_torch

    if not has_torch():
        raise MissingExtraError("torch", "neural-lm", f"the language model {name}")
    from sottovoce.lm.neural import CausalWordModel

    return CausalWordModel.load(
        name, device=choose_device(device), dtype=fusion.neural_dtype, cache_mb=fusion.neural_cache_mb
    )


class PhraseSpeller:
    """Spells phrases in labels: words of `pronunciations` by these, others in letters."""

    def __init__(
        self, labels: Labels, case: Case = "keep", pronunciations: Pronunciations | None = None
    ) -> None:
        self.labels = labels
        self.pronunciations = pronunciations or {}
        self._case = _CASES[case]
        ids = ids_by_form(labels.names).items()
        self._ids = {name: i for name, i in ids if name and i != labels.blank}
        self._characters = frozenset("".join(self._ids))
        self._longest = max(map(len, self._ids), default=1)

    def boosted(self, phrases: Sequence[ListedPhrase]) -> list[Phrase]:
        """Spell phrases in every way, with the same total weight; faulty ones are warnings."""
        spelled: list[Phrase] = []
        for phrase, ways in usable(phrases, lambda phrase: self.spellings(phrase.text)):
            spelled += (Phrase(way, phrase.weight * len(ways[0]) / max(len(way), 1)) for way in ways)
        return spelled

    def spellings(self, text: str) -> list[tuple[int, ...]]:
        """Return the label sequences that spell a phrase, at most `MOST_SPELLINGS`.

        Raises:
            LanguageModelError: the labels cannot spell the text.
        """
        if not self.labels.has_words and (" " in text or self.cased(text) in self._ids):
            return [self._symbols(text)]
        if not self.pronunciations:
            return self._lettered(text)
        between = () if self.labels.separator is None else (self.labels.separator,)
        ways: list[list[tuple[int, ...]]] = []
        for word in text.split():
            form = self.form_among(word, self.pronunciations)
            ways.append(self._lettered(word) if form is None else list(self.pronunciations[form]))
        spelled: dict[tuple[int, ...], None] = {}
        for parts in itertools.islice(itertools.product(*ways), MOST_SPELLINGS):
            apart = [(*between, *part) for part in parts]
            spelled[tuple(itertools.chain.from_iterable(apart))[len(between) :]] = None
        return list(spelled)

    def letters(self, text: str) -> tuple[int, ...]:
        """Return the labels that spell a text less the letters that no label has."""
        known = (next((form for form in self.folded(each) if form in self._characters), "") for each in text)
        spelled = "".join(known)
        return next(iter(self.segmentations(spelled)), ()) if spelled else ()

    def cased(self, text: str) -> str:
        return composed(self._case(text))

    def form_among(self, word: str, words: Collection[str | None]) -> str | None:
        """Return the form of a word that is among words, or None."""
        return next((form for form in self.folded(word) if form in words), None)

    def folded(self, text: str) -> tuple[str, str, str, str]:
        """Return a text in its own case, in that of the option, in lower and in upper case."""
        cased = self.cased(text)
        return text, cased, composed(cased.lower()), composed(cased.upper())

    def _lettered(self, text: str) -> list[tuple[int, ...]]:
        for written in _forms(text):
            for cased in zip(*(self.folded(each)[1:] for each in written), strict=True):
                forms = [form for each in cased for form in forms_of(each, self._characters)]
                spelled = [way for form in forms for way in self.segmentations(form)]
                if spelled:
                    return list(dict.fromkeys(spelled))[:MOST_SPELLINGS]
        marked = self._marked(self.cased(text))
        unspelled = (each for each in marked if not self._characters & set(self.folded(each)))
        place = next(unspelled, marked[:1])
        space = PIECE_START if self.labels.has_pieces else " "
        hint = "write numbers in words" if place.isdigit() else f"space is {space!r}"
        raise LanguageModelError(
            f"hotwords: expected text that the labels can spell, got {text!r} at {place!r} ({hint})"
        )

    def _marked(self, text: str) -> str:
        if self.labels.has_pieces:
            return PIECE_START + text.replace(" ", PIECE_START)
        if self.labels.separator is not None:
            return text.replace(" ", self.labels.names[self.labels.separator])
        return text

    def segmentations(self, text: str) -> list[tuple[int, ...]]:
        """Return the label sequences that spell a text, at most `MOST_SPELLINGS`."""
        marked = self._marked(text)
        if self._longest == 1:
            ids = tuple(self._ids.get(letter, -1) for letter in marked)
            return [] if -1 in ids else [ids]
        greedy = self._longest_labels(marked)
        ways: list[list[tuple[int, ...]]] = [[()]]
        for end in range(1, len(marked) + 1):
            here = [
                (*way, self._ids[marked[start:end]])
                for start in range(max(0, end - self._longest), end)
                if marked[start:end] in self._ids
                for way in ways[start]
            ]
            ways.append(sorted(here, key=len)[:MOST_SPELLINGS])
        return list(dict.fromkeys([*([] if greedy is None else [greedy]), *ways[-1]]))

    def _longest_labels(self, text: str) -> tuple[int, ...] | None:
        tokens: list[int] = []
        place = 0
        while place < len(text):
            sizes = range(min(self._longest, len(text) - place), 0, -1)
            size = next((n for n in sizes if text[place : place + n] in self._ids), 0)
            if not size:
                return None
            tokens.append(self._ids[text[place : place + size]])
            place += size
        return tuple(tokens)

    def _symbols(self, text: str) -> tuple[int, ...]:
        unknown = [symbol for symbol in text.split() if symbol not in self._ids]
        if unknown:
            raise LanguageModelError(f"hotwords: expected labels separated by spaces, got {unknown[0]!r}")
        return tuple(self._ids[symbol] for symbol in text.split())


def _forms(text: str) -> Iterator[tuple[str, ...]]:
    yield (text,)
    straight = text.translate(_SIGNS)
    yield (straight,)
    apart = tuple(" ".join(straight.replace("-", sign).split()) for sign in (" ", ""))
    yield apart
    yield _each(apart, lambda letter: letter.isalnum() or letter.isspace())
    bare = tuple(unicodedata.normalize("NFKD", form) for form in apart)
    yield _each(bare, lambda letter: letter.isalnum() or letter.isspace())


def _each(texts: Sequence[str], may_stay: Callable[[str], bool]) -> tuple[str, ...]:
    stripped = ("".join(filter(may_stay, text)).strip() for text in texts)
    return tuple(text for text in stripped if text)


class ScoredPart(NamedTuple):
    """A model of a search. ids: the model's id of each word of the lexicon, or of each label."""

    kind: Literal["ngram", "hotword"]
    model: LanguageModel
    ids: Sequence[int]
    weight: float
    over_words: bool


_SPACE_NAMES = (" ", "|", "<space>", PIECE_START)
SPECIAL_WORDS = {"<s>", "</s>", "<unk>", "<UNK>"}


class DecoderParts:
    def __init__(self, labels: Labels, options: CtcFusionOptions) -> None:
        self.labels = labels
        self.options = options
        self.scored: list[ScoredPart] = []
        """The models of the scorer."""

    @cached_property
    def _speller(self) -> PhraseSpeller:
        return PhraseSpeller(self.labels, self.options.case)

    def scorer(
        self,
        models: WeightedWords,
        lexicon: str | Path | Entries | Lexicon | None,
        phrases: list[ListedPhrase],
        unknown_words: bool | None,
        label_model: WordModel | None = None,
    ) -> tuple[PrefixScorer | None, Lexicon | None]:
        """Fuse models, lexicon and phrases; return the scorer and the lexicon, or None.

        Raises:
            OptionError: parts that do not fit together.
            LanguageModelError: words or phrases that the labels cannot spell.
        """
        if models and label_model is not None and self.options.level == "token":
            raise OptionError("lm: expected a model over words beside label_lm, got level 'token'")
        over_labels = [] if label_model is None else [(label_model, self.options.label_lm_weight)]
        if label_model is None and (lexicon is None or self.options.level == "token"):
            over_labels = [each for each in models if self._is_over_labels(each[0])]
            models = [each for each in models if each not in over_labels]
        if lexicon is None and not models:
            if unknown_words is False:
                raise OptionError("unknown_words: expected a lexicon or an lm over words, got neither")
            tokens = self._token_models(over_labels, phrases, counts_words=True)
            return (PrefixScorer(len(self.labels), tokens) if tokens else None), None
        words, phrases = self._lexicon(models, lexicon, phrases, unknown_words)
        # Homophones have the same labels: only the words are boosted then.
        boosts_words = bool(phrases) and (not self.labels.has_words or words.n_homophones > 1)
        word_models: list[WeightedModel] = []
        unigrams = np.zeros(len(words.words), np.float32)
        for model, weight in models:
            self._check_words(model, words.words)
            ids = np.array(model.ids(["<unk>" if word is None else word for word in words.words]))
            word_models.append((model.automaton().over(ids), weight))
            self.scored.append(ScoredPart("ngram", model, ids.tolist(), weight, over_words=True))
            if self.options.look_ahead:
                # A word that is impossible alone may be possible after others.
                alone = model.score(model.null_context(len(ids)), ids)[0].clip(min=IMPOSSIBLE)
                unigrams += alone * np.float32(weight)
        if boosts_words:
            booster = self._word_booster(phrases, words)
            word_models.append((booster.automaton(), 1.0))
            every = range(len(words.words))
            self.scored.append(ScoredPart("hotword", booster, every, 1.0, over_words=True))
        scorer = PrefixScorer(
            len(self.labels),
            self._token_models(over_labels, [] if boosts_words else phrases, lexicon=words),
            lexicon=words,
            words=word_models,
            word_score=self.options.word_score,
            unknown_score=self.options.unknown_score,
            unigrams=unigrams if models and self.options.look_ahead else None,
        )
        return scorer, words

    def _check_words(self, model: WordModel, words: Sequence[str | None]) -> None:
        """Raise LanguageModelError for a model to which every word is unknown."""
        known = (word for word in words if word is not None and word in model)
        if next(known, None) is None:
            some = [word for word in model.vocabulary if word not in SPECIAL_WORDS][:3]
            hint = "is it one over labels (label_lm)" if self._has_labels(model) else "is the case the same"
            raise LanguageModelError(
                f"lm: expected a model that knows words of the lexicon, such as {words[0]!r}, got one of "
                f"{', '.join(map(repr, some)) or 'no words'}; {hint}?"
            )

    def _check_labels(self, model: WordModel, names: Sequence[str]) -> None:
        """Raise LanguageModelError for a model to which every label is unknown."""
        if not any(name in model for name in names):
            offset, some = self.options.token_offset, ", ".join(map(repr, names[:3]))
            expected = f"labels such as {some}" if offset is None else f"words chr(label + {offset})"
            raise LanguageModelError(f"lm: expected {expected}, got none of them")

    def _has_labels(self, model: WordModel) -> bool:
        """Return whether nearly all words of a model are labels."""
        names = [self._label_name(i, model) for i in range(len(self.labels)) if i != self.labels.blank]
        vocabulary = set(map(composed, model.vocabulary)) - SPECIAL_WORDS
        return len(vocabulary & set(map(composed, names))) >= 0.9 * len(vocabulary)

    def _is_over_labels(self, model: WordModel) -> bool:
        if self.options.token_offset is not None:
            return True
        return self._has_labels(model) if self.options.level == "auto" else self.options.level == "token"

    def _label_name(self, label: int, model: WordModel) -> str:
        if self.options.token_offset is not None:
            name = chr(label + self.options.token_offset)
            # A symbol without a meaning: the model may not take it for its equivalent character.
            return name if is_composed(name) or name in model.vocabulary else "<unk>"
        if label != self.labels.separator:
            return self.labels.names[label]
        written = self.labels.names[label]
        names = (name for name in _SPACE_NAMES if name == written or name not in self.labels.names)
        return next((name for name in names if name in model), written)

    def _token_models(
        self,
        weighted: Sequence[tuple[WordModel, float]],
        phrases: list[ListedPhrase],
        *,
        counts_words: bool = False,
        lexicon: Lexicon | None = None,
    ) -> list[WeightedModel]:
        models: list[WeightedModel] = []
        for model, weight in weighted:
            names = [self._label_name(i, model) for i in range(len(self.labels))]
            self._check_labels(model, [name for i, name in enumerate(names) if i != self.labels.blank])
            ids = model.ids(names)
            models.append((model.automaton().over(np.array(ids)), weight))
            self.scored.append(ScoredPart("ngram", model, ids, weight, over_words=False))
        if phrases:
            booster = self._label_booster(phrases, lexicon)
            models.append((booster.automaton(), 1.0))
            every = range(len(self.labels))
            self.scored.append(ScoredPart("hotword", booster, every, 1.0, over_words=False))
        if counts_words and self.options.word_score:
            edges = {"separators": self.labels.separators, "starts": self.labels.word_starts}
            models.append((word_counter(self.options.word_score, **edges), 1.0))
        return models

    def _label_booster(
        self, phrases: Sequence[ListedPhrase], lexicon: Lexicon | None
    ) -> PhraseBooster | WholeWordBooster:
        labels, speller = self.labels, self._speller
        if lexicon is not None:
            words = {form for each in phrases for word in each.text.split() for form in speller.folded(word)}
            speller = PhraseSpeller(labels, self.options.case, lexicon.spellings_of(words))
        spelled = speller.boosted(phrases)
        if not labels.has_pieces:
            return PhraseBooster(spelled, len(labels), boundary=labels.separator)
        before = np.array(labels.word_starts) | np.array(labels.separators)
        return WholeWordBooster(spelled, Edges(before, np.zeros_like(before)))

    def _lexicon(
        self,
        models: WeightedWords,
        lexicon: str | Path | Entries | Lexicon | None,
        phrases: list[ListedPhrase],
        unknown_words: bool | None,
    ) -> tuple[Lexicon, list[ListedPhrase]]:
        if isinstance(lexicon, Lexicon):
            return lexicon, self._listed(phrases, frozenset(lexicon.words) if phrases else (), {})
        allow = lexicon is None if unknown_words is None else unknown_words
        if isinstance(lexicon, str | Path):
            spellings: list[tuple[str, Sequence[int]]] = [*read_lexicon(lexicon, self.labels.names)]
        elif lexicon is not None:
            spellings = [*listed_spellings(lexicon, self.labels.names)]
        else:
            spellings = self._spelled_vocabulary(models)
        for word, spelling in spellings:
            if self.labels.blank in spelling:
                raise LanguageModelError(
                    f"lexicon: expected {word!r} in labels without the blank, got {spelling}"
                )
        added: dict[str, Sequence[int]] = {}
        phrases = self._listed(phrases, {word for word, _ in spellings} if phrases else (), added)
        tree = Lexicon(
            [*spellings, *added.items()],
            len(self.labels),
            separator=self.labels.separator,
            allow_unknown=allow,
            word_starts=self.labels.word_starts if self.labels.has_pieces else None,
        )
        return tree, phrases

    def _listed(
        self, phrases: list[ListedPhrase], words: Collection[str | None], added: dict[str, Sequence[int]]
    ) -> list[ListedPhrase]:
        """Check phrases against a lexicon; missing words are spelled and put into `added`."""
        speller = self._speller

        def is_listed(word: str) -> bool:
            same = (form for form in speller.folded(word) if form in words)
            return word in words or any(_ways(speller, form) == _ways(speller, word) for form in same)

        def add_missing(phrase: ListedPhrase) -> None:
            missing = [word for word in phrase.text.split() if not is_listed(word)]
            if missing and not self.labels.has_words:
                raise LanguageModelError(f"hotwords: expected words of the lexicon, got {missing[0]!r}")
            for word in missing:
                added[word] = speller.spellings(word)[0]

        return [phrase for phrase, _ in usable(phrases, add_missing)]

    def _spelled_vocabulary(self, models: WeightedWords) -> list[tuple[str, Sequence[int]]]:
        if self.labels.separator is None:
            raise OptionError(
                "lm: expected a lexicon beside a word model, or a label for the space between words"
            )
        left_out = (self.labels.separator, self.labels.blank)
        ids = {name: i for name, i in ids_by_form(self.labels.names).items() if i not in left_out}
        spellings: list[tuple[str, Sequence[int]]] = []
        for word in dict.fromkeys(itertools.chain(*(model.vocabulary for model, _ in models))):
            if word not in SPECIAL_WORDS:
                spellings += [
                    (composed(word), way) for way in letter_spellings(self._speller.cased(word), ids)
                ]
        if not spellings:
            raise OptionError(
                "lm: expected words that the labels can spell, got none; is the case of labels and words "
                "the same?"
            )
        return spellings

    def _word_booster(self, phrases: list[ListedPhrase], lexicon: Lexicon) -> PhraseBooster:
        index = {word: i for i, word in enumerate(lexicon.words) if word is not None}
        spelled: list[Phrase] = []
        for phrase in phrases:
            forms = [self._speller.form_among(word, index) or word for word in phrase.text.split()]
            # The weight is per label; here tokens are words.
            weight = phrase.weight * sum(lexicon.lengths[word] for word in forms) / max(len(forms), 1)
            spelled.append(Phrase(tuple(index[word] for word in forms), weight))
        return PhraseBooster(spelled, len(lexicon.words))


def _ways(speller: PhraseSpeller, word: str) -> list[tuple[int, ...]] | None:
    try:
        return speller.spellings(word)
    except LanguageModelError:
        return None
