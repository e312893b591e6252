"""How published models bear audio that grows: measured facts of their weights, in one place.

Real Whisper was trained on windows of 30 s that end in silence. Its encoder rests attention on a few frames
of that silence, the same ones whatever was said before (their normalised states are a fifth as long as
others): padding may be thinned as long as these are there. Measured with `benchmarks/growing_encoder.py`,
which finds them with `--anchors`; the table is in docs/streaming.md.
"""

from __future__ import annotations

from types import MappingProxyType

from sottovoce.models.dims import ModelDims
from sottovoce.models.encoder_mode import EncoderMode

BASE_ANCHORS = (
    *(
        110,
        174,
        175,
        231,
        232,
        247,
        248,
        256,
        297,
        305,
        311,
        312,
        313,
        319,
        320,
        361,
        362,
        363,
        378,
        384,
        457,
    ),
    *(458, 530, 531, 538, 539, 579, 580, 588, 594, 595, 683, 733, 734, 798, 1024, 1025, 1032, 1033, 1243),
    *(1250, 1371, 1372, 1380, 1445, 1446, 1452, 1453, 1477, 1493, 1494),
)
"""Of OpenAI's `base`: padding where a fifth of development clips or more rest attention."""

DENSE = EncoderMode(tail_s=5.0, recompute_s=3.5, refresh_s=0.0)
"""Whisper of any size: nothing has to be known of it."""
BASE = EncoderMode(stride=30, anchors=BASE_ANCHORS, recompute_s=3.5, refresh_s=0.0)
"""Nearer to 30 s than 5 s of padding computed whole. One frame of 60, or the newest 2 s alone, fails on
single clips."""

MODES = MappingProxyType({(6, 512, 51865): BASE})
"""Encoder layers, width and size of the vocabulary to the mode."""


def known_mode(dims: ModelDims) -> EncoderMode:
    """The mode of the published model that has these dimensions, or one that any Whisper bears."""
    return MODES.get((dims.n_audio_layer, dims.n_audio_state, dims.n_vocab), DENSE)
