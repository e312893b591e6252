"""The native library, and the types of its functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_char_p, c_int, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import NoReturn


def _find() -> Path:
    here = Path(__file__).parent
    for name in ("_kernels.so", "_kernels.dylib", "_kernels.dll"):
        if (here / name).exists():
            return here / name
    raise ImportError(f"sottovoce_kernels: no native library beside {here}")


library = ctypes.CDLL(str(_find()))

WORDS = ctypes.POINTER(c_int32)
ADDRESSES = ctypes.POINTER(c_void_p)


class Step(ctypes.Structure):
    """The arguments of a step, as the library reads them."""

    _fields_ = (
        ("n_rows", c_int32),
        ("n_wanted", c_int32),
        ("n_vocabulary", c_int32),
        ("n_captured", c_int32),
        ("longest", c_int32),
        ("n_threads", c_int32),
        ("rows", ADDRESSES),
        ("audio", ADDRESSES),
        ("bias", ADDRESSES),
        ("first_frame", WORDS),
        ("last_frame", WORDS),
        ("n_new", WORDS),
        ("tokens", WORDS),
        ("wanted", WORDS),
        ("vocabulary", WORDS),
        ("captured", WORDS),
        ("logits", c_void_p),
        ("attention", c_void_p),
        ("n_best", c_int32),
        ("n_forbidden", c_int32),
        ("time_begin", c_int32),
        ("forbidden", c_void_p),
        ("rules", c_void_p),
        ("best", c_void_p),
        ("best_tokens", c_void_p),
        ("is_clear", c_void_p),
    )


class Window(ctypes.Structure):
    """The arguments of a window of the encoder, as the library reads them."""

    _fields_ = (
        ("n_columns", c_int32),
        ("start", c_int32),
        ("n_run", c_int32),
        ("n_places", c_int32),
        ("n_before", c_int32),
        ("first_after", c_int32),
        ("n_after", c_int32),
        ("mel_stride", c_int64),
        ("mel", c_void_p),
        ("places", WORDS),
        ("kept", c_void_p),
        ("log_weights", c_void_p),
        ("states", c_void_p),
        ("frames", c_void_p),
    )


def _declare(name: str, result: type | None, *arguments: type) -> None:
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments


A, N = c_void_p, c_int
_declare("sv_error", c_char_p)
_declare("sv_built", c_char_p, N)
_declare("sv_runs_here", N, c_char_p)
_declare("sv_best", c_char_p)
_declare("sv_in_use", c_char_p)
_declare("sv_use", N, c_char_p)
_declare("sv_packed_layout", N)
_declare("sv_packed_size", c_int64, N, N, N)
_declare("sv_pack", N, A, A, N, N, N, N, N, A)
_declare("sv_linear_new", A, A, A, N, N)
_declare("sv_linear_free", None, A)
_declare("sv_linear_row", None, A, N, A)
_declare("sv_linear_apply", N, A, A, N, A, N, N)
_declare("sv_layer_norm", None, A, A, A, N, N, A)
_declare("sv_attend_self", N, A, A, N, N, A)
_declare("sv_attend_cross", N, A, N, A, A, N, N, N, N, A, A, A)
_declare("sv_choose", N, A, N, N, N, N, N, A, A)
_declare("sv_decoder_new", A, N, N, N, N, N)
_declare("sv_decoder_free", None, A)
_declare("sv_decoder_table", None, A, N, N, A, N, N)
_declare("sv_decoder_norm", None, A, N, N, A, A)
_declare("sv_decoder_positions", None, A, A)
_declare("sv_decoder_cross_keys_values", N, A, A, N, ADDRESSES, ADDRESSES, N)
_declare("sv_audio_new", A, N, ADDRESSES, ADDRESSES, N)
_declare("sv_audio_free", None, A)
_declare("sv_row_new", A)
_declare("sv_row_free", None, A)
_declare("sv_row_tokens", N, A)
_declare("sv_row_first", A, A, N)
_declare("sv_row_truncate", None, A, N)
_declare("sv_decoder_step", N, A, A)
_declare("sv_encoder_new", A, N, N, N, N, N)
_declare("sv_encoder_free", None, A)
_declare("sv_encoder_table", None, A, N, N, A, N, N, N)
_declare("sv_encoder_convolution", None, A, N, A, N)
_declare("sv_encoder_norm", None, A, N, N, A, A)
_declare("sv_encoder_positions", None, A, A)
_declare("sv_encoder_padding", None, A, A)
_declare("sv_encoder_encode", N, A, A, N, N)
_declare("sv_frames_new", A)
_declare("sv_frames_free", None, A)
_declare("sv_silero_new", A, ADDRESSES)
_declare("sv_silero_free", None, A)
_declare("sv_silero_detect", N, A, A, N, A, A, A)
_declare("sv_alignatt_end", N, A)
_declare("sv_mean_of_medians", N, A, N, N, N, A, N)
_declare("sv_mel_new", A, A, A, A, N)
_declare("sv_mel_free", None, A)
_declare("sv_mel_power", N, A, A, N, A)
_declare("sv_words_apply", N, A, A, N, N, A, N, A, N)
_declare("sv_attend_tiles", N, A, N, A, A, N, N, A, A)


def pointers(addresses: Sequence[int]) -> ctypes.Array[c_void_p]:
    """Addresses as an array; 0 is no address."""
    return (c_void_p * len(addresses))(*addresses)


def words(numbers: Sequence[int]) -> ctypes.Array[c_int32]:
    """Numbers as 32-bit words."""
    return (c_int32 * len(numbers))(*numbers)


def check(result: int | None) -> int:
    """A result that says that all went well.

    Raises: MemoryError, as nothing else fails there.
    """
    if not result:
        raise MemoryError(f"sottovoce_kernels: {library.sv_error().decode()}")
    return result


class Native:
    """An object of the library, freed with this one.

    It cannot be pickled or copied: both copies would free the same address.
    """

    _free: Callable[[int], None]

    def __init_subclass__(cls, free: str) -> None:
        """free: the name of the library's function that frees such an object."""
        cls._free = getattr(library, free)

    def __init__(self, address: int | None) -> None:
        self.address = check(address)

    def __del__(self) -> None:
        if address := self.__dict__.pop("address", None):
            self._free(address)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        what = "what the native kernels hold cannot be pickled or copied"
        raise TypeError(f"{type(self).__name__}: {what}; load the model in each process")
