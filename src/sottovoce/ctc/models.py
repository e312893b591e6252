"""Language models of a CTC decoder: loading them, spelling their words in labels, and fusing them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sottovoce.ctc.options import CtcFusionOptions
from sottovoce.decoding.ctc.text import PIECE_START, Labels
from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.base import PrefixScorer
from sottovoce.lm.boosting import Phrase, PhraseBooster, read_phrases
from sottovoce.lm.causal import CausalWordModel
from sottovoce.lm.fusion import Relabelled, ShallowFusion, TensorModel
from sottovoce.lm.kenlm import KenlmModel, is_kenlm_binary
from sottovoce.lm.lexicon import Lexicon, read_lexicon
from sottovoce.lm.neural import NeuralRescorer, ReplacedModel, WordLanguageModel
from sottovoce.lm.ngram import NgramModel
from sottovoce.lm.whole_words import Edges, WholeWordBooster
from sottovoce.lm.word_count import WordCounter
from sottovoce.lm.word_fusion import WordFusion, WordModel

Spellings = Sequence[tuple[str, Sequence[int]]]
Hotwords = str | Path | Sequence[str] | Mapping[str, float]
WordOrTokenModel = NgramModel | KenlmModel

_SPACE_NAMES = (" ", "|", "<space>", PIECE_START)
_SPECIAL = {"<s>", "</s>", "<unk>", "<UNK>"}


def load_ngram(lm: str | Path | WordOrTokenModel | None) -> WordOrTokenModel | None:
    """Load an n-gram model: ARPA, gzipped ARPA or KenLM binary; a model or None is returned as it is.

    Raises: LanguageModelError for a file that cannot be read, MissingExtraError for a KenLM binary without
    `kenlm`.
    """
    if lm is None or isinstance(lm, NgramModel | KenlmModel):
        return lm
    return KenlmModel(lm) if is_kenlm_binary(Path(lm)) else NgramModel.from_arpa(lm)


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """Builds a decoder's language models."""

    labels: Labels
    options: CtcFusionOptions
    device: torch.device

    def phrases(self, hotwords: Hotwords | None) -> list[tuple[str, float]]:
        """List hotwords with their weights per label."""
        weight = self.options.hotword_weight
        if hotwords is None:
            return []
        if isinstance(hotwords, str | Path):
            return read_phrases(hotwords, default_weight=weight)
        given = hotwords if isinstance(hotwords, Mapping) else dict.fromkeys(hotwords, weight)
        return [(" ".join(text.split()), value) for text, value in given.items()]

    def scorer(
        self,
        model: WordOrTokenModel | None,
        lexicon: str | Path | Spellings | Lexicon | None,
        phrases: list[tuple[str, float]],
        unknown_words: bool | None,
        label_model: WordOrTokenModel | None = None,
    ) -> tuple[PrefixScorer | None, Lexicon | None]:
        """Fuse models, lexicon and phrases; return the scorer (None without any) and the lexicon.

        label_model: over labels, beside a model over words.
        Raises: OptionError for parts that do not fit together, LanguageModelError for words or phrases that
            the labels cannot spell.
        """
        if model is not None and label_model is not None and self.options.level == "token":
            raise OptionError("lm: expected a model over words beside label_lm, got level 'token'")
        over_labels = [] if label_model is None else [(label_model, self.options.label_lm_weight)]
        if model is not None and label_model is None and lexicon is None and self._is_over_labels(model):
            over_labels, model = [(model, self.options.lm_weight)], None
        if lexicon is None and model is None:
            return self._token_fusion(over_labels, phrases), None
        words = self._lexicon(model, lexicon, phrases, unknown_words)
        boosts_words = self.labels.separator is None and bool(phrases)
        models = [self._word_model(model, words)] if model is not None else []
        models += [self._word_booster(phrases, words)] if boosts_words else []
        fused = WordFusion(
            words.to(self.device),
            models,
            word_score=self.options.word_score,
            unknown_score=self.options.unknown_score,
            look_ahead=self.options.look_ahead and model is not None,
            tokens=self._token_fusion(over_labels, [] if boosts_words else phrases, word_score=False),
        )
        return fused, words

    def history_scorer(
        self,
        neural_lm: str | Path | WordLanguageModel | None,
        model: WordOrTokenModel | None,
        words: tuple[str | None, ...],
    ) -> NeuralRescorer | None:
        """Make the neural rescorer; None without a neural model.

        words: of the lexicon; without one an n-gram over labels stays beside the neural model.
        """
        if neural_lm is None:
            return None
        scorer = neural_lm
        if isinstance(scorer, str | Path):
            scorer = CausalWordModel.load(str(scorer), device=self.device)
        replaced = None
        if model is not None and words:
            replaced = ReplacedModel(model, self.options.lm_weight * (1 - self.options.lm_kept))
        return NeuralRescorer(scorer, self.options.neural_weight, replaces=replaced)

    def _is_over_labels(self, model: WordOrTokenModel) -> bool:
        """Whether the model's vocabulary is the labels, under any name of the space."""
        if self.options.token_offset is not None:
            self._check_offset(model)
            return True
        if self.options.level != "auto":
            return self.options.level == "token"
        if model.vocabulary is None:
            return all(self._label_name(i, model) in model for i in self._label_ids())
        vocabulary = set(model.vocabulary) - _SPECIAL
        names = {self._label_name(i, model) for i in self._label_ids()}
        return len(vocabulary & names) >= 0.9 * len(vocabulary)

    def _label_ids(self) -> list[int]:
        return [i for i in range(len(self.labels)) if i != self.labels.blank]

    def _check_offset(self, model: WordOrTokenModel) -> None:
        if not any(self._label_name(i, model) in model for i in self._label_ids()):
            raise LanguageModelError(
                f"lm: expected words chr(label + {self.options.token_offset}), got none of them"
            )

    def _label_name(self, label: int, model: WordOrTokenModel) -> str:
        if self.options.token_offset is not None:
            return chr(label + self.options.token_offset)
        if label != self.labels.separator:
            return self.labels.names[label]
        own = self.labels.names[label]
        names = (name for name in _SPACE_NAMES if name == own or name not in self.labels.names)
        return next((name for name in names if name in model), own)

    def _token_fusion(
        self,
        weighted: Sequence[tuple[WordOrTokenModel, float]],
        phrases: list[tuple[str, float]],
        *,
        word_score: bool = True,
    ) -> ShallowFusion | None:
        models: list[TensorModel] = []
        weights: list[float] = []
        for model, weight in weighted:
            ids = model.ids([self._label_name(i, model) for i in range(len(self.labels))])
            models.append(Relabelled(model.to(self.device), torch.tensor(ids, device=self.device)))
            weights.append(weight)
        if phrases:
            spelled = [Phrase(tuple(self._spell(text)), weight) for text, weight in phrases]
            models.append(self._booster(spelled))
            weights.append(1.0)
        if word_score and self.options.word_score:
            models.append(self._word_counter())
            weights.append(1.0)
        if not models:
            return None
        return ShallowFusion(models, weights)

    def _booster(self, phrases: Sequence[Phrase]) -> TensorModel:
        """Make a booster, of whole words where labels mark them."""
        labels = self.labels
        if not labels.has_pieces:
            return PhraseBooster(phrases, len(labels), boundary=labels.separator).to(self.device)
        ends = torch.tensor([i == labels.separator for i in range(len(labels))])
        edges = Edges(before=torch.tensor(labels.word_starts) | ends, after=ends)
        return WholeWordBooster(phrases, edges).to(self.device)

    def _word_counter(self) -> WordCounter:
        separators, starts = (
            torch.tensor(each, device=self.device)
            for each in (self.labels.separators, self.labels.word_starts)
        )
        return WordCounter(self.options.word_score, separators=separators, starts=starts)

    def _lexicon(
        self,
        model: WordOrTokenModel | None,
        lexicon: str | Path | Spellings | Lexicon | None,
        phrases: list[tuple[str, float]],
        unknown_words: bool | None,
    ) -> Lexicon:
        if isinstance(lexicon, Lexicon):
            return lexicon
        allow = lexicon is None if unknown_words is None else unknown_words
        if isinstance(lexicon, str | Path):
            spellings: list[tuple[str, Sequence[int]]] = [*read_lexicon(lexicon, self.labels.names)]
        elif lexicon is not None:
            spellings = [(word, tuple(tokens)) for word, tokens in lexicon]
        else:
            spellings = self._spelled_vocabulary(model)
        spelled = {word for word, _ in spellings}
        if self.labels.separator is not None:
            wanted = dict.fromkeys(word for text, _ in phrases for word in text.split())
            spellings += self._missing_words(list(wanted), spelled)
        return Lexicon(
            spellings,
            len(self.labels),
            separator=self.labels.separator,
            allow_unknown=allow,
            word_starts=self.labels.word_starts if self.labels.has_pieces else None,
        )

    def _missing_words(
        self, words: Sequence[str], listed: Collection[str]
    ) -> list[tuple[str, Sequence[int]]]:
        """Spell words of phrases that a lexicon has neither as they are written nor in the labels' case."""
        missing: dict[str, Sequence[int]] = {}
        for word in words:
            tokens = () if word in listed else self._spell(word)
            forms = [form for form in self._forms(word)[1:] if form in listed and self._spell(form) == tokens]
            if tokens and not forms:
                missing[word] = tokens
        return list(missing.items())

    def _spelled_vocabulary(self, model: WordOrTokenModel | None) -> list[tuple[str, Sequence[int]]]:
        if model is None or model.vocabulary is None:
            raise OptionError("lm: expected a lexicon beside KenLM's reader of an ARPA file, got none")
        if self.labels.separator is None:
            raise OptionError(
                "lm: expected a lexicon beside a word model, or a label for the space between words"
            )
        ids = {name: i for i, name in enumerate(self.labels.names) if i != self.labels.separator}
        ids.pop(self.labels.names[self.labels.blank], None)
        spellings: list[tuple[str, Sequence[int]]] = []
        for word in model.vocabulary:
            letters = self._cased(word)
            if word not in _SPECIAL and all(letter in ids for letter in letters):
                spellings.append((word, [ids[letter] for letter in letters]))
        if not spellings:
            raise OptionError(
                "lm: expected words that the labels can spell, got none; is the case of labels and words "
                "the same?"
            )
        return spellings

    def _cased(self, word: str) -> str:
        return {"keep": word, "lower": word.lower(), "upper": word.upper()}[self.options.case]

    def _word_model(self, model: WordOrTokenModel, lexicon: Lexicon) -> WordModel:
        ids = model.ids(["<unk>" if word is None else word for word in lexicon.words])
        return WordModel(model.to(self.device), torch.tensor(ids, device=self.device), self.options.lm_weight)

    def _word_booster(self, phrases: list[tuple[str, float]], lexicon: Lexicon) -> WordModel:
        index = {word: i for i, word in enumerate(lexicon.words)}
        found: list[Phrase] = []
        for text, weight in phrases:
            missing = [word for word in text.split() if word not in index]
            if missing:
                raise LanguageModelError(f"hotwords: expected words of the lexicon, got {missing[0]!r}")
            words = text.split()
            # The weight is for a label; here tokens are words.
            weight *= sum(lexicon.lengths[word] for word in words) / max(len(words), 1)
            found.append(Phrase(tuple(index[word] for word in words), weight))
        booster = PhraseBooster(found, len(lexicon.words)).to(self.device)
        return WordModel(booster, torch.arange(len(lexicon.words), device=self.device), 1.0)

    def _spell(self, text: str) -> list[int]:
        """Label ids of a phrase: the longest label that fits, from left to right.

        Where the labels lack its letters, it is spelled in small or in capital ones.
        Raises: LanguageModelError for a text that labels cannot spell so either.
        """
        ids = {name: i for i, name in enumerate(self.labels.names) if name and i != self.labels.blank}
        cased = self._cased(text)
        if not self.labels.has_words and (" " in text or cased in ids):
            return self._spell_symbols(text, ids)
        spelled = (self._longest_labels(form, ids)[0] for form in self._forms(text))
        found = next((tokens for tokens in spelled if tokens is not None), None)
        if found is not None:
            return found
        _, place = self._longest_labels(cased, ids)
        space = PIECE_START if self.labels.has_pieces else " "
        raise LanguageModelError(
            f"hotwords: expected text that the labels can spell, got {text!r} at {place!r}"
            f" (space is {space!r})"
        )

    def _forms(self, text: str) -> tuple[str, str, str]:
        """A text as it is spelled, and in its place in small or in capital letters."""
        cased = self._cased(text)
        return cased, cased.lower(), cased.upper()

    def _longest_labels(self, text: str, ids: Mapping[str, int]) -> tuple[list[int] | None, str]:
        """Label ids of a text as it is written; None and the first character without a label."""
        rest = text
        if self.labels.has_pieces:
            rest = PIECE_START + rest.replace(" ", PIECE_START)
        elif self.labels.separator is not None:
            rest = rest.replace(" ", self.labels.names[self.labels.separator])
        longest = max(map(len, ids))
        tokens: list[int] = []
        while rest:
            label = next((rest[:n] for n in range(min(longest, len(rest)), 0, -1) if rest[:n] in ids), None)
            if label is None:
                return None, rest[0]
            tokens.append(ids[label])
            rest = rest[len(label) :]
        return tokens, ""

    def _spell_symbols(self, text: str, ids: Mapping[str, int]) -> list[int]:
        unknown = [symbol for symbol in text.split() if symbol not in ids]
        if unknown:
            raise LanguageModelError(f"hotwords: expected labels separated by spaces, got {unknown[0]!r}")
        return [ids[symbol] for symbol in text.split()]
