"""Languages that sound alike: those that a model takes for one another where it knows one of them little."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sottovoce.language.smoothing import Posterior

GROUPS = (
    *("az tr tk", "kk ba tt uz", "fa tg ps", "hi ur pa sd", "hi mr ne sa", "bn as"),
    *("da no nn sv fo", "is fo", "nl af", "de lb yi", "et fi", "lv lt"),
    *("hr sr bs sl mk bg", "cs sk", "ru uk be", "pl be"),
    *("es gl", "pt gl", "es ca", "ca oc", "fr oc", "it la", "fr ht", "it mt"),
    *("id ms jw su", "zh yue", "th lo", "te kn", "ml ta", "mi haw", "hy ka"),
)
"""Neighbours by family and sound, as codes; a language may be in several groups."""
SHARE = 0.15
"""So much of the probability of a language its neighbours have at least: that one is heard in the speech of
the other is weak evidence of a change between them."""


class AlikeLanguages:
    """Takes evidence between neighbours back.

    codes: the languages to choose among.
    """

    def __init__(self, codes: Sequence[str]) -> None:
        self._shares: npt.NDArray[np.float64] = np.eye(len(codes))
        for group in GROUPS:
            places = [codes.index(code) for code in group.split() if code in codes]
            for one in places:
                for other in places:
                    self._shares[one, other] = max(self._shares[one, other], SHARE)

    def soften(self, posterior: Posterior) -> Posterior:
        """Return a posterior (L,) in which each language has its share of its neighbours' at least."""
        softened: Posterior = (self._shares * posterior).max(axis=1)
        return softened
