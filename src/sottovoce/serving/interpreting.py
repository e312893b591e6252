"""What is said in a live session, in another language: made beside the session, which never waits for it.

Events go in as they are sent, translations come out when there are any. Whisper's own English is work of the
model like a recording's; a server that translates is asked in a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

import anyio
import anyio.to_thread

from sottovoce.errors import TranslationError
from sottovoce.formats.document import Json
from sottovoce.serving.faults import ApiError, logged_fault
from sottovoce.serving.fields import wrong
from sottovoce.serving.scheduler import Scheduler
from sottovoce.serving.settings import Translation
from sottovoce.serving.told import Told
from sottovoce.text.languages import language_codes
from sottovoce.translation.live import LiveTranslator, Translated, newest
from sottovoce.translation.own import TARGET
from sottovoce.translation.own_live import N_NEW_WORDS, OwnTranslator
from sottovoce.translation.said import Interpreter, Said
from sottovoce.translation.translator import Translator
from sottovoce.types import Event, Final, Partial, Samples

logger = logging.getLogger(__name__)

LAST_S = 20.0
"""At most so long the end of a session waits for what is not translated yet."""
Send = Callable[[dict[str, Json]], Awaitable[None]]


def targets(languages: Sequence[str], translation: Translation | None) -> tuple[str, ...]:
    """Codes of the languages that live speech can be translated into, of a model with these languages."""
    if translation is not None:
        return language_codes()
    return (TARGET,) if len(languages) > 1 else ()


def interpreting(
    target: str, scheduler: Scheduler, translation: Translation | None, request_id: str
) -> Interpreting:
    """What translates one session, under a request id, into a language.

    Raises: ApiError for one that nothing here translates into.
    """
    known = targets(scheduler.model.languages, translation)
    if target not in known:
        expected = "English, by a model of several languages" if not known else f"one of {', '.join(known)}"
        raise wrong("translate_to", expected, f"'{target}'")
    if translation is not None:
        translator = Translator(translation.chat, target, translation.glossary)
        return Interpreting(LiveTranslator(translator), request_id)
    own = OwnTranslator(scheduler.for_recordings)
    return Interpreting(LiveTranslator(Turns(own, scheduler), N_NEW_WORDS), request_id, own)


@dataclass(frozen=True, slots=True)
class Turns:
    """An interpreter whose work is the model's, which does it when live sessions leave it time to."""

    own: Interpreter
    scheduler: Scheduler

    @property
    def target(self) -> str:
        return self.own.target

    def spoken(self, said: Said) -> str:
        """See `Interpreter`; called in a thread that may wait."""
        return self.scheduler.aside(lambda: self.own.spoken(said)).result()


class Interpreting:
    """Translations of one session; made in the event loop that runs it.

    request_id: of errors in the log. own: what hears its audio too, where the model itself translates.
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

    def hear(self, samples: Samples, worked_s: float) -> None:
        """Samples (n,) that the session will be given; worked_s: of all, that it has worked on."""
        if self._own is not None:
            self._own.hear(samples, worked_s=worked_s)

    def take(self, told: Sequence[Told]) -> None:
        """Events that were sent, in their order."""
        events = [replace(one.event, utterance=one.utterance) for one in told]
        if any(isinstance(event, Partial | Final) for event in events):
            self._waiting += events
            self._is_done = anyio.Event()
            self._came.set()

    async def run(self, send: Send) -> None:
        """Translate what comes, for ever; a translation that fails is told, and the next is tried."""
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            events, self._waiting = self._waiting, []
            for event, is_newest in newest(events):
                for document in await self._translations(event, is_newest=is_newest):
                    await send(document)
            if not self._waiting:
                self._is_done.set()

    async def finish(self) -> bool:
        """Wait for what is not translated yet, `LAST_S` at most; whether all is."""
        with anyio.move_on_after(LAST_S):
            await self._is_done.wait()
        return self._is_done.is_set()

    async def _translations(self, event: Event, *, is_newest: bool) -> list[dict[str, Json]]:
        def work() -> list[Translated]:
            return list(self._translator.take(event, is_newest=is_newest))

        try:
            found = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._one_thread)
        except Exception as error:
            return [{"type": "error", **self._fault(error).body}]
        return [one.document for one in found]

    def _fault(self, error: Exception) -> ApiError:
        """What a client is told; who translates, and what it answered, stay here."""
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
