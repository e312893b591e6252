"""The health check of a container: python -m sottovoce.server.health_check [PORT]"""

from __future__ import annotations

import ssl
import sys
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection

TIMEOUT_S = 4.0


def is_ready(port: int) -> bool:
    """Return whether a server of this machine is ready, with or without TLS."""
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    for connection in (
        HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S),
        HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT_S, context=unverified),
    ):
        with closing(connection), suppress(OSError, HTTPException):
            connection.request("GET", "/ready")
            return connection.getresponse().status == 200
    return False


if __name__ == "__main__":
    sys.exit(0 if is_ready(int(sys.argv[1]) if len(sys.argv) > 1 else 8000) else 1)
