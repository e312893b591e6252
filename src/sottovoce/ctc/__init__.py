"""The front door of CTC decoding: labels and files in, a decoder with language models out."""

from sottovoce.ctc.decoder import CtcDecoder
from sottovoce.ctc.models import WordOrTokenModel, load_ngram
from sottovoce.ctc.options import CtcFusionOptions

__all__ = ["CtcDecoder", "CtcFusionOptions", "WordOrTokenModel", "load_ngram"]
