"""Language models of a CTC decoder: loading them, spelling their words in labels, and fusing them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from sottovoce.ctc.options import CtcFusionOptions
from sottovoce.ctc.spelling import PhraseSpeller
from sottovoce.decoding.ctc.text import PIECE_START, Labels
from sottovoce.errors import LanguageModelError, OptionError
from sottovoce.lm.base import PrefixScorer
from sottovoce.lm.boosting import Phrase, PhraseBooster
from sottovoce.lm.causal import CausalWordModel
from sottovoce.lm.fusion import Relabelled, ShallowFusion, TensorModel
from sottovoce.lm.kenlm import KenlmModel, is_kenlm_binary
from sottovoce.lm.lexicon import Lexicon, read_lexicon
from sottovoce.lm.neural import NeuralRescorer, ReplacedModel, WordLanguageModel
from sottovoce.lm.ngram import NgramModel
from sottovoce.lm.phrase_lists import Hotwords, ListedPhrase, listed_phrases, without_faults
from sottovoce.lm.whole_words import Edges, WholeWordBooster
from sottovoce.lm.word_count import WordCounter
from sottovoce.lm.word_fusion import WordFusion, WordModel
from sottovoce.text.normalize import composed, ids_by_form, is_composed, letter_spellings

Spellings = Sequence[tuple[str, Sequence[int]]]
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

    def phrases(self, hotwords: Hotwords | None) -> list[ListedPhrase]:
        """List hotwords with their weights per label."""
        return listed_phrases(hotwords, default_weight=self.options.hotword_weight)

    def scorer(
        self,
        model: WordOrTokenModel | None,
        lexicon: str | Path | Spellings | Lexicon | None,
        phrases: list[ListedPhrase],
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
        words, phrases = self._lexicon(model, lexicon, phrases, unknown_words)
        # The labels of homophones are the same: only the words are boosted then.
        boosts_words = bool(phrases) and (self.labels.separator is None or words.n_homophones > 1)
        models = [self._word_model(model, words)] if model is not None else []
        models += [self._word_booster(phrases, words)] if boosts_words else []
        fused = WordFusion(
            words.to(self.device),
            models,
            word_score=self.options.word_score,
            unknown_score=self.options.unknown_score,
            look_ahead=self.options.look_ahead and model is not None,
            tokens=self._token_fusion(
                over_labels, [] if boosts_words else phrases, word_score=False, lexicon=words
            ),
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
        vocabulary = set(map(composed, model.vocabulary)) - _SPECIAL
        names = {composed(self._label_name(i, model)) for i in self._label_ids()}
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
            name = chr(label + self.options.token_offset)
            # A symbol without a meaning: the model may not take it for its equivalent character.
            return name if is_composed(name) or name in (model.vocabulary or ()) else "<unk>"
        if label != self.labels.separator:
            return self.labels.names[label]
        own = self.labels.names[label]
        names = (name for name in _SPACE_NAMES if name == own or name not in self.labels.names)
        return next((name for name in names if name in model), own)

    def _token_fusion(
        self,
        weighted: Sequence[tuple[WordOrTokenModel, float]],
        phrases: list[ListedPhrase],
        *,
        word_score: bool = True,
        lexicon: Lexicon | None = None,
    ) -> ShallowFusion | None:
        models: list[TensorModel] = []
        weights: list[float] = []
        for model, weight in weighted:
            ids = model.ids([self._label_name(i, model) for i in range(len(self.labels))])
            models.append(Relabelled(model.to(self.device), torch.tensor(ids, device=self.device)))
            weights.append(weight)
        if phrases:
            models.append(self._booster(self._speller(phrases, lexicon).boosted(phrases)))
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

    def _speller(self, phrases: Sequence[ListedPhrase], lexicon: Lexicon | None) -> PhraseSpeller:
        if lexicon is None:
            return PhraseSpeller(self.labels, self.options.case)
        plain = PhraseSpeller(self.labels, self.options.case)
        words = {form for one in phrases for word in one.text.split() for form in plain.folded(word)}
        return PhraseSpeller(self.labels, self.options.case, lexicon.spellings_of(words))

    def _lexicon(
        self,
        model: WordOrTokenModel | None,
        lexicon: str | Path | Spellings | Lexicon | None,
        phrases: list[ListedPhrase],
        unknown_words: bool | None,
    ) -> tuple[Lexicon, list[ListedPhrase]]:
        """Make the words' tree, and return the phrases that it can spell; the others are warnings."""
        if isinstance(lexicon, Lexicon):
            return lexicon, self._listed(phrases, frozenset(lexicon.words), {})
        allow = lexicon is None if unknown_words is None else unknown_words
        if isinstance(lexicon, str | Path):
            spellings: list[tuple[str, Sequence[int]]] = [*read_lexicon(lexicon, self.labels.names)]
        elif lexicon is not None:
            spellings = [(composed(word), tuple(tokens)) for word, tokens in lexicon]
        else:
            spellings = self._spelled_vocabulary(model)
        added: dict[str, Sequence[int]] = {}
        phrases = self._listed(phrases, {word for word, _ in spellings}, added)
        made = Lexicon(
            [*spellings, *added.items()],
            len(self.labels),
            separator=self.labels.separator,
            allow_unknown=allow,
            word_starts=self.labels.word_starts if self.labels.has_pieces else None,
        )
        return made, phrases

    def _listed(
        self, phrases: list[ListedPhrase], words: Collection[str | None], added: dict[str, Sequence[int]]
    ) -> list[ListedPhrase]:
        """Check phrases against the words of a lexicon; missing words are spelled, and go to `added`."""
        speller = PhraseSpeller(self.labels, self.options.case)

        def is_listed(word: str) -> bool:
            """As it is written, or in another case that is spelled alike."""
            same = (form for form in speller.folded(word) if form in words)
            return word in words or any(_ways(speller, form) == _ways(speller, word) for form in same)

        def fault(phrase: ListedPhrase) -> LanguageModelError | None:
            missing = [word for word in phrase.text.split() if not is_listed(word)]
            if missing and self.labels.separator is None:
                return LanguageModelError(f"hotwords: expected words of the lexicon, got {missing[0]!r}")
            try:
                added.update((word, speller.spellings(word)[0]) for word in missing)
            except LanguageModelError as error:
                return error
            return None

        return without_faults((phrase, fault(phrase)) for phrase in phrases)

    def _spelled_vocabulary(self, model: WordOrTokenModel | None) -> list[tuple[str, Sequence[int]]]:
        if model is None or model.vocabulary is None:
            raise OptionError("lm: expected a lexicon beside KenLM's reader of an ARPA file, got none")
        if self.labels.separator is None:
            raise OptionError(
                "lm: expected a lexicon beside a word model, or a label for the space between words"
            )
        left_out = (self.labels.separator, self.labels.blank)
        ids = {name: i for name, i in ids_by_form(self.labels.names).items() if i not in left_out}
        speller = PhraseSpeller(self.labels, self.options.case)
        spellings: list[tuple[str, Sequence[int]]] = []
        for word in model.vocabulary:
            if word not in _SPECIAL:
                spellings += [(composed(word), way) for way in letter_spellings(speller.cased(word), ids)]
        if not spellings:
            raise OptionError(
                "lm: expected words that the labels can spell, got none; is the case of labels and words "
                "the same?"
            )
        return spellings

    def _word_model(self, model: WordOrTokenModel, lexicon: Lexicon) -> WordModel:
        ids = model.ids(["<unk>" if word is None else word for word in lexicon.words])
        return WordModel(model.to(self.device), torch.tensor(ids, device=self.device), self.options.lm_weight)

    def _word_booster(self, phrases: list[ListedPhrase], lexicon: Lexicon) -> WordModel:
        index = {word: i for i, word in enumerate(lexicon.words) if word is not None}
        speller = PhraseSpeller(self.labels, self.options.case)
        found: list[Phrase] = []
        for phrase in phrases:
            forms = [speller.form_among(word, index) or word for word in phrase.text.split()]
            # The weight is for a label; here tokens are words.
            weight = phrase.weight * sum(lexicon.lengths[word] for word in forms) / max(len(forms), 1)
            found.append(Phrase(tuple(index[word] for word in forms), weight))
        booster = PhraseBooster(found, len(lexicon.words)).to(self.device)
        return WordModel(booster, torch.arange(len(lexicon.words), device=self.device), 1.0)


def _ways(speller: PhraseSpeller, word: str) -> list[tuple[int, ...]] | None:
    """How a word is spelled in letters; None where it cannot be."""
    try:
        return speller.spellings(word)
    except LanguageModelError:
        return None
