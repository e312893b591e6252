"""The public interface of CTC decoding, with labels and language models from files."""

from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.models import CtcFusionOptions, WordOrTokenModel, load_ngram

__all__ = ["CtcDecoder", "CtcFusionOptions", "WordOrTokenModel", "load_ngram"]
