"""The front door of CTC decoding: labels and files in, a decoder with language models out."""

from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.models import CtcFusionOptions, WordOrTokenModel, load_ngram

__all__ = ["CtcDecoder", "CtcFusionOptions", "WordOrTokenModel", "load_ngram"]
