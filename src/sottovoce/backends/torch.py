"""Former name of `sottovoce.runtime.torch`."""

from sottovoce.runtime.torch import TorchBackend as TorchBackend
