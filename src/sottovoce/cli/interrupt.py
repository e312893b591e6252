"""Ctrl-C that is not lost.

Python raises KeyboardInterrupt wherever it happens to be. In two places that is as good as nothing: inside
a destructor, and inside a callback from C that drops exceptions. libav reads files through such a callback:
an interrupt there looked like a damaged file, so that a recording ended early and the exit code was 0.
Here an interrupt that falls into one of them is raised a moment later.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

RETRY_S = 0.01
SWALLOWED_S = 3.0
"""An interrupt that nothing came of by then is raised again; tidying up takes less."""
FILES = "sottovoce.audio.sources"
"""The module whose `CheckedFile` libav calls; not imported here, where only help may be wanted."""
CALLBACKS = frozenset({"read", "seek", "tell", "seekable", "readable"})


class Interrupts:
    """Handles SIGINT, and remembers it in case that the exception is swallowed somewhere after all."""

    def __init__(self) -> None:
        self._is_pending = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT in here; does nothing where it is ignored, handled by others, or not ours."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            yield
            return
        signal.signal(signal.SIGINT, self._handle)
        try:
            yield
        finally:
            self.take()
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def check(self) -> None:
        """Raises: KeyboardInterrupt when one came and was not taken."""
        if self._is_pending:
            raise KeyboardInterrupt

    def take(self) -> None:
        """The interrupt was dealt with."""
        self._is_pending = False

    def _handle(self, _: int, frame: FrameType | None) -> None:
        self._is_pending = True
        is_dropped = drops_exceptions(frame)
        again = threading.Timer(RETRY_S if is_dropped else SWALLOWED_S, self._again)
        again.daemon = True
        again.start()
        if not is_dropped:
            raise KeyboardInterrupt

    def _again(self) -> None:
        """Raise it once more in the main thread, unless it was dealt with."""
        if self._is_pending:
            _thread.interrupt_main()


def drops_exceptions(frame: FrameType | None) -> bool:
    """Whether an exception raised in a frame would be dropped on its way up."""
    while frame is not None:
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if name == "__del__" or (module == FILES and name in CALLBACKS):
            return True
        frame = frame.f_back
    return False
