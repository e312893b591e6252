"""`/v2/listen`: Deepgram's API of turns, for voice agents.

What may be asked, `flux_params` knows; what is told, `flux_turns`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from starlette.websockets import WebSocket

from sottovoce.formats.document import Json
from sottovoce.serving.apis.deepgram import DeepgramSocket
from sottovoce.serving.apis.flux_params import FluxParams, configured_flux, flux_params
from sottovoce.serving.apis.flux_turns import FluxTurns
from sottovoce.serving.parsing.client_values import read_typed_message
from sottovoce.serving.parsing.faults import ApiError
from sottovoce.serving.parsing.fields import wrong
from sottovoce.serving.parsing.ignored import named, note_ignored
from sottovoce.serving.parsing.pcm import PcmReader
from sottovoce.types import Event

MESSAGES = "CloseStream, ForceEndTurn, Configure or KeepAlive"


async def listen_to_turns(socket: WebSocket) -> None:
    """Serve one stream, from the handshake to the close code."""
    await FluxConnection(socket).serve()


class FluxConnection(DeepgramSocket):
    """A client that wants to know whose turn it is."""

    def __init__(self, socket: WebSocket) -> None:
        super().__init__(socket)
        self._turns = FluxTurns(FluxParams(), self.transport.request_id, is_multi=False)
        self._params_read = self._turns.params
        """With changes that were read and wait in the queue."""

    async def begin(self) -> None:
        """Open what the address asks for; what is wrong with it refuses the handshake.

        Raises: ApiError, OptionError, ModelNotFoundError.
        """
        params = flux_params(self.socket.query_params.multi_items(), self.services.registry)
        self._params_read = params
        self._turns = FluxTurns(params, self.transport.request_id, is_multi=len(params.languages) != 1)
        audio = PcmReader(params.encoding, params.sample_rate) if params.is_raw else None
        note_ignored(self.socket, params.ignored)
        await self.open_stream(params.model or "", params.options, audio)
        await self.send(self._turns.message("Connected"))
        await self._warn(params)

    async def on_message(self, message: bytes | str) -> None:
        """Take audio, or a command. Raises: ApiError for what is neither, with which the stream ends."""
        if isinstance(message, bytes):
            await (self.queue_stream(message) if message else self.close_stream())
            return
        found = read_typed_message(message, f"audio as binary, or {MESSAGES}")
        kind = found["type"]
        if kind == "CloseStream":
            await self.close_stream()
        elif kind == "ForceEndTurn":
            await self.queue.put(self._force)
        elif kind == "Configure":
            await self._take_configure(found)
        elif kind != "KeepAlive":
            raise wrong("type", MESSAGES, f"'{str(kind)[:50]}'")

    def render(self, events: Sequence[Event]) -> Iterator[dict[str, Json]]:
        """Yield what is told of turns."""
        return self._turns.render(events, self.received_s)

    def error_document(self, fault: ApiError) -> dict[str, Json]:
        """Render the fault that ends a stream."""
        code = (fault.code or fault.kind).upper()
        return self._turns.message("Error", code=code, description=fault.message)

    async def on_close(self) -> None:
        """Say the rest; a turn that goes on ends with the stream."""
        await self.send(*self._turns.force(await self.session.close(), self.received_s))

    async def _force(self) -> None:
        await self.send(*self._turns.force(await self.session.finalize(), self.received_s))

    async def _take_configure(self, message: dict[str, object]) -> None:
        try:
            params = configured_flux(self._params_read, message)
        except ApiError as fault:
            await self.send(self._failure(fault))
        else:
            self._params_read = params
            await self.queue.put(partial(self._configure, params))

    async def _configure(self, params: FluxParams) -> None:
        """Go on with other thresholds, terms and languages; what the model cannot do changes nothing."""
        if (fault := await self.attempt(self._change(params))) is not None:
            self._params_read = self._turns.params
            await self.send(self._failure(fault))
            return
        answer: dict[str, Json] = {
            "thresholds": params.thresholds.document,
            "keyterms": list(params.terms),
        }
        if params.has_hints:
            answer["language_hints"] = list(params.languages)
        await self.send(self._turns.message("ConfigureSuccess", **answer))
        await self._warn(params)

    async def _warn(self, params: FluxParams) -> None:
        """Name the parameters without effect, where there are any."""
        if params.ignored:
            text = f"{', '.join(named(params.ignored))}: without effect here"
            await self.send(self._turns.message("Warning", code="UNSUPPORTED_PARAMETER", description=text))

    async def _change(self, params: FluxParams) -> None:
        if params.options != self._turns.params.options:
            await self.emit(await self.session.configure(params.options))
        self._turns.configure(params, self.received_s)

    def _failure(self, fault: ApiError) -> dict[str, Json]:
        code = (fault.code or fault.kind).upper()
        return self._turns.message("ConfigureFailure", code=code, description=fault.message)
