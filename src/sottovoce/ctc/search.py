"""CTC prefix beam search over all utterances and beams at once.

Every prefix sums the probability of its paths, separately for those that end in a blank and in its last
token (Hannun et al. 2014, arXiv 1408.2873; Graves 2012, section 7.5). Merging is exact without hashes: the
search stores which prefix is a prefix of which, and an extension to an existing prefix adds its
probability to that one. The frame loop never waits for the device. The committed history of a stream is
stored in arrays of machine numbers: a few megabytes per hour of speech.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from sottovoce.ctc.align import NEVER, TokenTimes
from sottovoce.ctc.align import align as align_tokens
from sottovoce.ctc.align import common_cut as find_common_cut
from sottovoce.ctc.homophones import Homophone, RankedCandidates, expand_homophones, prune_homophones
from sottovoce.ctc.labels import Speller
from sottovoce.lm.base import Arcs, Endings, HistoryWord, PrefixScorer, WordHistory

NOTHING = -1
"""A position of a history without a symbol."""
_FIRST_CAPACITY = 32


@dataclass(slots=True, eq=False)
class CommittedHistory:
    """The committed part of one utterance.

    symbols: see `PrefixState`. first, last, peak: of each symbol, as in `TokenTimes`, in frames of the
    utterance. n_frames: dropped with them. words: those that no further token can change; word_starts,
    word_ends: [start, end) of each in `symbols`. text: of these words. n_emitted: words sent as events so
    far. n_closed: symbols up to the end of the last word. in_lexicon: of each word. n_scored: words that a
    `HistoryScorer` has scored. past: those words. living: the beams' histories after it, which keeps their
    scores alive.
    """

    symbols: array[int] = field(default_factory=lambda: array("q"))
    first: array[int] = field(default_factory=lambda: array("i"))
    last: array[int] = field(default_factory=lambda: array("i"))
    peak: array[float] = field(default_factory=lambda: array("f"))
    n_frames: int = 0
    words: list[str] = field(default_factory=list)
    word_starts: array[int] = field(default_factory=lambda: array("i"))
    word_ends: array[int] = field(default_factory=lambda: array("i"))
    text: str = ""
    n_closed: int = 0
    n_emitted: int = 0
    in_lexicon: bytearray = field(default_factory=bytearray)
    n_scored: int = 0
    past: WordHistory = field(default_factory=WordHistory)
    living: list[WordHistory] = field(default_factory=list)

    def add(self, symbols: Sequence[int], times: TokenTimes, n_frames: int, speller: Speller) -> None:
        """Commit symbols and drop n_frames frames. times: relative to the frames dropped before."""
        self.symbols.extend(symbols)
        self.first.extend(self.n_frames + frame for frame in times.first)
        self.last.extend(self.n_frames + frame for frame in times.last)
        self.peak.extend(times.peak)
        self.n_frames += n_frames
        closed, n_symbols = speller.closed(self.symbols[self.n_closed :].tolist())
        for word in closed:
            self.words.append(word.text)
            self.in_lexicon.append(word.in_lexicon)
            self.word_starts.append(self.n_closed + word.first)
            self.word_ends.append(self.n_closed + word.end)
        self.text = speller.join([self.text, *(word.text for word in closed)])
        self.n_closed += n_symbols

    def history(self) -> WordHistory:
        newer = zip(self.words[self.n_scored :], self.in_lexicon[self.n_scored :], strict=True)
        return self.past.after(HistoryWord(text, bool(in_lexicon)) for text, in_lexicon in newer)

    def mark_scored(self, living: list[WordHistory]) -> None:
        """Mark the committed words as scored; living: the beams' histories after them."""
        self.past, self.living = self.history(), living
        self.past.forget_beginning()
        self.n_scored = len(self.words)

    def open_symbols(self) -> list[int]:
        """Return the committed symbols of a word that may continue."""
        return self.symbols[self.n_closed :].tolist()

    def times(self, later: TokenTimes, begin: int = 0) -> TokenTimes:
        """Return the times of committed symbols from `begin` on, and of `later` ones, relative to the
        dropped frames.
        """
        n = self.n_frames
        return TokenTimes(
            [*self.first[begin:], *(n + frame for frame in later.first)],
            [*self.last[begin:], *(n + frame for frame in later.last)],
            [*self.peak[begin:], *later.peak],
        )


