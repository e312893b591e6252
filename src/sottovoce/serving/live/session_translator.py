"""Translates what is said in a live session, beside the session, which never waits for it.

Events go in as they are sent, translations come out when there are any. Whisper's own English is work of the
model like a recording's; a server that translates is asked in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.to_thread

from sottovoce.errors import TranslationError
from sottovoce.formats.document import Json
from sottovoce.serving.parsing.faults import ApiError, logged_fault
from sottovoce.serving.parsing.fields import wrong
from sottovoce.serving.scheduling.model_work import LiveWork, OwnTranslator
from sottovoce.serving.settings import TranslationSettings
from sottovoce.text.languages import language_codes
from sottovoce.translation.chat import ChatTranslator
from sottovoce.translation.live_translator import LiveTranslation, LiveTranslator, mark_newest
from sottovoce.translation.whisper_translate import N_NEW_WORDS, TARGET
from sottovoce.types import Event, Final, Partial, Samples

logger = logging.getLogger(__name__)

LAST_S = 20.0
"""At most so long the end of a session waits for what is not translated yet."""
Sender = Callable[[dict[str, Json]], Awaitable[None]]


def targets(languages: Sequence[str], translation: TranslationSettings | None) -> tuple[str, ...]:
    """Return codes of the languages into which a model with these languages, or a server, translates live."""
    if translation is not None:
        return language_codes()
    return (TARGET,) if len(languages) > 1 else ()


def session_translator(
    target: str,
    session: LiveWork,
    languages: Sequence[str],
    translation: TranslationSettings | None,
    request_id: str,
) -> SessionTranslator:
    """Make what translates one session into a language.

    languages: of its model. request_id: names the session in the log.

    Raises: ApiError for one that nothing here translates into.
    """
    codes = targets(languages, translation)
    if target not in codes:
        expected = "English, by a model of several languages" if not codes else f"one of {', '.join(codes)}"
        raise wrong("translate_to", expected, f"'{target}'")
    if translation is not None:
        translator = ChatTranslator(translation.chat, target, translation.glossary)
        return SessionTranslator(LiveTranslator(translator), request_id)
    own = session.translator()
    return SessionTranslator(LiveTranslator(own, N_NEW_WORDS), request_id, own)


class SessionTranslator:
    """Translations of one session; made in the event loop that runs it.

    request_id: of errors in the log. own: what hears the audio too, where the model itself translates.
    """

    def __init__(self, translator: LiveTranslator, request_id: str, own: OwnTranslator | None = None) -> None:
        self._translator = translator
        self._request_id = request_id
        self._own = own
        self._waiting: list[Event] = []
        self._came = anyio.Event()
        self._is_done = anyio.Event()
        self._is_done.set()
        self._one_thread = anyio.CapacityLimiter(1)

    def add_audio(self, samples: Samples, worked_s: float) -> None:
        """Take samples (n,) that the session will be given; worked_s: seconds that it has worked on."""
        if self._own is not None:
            self._own.push(samples, worked_s)

    def take(self, events: Sequence[Event]) -> None:
        """Queue events that were sent, in their order."""
        if any(isinstance(event, Partial | Final) for event in events):
            self._waiting += events
            self._is_done = anyio.Event()
            self._came.set()

    async def run(self, send: Sender) -> None:
        """Translate what comes, for ever; a translation that fails is told, and the next is tried."""
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            events, self._waiting = self._waiting, []
            for event, is_newest in mark_newest(events):
                for document in await self._translations(event, is_newest=is_newest):
                    await send(document)
            if not self._waiting:
                self._is_done.set()

    async def finish(self) -> bool:
        """Wait for what is not translated yet, `LAST_S` at most; returns whether all is."""
        with anyio.move_on_after(LAST_S):
            await self._is_done.wait()
        return self._is_done.is_set()

    async def _translations(self, event: Event, *, is_newest: bool) -> list[dict[str, Json]]:
        def work() -> list[LiveTranslation]:
            return list(self._translator.take(event, is_newest=is_newest))

        try:
            found = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._one_thread)
        except Exception as error:
            return [{"type": "error", **self._fault(error).body}]
        return [one.document for one in found]

    def _fault(self, error: Exception) -> ApiError:
        """Return what a client is told; who translates, and what it answered, stay here."""
        if not isinstance(error, TranslationError):
            return logged_fault(error, self._request_id, "translation failed")
        where = str(error).partition(" ")[0].rstrip(":")  # what follows may quote what was said
        logger.warning("translation failed", extra={"request_id": self._request_id, "server": where})
        return NOT_TRANSLATED


NOT_TRANSLATED = ApiError(
    "translation: the server that translates did not do so; what is said goes on",
    status=502,
    kind="server_error",
    code="translation_failed",
)
