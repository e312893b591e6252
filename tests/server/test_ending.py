"""Whatever a server starts has ended when it has: no thread is left inside the model."""

from __future__ import annotations

import threading
import time
from typing import cast

import pytest
from websockets.sync.client import connect

from sottovoce.api import Model
from sottovoce.server.settings import ServerLimits
from sottovoce.server.worker import THREAD_NAME
from tests.server.servers import ServerThread, SlowModel, serving, settings, wait_until


def threads_of_servers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("sottovoce-")}


@pytest.mark.parametrize("seconds", [0.0, 1.5])
def test_a_server_that_ends_leaves_no_thread(seconds: float) -> None:
    """Also where its model is at work for a client that has gone, beyond the time for sessions to end."""
    before = threads_of_servers()
    model = SlowModel(lambda: time.sleep(seconds))
    with serving(model, limits=ServerLimits(shutdown_s=0.1)) as server:
        client = connect(f"ws://{server.address}/v1/live")
        client.send(bytes(64_000))
        wait_until(lambda: model.n_calls > 0)
        names = {thread.name for thread in threads_of_servers() - before}
        assert {name for name in names if not name.startswith(THREAD_NAME)} == {"sottovoce-server"}
        assert len(names) > 1
        client.socket.close()
    client.close()
    assert threads_of_servers() <= before


def test_a_server_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.server.servers.JOIN_TIMEOUT_S", 0.0)
    release, model = threading.Event(), SlowModel(lambda: release.wait(20) and None)
    server = ServerThread(settings(limits=ServerLimits(shutdown_s=0.1)), lambda name: cast(Model, model))
    server.__enter__()
    client = connect(f"ws://{server.address}/v1/live")
    client.send(bytes(64_000))
    wait_until(lambda: model.n_calls > 0)
    with pytest.raises(RuntimeError, match="expected it to end"):
        server.stop()
    release.set()
    server._thread.join(20)
    client.close()
    assert not server._thread.is_alive()