@dataclass(slots=True, eq=False)
class PrefixState:
    """B utterances of K prefixes, best first.

    A prefix is a sequence of symbols: token + V * mark, where the mark is the word that the token ends (0:
    none). Dead slots have -inf in `blank` and `token`.

    blank, token: (B, K) float32, log-probability of all paths of the prefix that end in a blank, or in its
    last token.
    lm: (B, K) float32, weighted score of language models, including adjustments.
    adjustment: (B, K) float32, the part of `lm` from a `HistoryScorer`.
    merged: (B, K) float32, log of (probability of the prefix plus the homophones pruned for it) / its own.
    length: (B, K) int64, symbols.
    last: (B, K) int64, the last symbol; in an empty prefix the scorer's word separator, or the blank.
    arc: (B, K) int64, which arc of its token the last symbol took.
    symbols: (B, K, L) int64, the histories; position 0 is the start.
    is_prefix: (B, K, K) bool, [b, j, k]: prefix k is a prefix of prefix j, or equals it.
    is_label_prefix: the same for their tokens alone; only updated if homophones are pruned.
    scores: (B, K, s) int64, the states of the `PrefixScorer`.
    n_frames: (B,) int64, frames consumed.
    n_steps: steps made, an upper bound of every length.
    n_searched: (B,) int64, frames that were not skipped.
    in_blank: (B,) bool, whether the last frame was in a run of blanks that can be skipped.
    acoustic_offset: (B,) float64, scores of dropped blanks, and what `renormalize` subtracted from `blank`
    and `token`.
    lm_offset: (B,) float64, what `renormalize` subtracted from `lm`.
    emissions: uncommitted emissions, for alignment: (log_probs (B, T, V), lengths (B,)) per chunk.
    committed: the committed part of each utterance, removed from `symbols`, `length` and `emissions`;
    position 0 of the histories holds its last symbol.
    n_shared: per utterance, uncommitted symbols that all beams shared at the last check.
    flush_deadline_frames: per utterance, uncommitted frames from which beams that differ early are
    dropped.
    """

    blank: Tensor
    token: Tensor
    lm: Tensor
    adjustment: Tensor
    merged: Tensor
    length: Tensor
    last: Tensor
    arc: Tensor
    symbols: Tensor
    is_prefix: Tensor
    is_label_prefix: Tensor
    scores: Tensor
    n_frames: Tensor
    n_searched: Tensor
    in_blank: Tensor
    acoustic_offset: Tensor
    lm_offset: Tensor
    committed: list[CommittedHistory] = field(repr=False)
    n_shared: list[int] = field(repr=False)
    flush_deadline_frames: list[int] = field(repr=False)
    n_steps: int = 0
    emissions: list[tuple[Tensor, Tensor]] = field(default_factory=list, repr=False)

    @property
    def acoustic(self) -> Tensor:
        """Log-probability (B, K) of all paths of each prefix, without skipped blanks."""
        return torch.logaddexp(self.blank, self.token)

    def reserve(self, n_symbols: int) -> None:
        """Grow `symbols` to hold n_symbols."""
        missing = n_symbols + 1 - self.symbols.shape[2]
        if missing > 0:
            n_batch, n_beams, capacity = self.symbols.shape
            more = self.symbols.new_full((n_batch, n_beams, max(missing, capacity)), NOTHING)
            self.symbols = torch.cat((self.symbols, more), dim=2)

    @property
    def is_alive(self) -> Tensor:
        return (self.blank > NEVER) | (self.token > NEVER)

    def forget_symbols(self, counts: Sequence[int]) -> None:
        """Drop the first counts[b] symbols of every history of utterance b."""
        device = self.length.device
        n_taken = torch.tensor(counts, device=device)[:, None]
        self.length = (self.length - n_taken).masked_fill_(~self.is_alive, 0)
        self.n_steps = int(self.length.max())
        capacity = _FIRST_CAPACITY
        while capacity < self.n_steps + 2:
            capacity *= 2
        places = n_taken[:, :, None] + torch.arange(capacity, device=device)  # (B, 1, L')
        places = places.clamp_(max=self.symbols.shape[2] - 1).expand(-1, self.symbols.shape[1], -1)
        self.symbols = self.symbols.gather(2, places)

    def drop(self, row: int, beams: Tensor) -> None:
        """Drop beams (n,) int64 of an utterance."""
        for scores, nothing in ((self.blank, NEVER), (self.token, NEVER), (self.lm, 0.0)):
            scores[row, beams] = nothing
        self.adjustment[row, beams] = 0.0
        self.length[row, beams] = 0
        for pairs in (self.is_prefix, self.is_label_prefix):
            pairs[row, beams] = False
            pairs[row, :, beams] = False

    def renormalize(self) -> None:
        """Subtract the best beam's scores from all, so that long streams keep float32's precision."""
        best = (self.acoustic + self.lm).argmax(dim=1, keepdim=True)
        acoustic, lm = self.acoustic.gather(1, best), self.lm.gather(1, best)
        self.blank, self.token, self.lm = self.blank - acoustic, self.token - acoustic, self.lm - lm
        self.acoustic_offset = self.acoustic_offset + acoustic[:, 0]
        self.lm_offset = self.lm_offset + lm[:, 0]


