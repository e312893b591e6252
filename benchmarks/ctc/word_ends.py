"""Neural scores at word ends before pruning, beside those every few frames, on a set of phonemes.

    python -m benchmarks.ctc.word_ends ../shared/ctc/phonemes --neural-lm smollm2.gguf --clips 24

At every frame in which a hypothesis ends a word, the search keeps `--pool` times the beam, the neural model
scores all of it, and then the beam is cut.
"""

from __future__ import annotations

import argparse
import json
import resource
from pathlib import Path

import numpy as np

from sottovoce.ctc import CtcDecoder, CtcFusionOptions
from sottovoce.ctc.emissions import batch_of, log_softmax
from sottovoce.ctc.options import CtcOptions
from sottovoce.ctc.search import PrefixState
from sottovoce.evaluation.wer import count_edits
from sottovoce.lm.base import Floats, Ints
from sottovoce.lm.neural import CausalWordModel
from sottovoce.lm.ngram import load_ngram

BEAM = 16


class AtWordEnds(CtcDecoder):
    def _advance(self, state: PrefixState, emissions: Floats, lengths: Ints) -> None:
        assert self._adjuster is not None
        scores = self._scaling.scores(emissions)
        state.n_frames = state.n_frames + lengths
        for t in range(scores.shape[1]):
            counts = (lengths > t).astype(np.int64)
            self._search.run(state, scores[:, t : t + 1], counts)
            alive = state.acoustic > -np.inf
            ended = ((state.last // len(self.labels) > 0) & alive).any(axis=1) & (counts > 0)
            if ended.any():
                self._adjuster.adjust(state, ended)
            total = state.acoustic + state.lm
            for row, order in enumerate(np.argsort(-total, axis=1, kind="stable")[:, BEAM:]):
                dropped = order[total[row, order] > -np.inf]
                if len(dropped):
                    state.drop(row, dropped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--neural-lm", required=True)
    parser.add_argument("--clips", type=int, default=43)
    parser.add_argument("--pool", type=int, default=2)
    options = parser.parse_args()
    archive = np.load(options.folder / "dev.npz")
    meta = json.loads(str(archive["meta"]))
    names = [name for name in archive.files if name != "meta"][: options.clips]
    rows = [log_softmax(archive[name].astype(np.float32)) for name in names]
    texts = meta["texts"]
    wanted = [(texts[name] if isinstance(texts, dict) else texts[i]).split() for i, name in enumerate(names)]
    lm = load_ngram(options.folder / "bigram.arpa.gz")
    neural = CausalWordModel.load(options.neural_lm, dtype="int8")
    seconds = 0.02 * sum(map(len, rows))
    lexicon = None
    for kind, width, every in (
        (CtcDecoder, BEAM, 10),
        (CtcDecoder, BEAM, 1),
        (AtWordEnds, options.pool * BEAM, 1),
    ):
        decoder = kind(
            meta["labels"],
            meta["blank"],
            lm=lm,
            lexicon=options.folder / "lexicon.txt" if lexicon is None else lexicon,
            neural_lm=neural,
            beam_size=width,
            fusion=CtcFusionOptions(lm_weight=0.6, neural_weight=0.5, lm_kept=0.25),
            options=CtcOptions(times=False, adjust_every_frames=every),
        )
        lexicon = decoder.lexicon
        neural._tree._clear()
        before, used = neural.n_forward_pieces, resource.getrusage(resource.RUSAGE_SELF)
        found = []
        for at in range(0, len(rows), 8):
            found += [each[0].text.split() for each in decoder.decode(*batch_of(rows[at : at + 8]))]
        now = resource.getrusage(resource.RUSAGE_SELF)
        spent = (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / seconds
        wrong = sum(count_edits(ref, text).n_errors for ref, text in zip(wanted, found, strict=True))
        share = wrong / sum(map(len, wanted))
        pieces = neural.n_forward_pieces - before
        print(f"{kind.__name__} {width} every {every}: {share:.1%} wrong, {spent:.3f} s/s, {pieces} pieces")


if __name__ == "__main__":
    main()