def first_state(n_batch: int, beam_size: int, initial_symbol: int, scores: Tensor) -> PrefixState:
    """Make a state with one empty prefix per utterance.

    scores: (B * K, s) int64, start states of the scorer. initial_symbol: precedes every prefix: the
    scorer's word separator, or the blank.
    """
    device = scores.device
    shape = (n_batch, beam_size)
    alive = torch.zeros((n_batch, beam_size), dtype=torch.bool, device=device)
    alive[:, 0] = True
    symbols = torch.full((*shape, _FIRST_CAPACITY), NOTHING, device=device)
    symbols[:, :, 0] = initial_symbol
    return PrefixState(
        blank=torch.zeros(shape, device=device).masked_fill(~alive, NEVER),
        token=torch.full(shape, NEVER, device=device),
        lm=torch.zeros(shape, device=device),
        adjustment=torch.zeros(shape, device=device),
        merged=torch.zeros(shape, device=device),
        length=torch.zeros(shape, dtype=torch.int64, device=device),
        last=torch.full(shape, initial_symbol, device=device),
        arc=torch.zeros(shape, dtype=torch.int64, device=device),
        symbols=symbols,
        is_prefix=alive[:, :, None] & alive[:, None, :],
        is_label_prefix=alive[:, :, None] & alive[:, None, :],
        scores=scores.view(n_batch, beam_size, scores.shape[1]),
        n_frames=torch.zeros(n_batch, dtype=torch.int64, device=device),
        n_searched=torch.zeros(n_batch, dtype=torch.int64, device=device),
        in_blank=torch.zeros(n_batch, dtype=torch.bool, device=device),
        acoustic_offset=torch.zeros(n_batch, dtype=torch.float64, device=device),
        lm_offset=torch.zeros(n_batch, dtype=torch.float64, device=device),
        committed=[CommittedHistory() for _ in range(n_batch)],
        n_shared=[0] * n_batch,
        flush_deadline_frames=[0] * n_batch,
    )


BLOCK_FRAMES = 16


class BlockHistory:
    """The histories of a state's beams over at most n_frames further frames.

    One tensor holds B * K histories of L positions from before the block; then for every beam its symbols
    since (n_frames + 2, the first never read, the last never written); then padding for reads. Pointers
    are (B * K,).
    """

    def __init__(self, state: PrefixState, n_frames: int) -> None:
        n_batch, n_beams, n_places = state.symbols.shape
        beams = torch.arange(n_batch * n_beams, device=state.length.device)
        n_recent, n_before = n_frames + 2, len(beams) * n_places
        since = state.symbols.new_full((len(beams) * n_recent + n_places,), NOTHING)
        self._shape = state.symbols.shape
        self._memory = torch.cat((state.symbols.flatten(), since))
        self._recent = self._memory[n_before:-n_places].view(-1, n_recent)
        self._first = beams[::n_beams, None]  # of every utterance
        self._own = beams * n_recent + n_before  # where the recent symbols of a beam lie
        self._root = beams * n_places  # where the continued history lies
        self._held = state.length.flatten()  # symbols of that history

    def advance(self, source: Tensor, length: Tensor, last: Tensor) -> None:
        """Let new beams continue those of source (B, K) with symbols last (B, K) at positions length (B,
        K).
        """
        rows = (source + self._first).flatten()
        self._root, self._held = self._root.index_select(0, rows), self._held.index_select(0, rows)
        recent = self._recent.index_select(0, rows)
        place = length.flatten() - self._held
        self._recent.copy_(recent.scatter_(1, place[:, None], last.view(-1, 1)))

    def symbols_at(self, places: Tensor) -> Tensor:
        """Look up the symbols (B, K, P) of every beam at positions (B, P).

        `NOTHING` at the position after a beam's last; any value beyond it.
        """
        n_batch, n_beams, _ = self._shape
        held, root, own = (
            each.view(n_batch, n_beams, 1) for each in (self._held, self._root, self._own - self._held)
        )
        wanted = places[:, None, :]
        address = torch.where(wanted <= held, root, own).add_(wanted)
        return self._memory.index_select(0, address.flatten()).view(address.shape)

    def histories(self) -> Tensor:
        """Return all symbols (B, K, L) of every beam."""
        n_rows, n_places = len(self._root), self._shape[2]
        before = self._memory[: n_rows * n_places].view(n_rows, n_places)
        whole = before.index_select(0, self._root // n_places)
        since = self._recent[:, 1:-1]
        places = torch.arange(1, since.shape[1] + 1, device=since.device) + self._held[:, None]
        # Nothing to write behind the end of a history.
        return whole.scatter_(1, places.clamp_(max=n_places - 1), since).view(self._shape)


LARGE, MOST_TOKENS = 1024, 128
"""Above `LARGE` labels only the `MOST_TOKENS` likeliest of a frame extend beams: all would take gigabytes
a frame, and the others have hardly any probability.
"""


class _Stays(NamedTuple):
    """Prefixes that are not extended at a frame: (B, K) each."""

    blank: Tensor
    token: Tensor
    parent: Tensor
    has_parent: Tensor


class _Extensions(NamedTuple):
    """Prefixes that are extended by one token at a frame.

    acoustic: (B, K * M) float32. score: (B, K * M * A) float32, for ranking. tokens: (B, M). arcs: of the
    scorer, or None.
    """

    acoustic: Tensor
    score: Tensor
    tokens: Tensor
    arcs: Arcs | None


class _Choice(NamedTuple):
    """The candidates that become the new beams: (B, K) each.

    source: the continued beam. stays: whether they append nothing. extension: index among the extensions,
    0 if they stay. alive: whether the slot holds a prefix. log_mass: see `PrefixState.merged`; None
    without pruning of homophones.
    """

    source: Tensor
    stays: Tensor
    extension: Tensor
    alive: Tensor
    log_mass: Tensor | None = None


class PrefixSearch:
    """A search of given width over emissions of n_labels labels.

    scorer: language models, lexicon and boosting, or None. max_homophones: homophones kept per group, see
    `homophones`; None: all. beam_threshold, top_tokens: see `CtcOptions`; `LARGE` limits top_tokens.
    Without a scorer the beam_size + 1 likeliest tokens suffice: every other extension has beam_size better
    ones of the same prefix.
    """

    align = staticmethod(align_tokens)
    common_cut = staticmethod(find_common_cut)

    def __init__(
        self,
        n_labels: int,
        blank: int,
        beam_size: int,
        *,
        scorer: PrefixScorer | None = None,
        max_homophones: int | None = None,
        beam_threshold: float | None = None,
        top_tokens: int | None = None,
    ) -> None:
        self.n_labels = n_labels
        self.blank = blank
        self.beam_size = beam_size
        self.scorer = scorer
        self.beam_threshold = beam_threshold
        self.word_separator = None if scorer is None else scorer.word_separator
        self.initial_symbol = blank if self.word_separator is None else self.word_separator
        self._n_arcs = 1 if scorer is None else scorer.n_arcs
        # If each token has one arc, labels have one word sequence.
        self.max_homophones = max_homophones if self._n_arcs > 1 else None
        if top_tokens is None and n_labels > LARGE:
            top_tokens = MOST_TOKENS
        limits = [n_labels - 1]
        limits += [] if top_tokens is None else [top_tokens]
        limits += [] if scorer is not None else [beam_size + 1]
        self.n_tokens = min(limits)

    def start(self, n_batch: int, device: torch.device) -> PrefixState:
        """Make the state of n_batch utterances before their first frame."""
        n_rows = n_batch * self.beam_size
        scores = torch.zeros((n_rows, 0), dtype=torch.int64, device=device)
        if self.scorer is not None:
            scores = self.scorer.start(n_rows, device)
        return first_state(n_batch, self.beam_size, self.initial_symbol, scores)

    def trusts(self, log_probs: Tensor, lengths: Tensor) -> bool:
        """Return whether a fast check proves emissions (B, T, V) to be log-probabilities; never in this
        class.
        """
        return False

    def endings(self, states: Tensor) -> Endings | None:
        """Score the endings of the scorer's states (N, s); None without a scorer."""
        return None if self.scorer is None else self.scorer.endings(states)

    def readings(
        self, sequences: Sequence[Sequence[int]], most: int, device: torch.device
    ) -> list[list[Homophone]]:
        """Find the best word sequences of label sequences; see `homophones.expand_homophones`."""
        assert self.scorer is not None
        return expand_homophones(self.scorer, sequences, most=most, device=device)

    @torch.no_grad()
    def run(self, state: PrefixState, log_probs: Tensor, lengths: Tensor, n_full: int) -> None:
        """Advance the state over log_probs (B, T, V) float32; utterance b has lengths[b] frames.

        n_full: frames that every utterance has; until then no utterance is frozen.
        """
        ranked = self._ranked_tokens(log_probs)
        n_frames = log_probs.shape[1]
        for begin in range(0, n_frames, BLOCK_FRAMES):
            end = min(begin + BLOCK_FRAMES, n_frames)
            state.n_steps += end - begin
            state.reserve(state.n_steps + 1)
            history = BlockHistory(state, end - begin)
            for t in range(begin, end):
                active = None if t < n_full else (lengths > t)[:, None]
                frame_tokens, frame_log_probs = (part[:, t] for part in ranked)
                choice = self._step(state, log_probs[:, t], frame_tokens, frame_log_probs, active)
                self._append(state, history, choice)
            state.symbols = history.histories()

    def _ranked_tokens(self, log_probs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens (B, T, M) int64 to extend by, and their log-probabilities."""
        n_batch, n_frames, _ = log_probs.shape
        if self.n_tokens == self.n_labels - 1:
            tokens = torch.arange(self.n_labels - 1, device=log_probs.device)
            tokens += tokens >= self.blank
            return tokens.expand(n_batch, n_frames, -1), log_probs[:, :, tokens]
        without_blank = log_probs.clone()
        without_blank[:, :, self.blank] = NEVER
        best, tokens = without_blank.topk(self.n_tokens, dim=2)
        return tokens, best

    def _step(
        self,
        state: PrefixState,
        frame: Tensor,
        tokens: Tensor,
        token_log_probs: Tensor,
        active: Tensor | None,
    ) -> _Choice:
        """Advance by one frame (B, V), except histories; utterances that are not active (B, 1) keep their
        beams.
        """
        last_token = state.last if self.scorer is None else state.last % self.n_labels
        repeats = tokens[:, None, :] == last_token[:, :, None]  # (B, K, M)
        total = state.acoustic
        stays = self._stay(state, frame, total, last_token)
        extensions = self._extend(state, tokens, token_log_probs, total, repeats)
        self._forbid_merged(extensions.score, stays, repeats, state.arc)
        if active is not None:
            stays = _frozen(stays, state, active)
            extensions.score.masked_fill_(~active, NEVER)
        stay_score = torch.logaddexp(stays.blank, stays.token) + state.lm
        if self.max_homophones is None:
            choice = self._choose(stay_score, extensions.score)
        else:
            choice = self._choose_and_prune(state, stay_score, extensions, last_token)
        self._apply(state, choice, stays, extensions)
        return choice

    def _stay(self, state: PrefixState, frame: Tensor, total: Tensor, last_token: Tensor) -> _Stays:
        """Return the prefixes that stay: by a blank, their last token, or reached from one symbol shorter."""
        last_log_prob = frame.gather(1, last_token)  # (B, K)
        is_child = state.is_prefix & (state.length[:, :, None] == state.length[:, None, :] + 1)
        has_parent, parent = is_child.to(torch.uint8).max(dim=2)
        has_parent = has_parent.bool()
        # The parent's last token followed by the same token is a new one only after a blank.
        same = last_token.gather(1, parent) == last_token
        reach = torch.where(same, state.blank.gather(1, parent), total.gather(1, parent)) + last_log_prob
        stayed = state.token
        if self.word_separator is not None:  # repeated after a blank it appends nothing
            stayed = torch.where(last_token == self.word_separator, total, stayed)
        return _Stays(
            blank=total + frame[:, self.blank, None],
            token=torch.logaddexp(stayed + last_log_prob, reach.masked_fill(~has_parent, NEVER)),
            parent=parent,
            has_parent=has_parent,
        )

    def _extend(
        self, state: PrefixState, tokens: Tensor, token_log_probs: Tensor, total: Tensor, repeats: Tensor
    ) -> _Extensions:
        n_batch, _, n_tokens = repeats.shape
        reached = torch.where(repeats, state.blank[:, :, None], total[:, :, None])
        acoustic = reached + token_log_probs[:, None, :]  # (B, K, M)
        score, arcs = acoustic + state.lm[:, :, None], None
        if self.scorer is not None:
            rows = tokens[:, None, :].expand(repeats.shape).reshape(-1, n_tokens)
            arcs = self.scorer.arcs(state.scores.reshape(len(rows), -1), rows)
            score = score[..., None] + arcs.scores.view(*repeats.shape, -1)
        return _Extensions(acoustic.view(n_batch, -1), score.reshape(n_batch, -1), tokens, arcs)

    def _forbid_merged(self, score: Tensor, stays: _Stays, repeats: Tensor, arc: Tensor) -> None:
        """Forbid extensions to an existing prefix, which got their probability."""
        is_ranked, column = repeats.to(torch.uint8).max(dim=2)
        place = (stays.parent * repeats.shape[2] + column) * self._n_arcs + arc
        taken = stays.has_parent & is_ranked.bool()
        score.scatter_add_(1, place, torch.zeros_like(stays.token).masked_fill_(taken, NEVER))

    def _choose(self, stay_score: Tensor, extension_score: Tensor) -> _Choice:
        n_beams = self.beam_size
        best, index = torch.cat((stay_score, extension_score), dim=1).topk(n_beams, dim=1)
        alive = best > NEVER
        if self.beam_threshold is not None:
            alive &= best >= best[:, :1] - self.beam_threshold
        stays = index < n_beams
        extension = (index - n_beams).clamp_min_(0)
        per_beam = extension_score.shape[1] // n_beams
        return _Choice(torch.where(stays, index, extension // per_beam), stays, extension, alive)

    def _choose_and_prune(
        self, state: PrefixState, stay_score: Tensor, extensions: _Extensions, last_token: Tensor
    ) -> _Choice:
        """Choose the best candidates, at most `max_homophones` of each group of homophones."""
        assert self.max_homophones is not None
        assert extensions.arcs is not None
        ranked = self._choose(stay_score, extensions.score)
        column = ranked.extension // self._n_arcs
        token = extensions.tokens.gather(1, column % extensions.tokens.shape[1])
        score = torch.where(
            ranked.stays,
            stay_score.gather(1, ranked.source),
            extensions.score.gather(1, ranked.extension),
        )
        found = RankedCandidates(
            score.masked_fill(~ranked.alive, NEVER),
            ranked.source,
            token.masked_fill(ranked.stays, -1),
            _states_after(state, ranked, extensions.arcs),
        )
        chosen = prune_homophones(
            found, state.is_label_prefix, state.length, last_token, state.merged, self.max_homophones
        )
        order = (~chosen.survives).to(torch.uint8).argsort(dim=1, stable=True)
        source, stays, extension = (
            part.gather(1, order) for part in (ranked.source, ranked.stays, ranked.extension)
        )
        alive = (ranked.alive & chosen.survives).gather(1, order)
        return _Choice(source, stays, extension, alive, chosen.log_mass.gather(1, order))

    def _apply(self, state: PrefixState, choice: _Choice, stays: _Stays, extensions: _Extensions) -> None:
        source = choice.source
        dead = ~choice.alive
        column = choice.extension // self._n_arcs
        state.blank = stays.blank.gather(1, source).masked_fill_(~choice.stays | dead, NEVER)
        extended = extensions.acoustic.gather(1, column)
        state.token = torch.where(choice.stays, stays.token.gather(1, source), extended).masked_fill_(
            dead, NEVER
        )
        symbol = extensions.tokens.gather(1, column % extensions.tokens.shape[1])
        state.lm = state.lm.gather(1, source).masked_fill_(dead, 0.0)
        state.adjustment = state.adjustment.gather(1, source).masked_fill_(dead, 0.0)
        if extensions.arcs is not None:
            symbol = symbol + self._take_arcs(state, choice, extensions.arcs)
        state.last = torch.where(choice.stays, state.last.gather(1, source), symbol)
        state.length = state.length.gather(1, source) + (choice.alive & ~choice.stays)

    def _take_arcs(self, state: PrefixState, choice: _Choice, arcs: Arcs) -> Tensor:
        """Follow the chosen arcs; return what their marks add to the symbol (B, K)."""
        n_batch = len(choice.source)
        chosen, source = choice.extension, choice.source
        scores = arcs.scores.view(n_batch, -1).gather(1, chosen).masked_fill_(choice.stays, 0.0)
        state.lm = (state.lm + scores).masked_fill_(~choice.alive, 0.0)
        state.scores = _states_after(state, choice, arcs)
        state.arc = torch.where(choice.stays, state.arc.gather(1, source), chosen % self._n_arcs)
        return arcs.marks.view(n_batch, -1).gather(1, chosen) * self.n_labels

    def _append(self, state: PrefixState, history: BlockHistory, choice: _Choice) -> None:
        """Append the last symbols to the histories, and update which prefix is a prefix of which."""
        source = choice.source
        n_batch, n_beams = source.shape
        history.advance(source, state.length, state.last)
        pairs = (source[:, :, None] * n_beams + source[:, None, :]).view(n_batch, -1)
        begun = state.is_prefix.view(n_batch, -1).gather(1, pairs).view(n_batch, n_beams, n_beams)
        # The symbol of the continuation of j at the position of the last one of k.
        appended = history.symbols_at(state.length)
        is_alive = choice.alive[:, :, None] & choice.alive[:, None, :]
        state.is_prefix = begun & (appended == state.last[:, None, :]) & is_alive
        if choice.log_mass is not None:
            state.merged = choice.log_mass.masked_fill(~choice.alive, 0.0)
            spelled = state.is_label_prefix.view(n_batch, -1).gather(1, pairs).view(n_batch, n_beams, n_beams)
            spelled &= (
                (appended % self.n_labels == state.last[:, None, :] % self.n_labels)
                & (appended >= 0)
                & is_alive
            )
            is_as_long = state.length[:, :, None] == state.length[:, None, :]
            state.is_label_prefix = spelled | (spelled & is_as_long).transpose(1, 2)


def _states_after(state: PrefixState, choice: _Choice, arcs: Arcs) -> Tensor:
    """Return the scorer's states (B, n, s) after the chosen extensions."""
    n_batch, n_numbers = len(choice.source), state.scores.shape[2]
    wide = (*choice.source.shape, n_numbers)
    stayed = state.scores.gather(1, choice.source[:, :, None].expand(wide))
    moved = arcs.states.reshape(n_batch, -1, n_numbers)
    moved = moved.gather(1, choice.extension[:, :, None].expand(wide))
    return torch.where(choice.stays[:, :, None], stayed, moved)


def _frozen(stays: _Stays, state: PrefixState, active: Tensor) -> _Stays:
    blank = torch.where(active, stays.blank, state.blank)
    return stays._replace(blank=blank, token=torch.where(active, stays.token, state.token))
