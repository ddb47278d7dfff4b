"""TLS between memory and memory, so that a socket under it is read and written like any other."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from .errors import PlanError


def tls_context(ca_file: Path | None, is_verified: bool) -> ssl.SSLContext:
    """How a server's certificate is checked. Raises PlanError for a `ca_file` that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise PlanError(f"ca_file {ca_file} cannot be used ({error.strerror}); give a PEM file") from None
    if not is_verified:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Tls:
    """One connection's session."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        # the type stubs know only the form of `read` that gives bytes.
        self._session: Any = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def has_shaken_hands(self) -> bool:
        """Go on with the handshake; whether it is done. `outgoing` may hold bytes to be sent either way.

        Raises ssl.SSLError.
        """
        try:
            self._session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def take(self, received: memoryview) -> None:
        """Take bytes off the socket; none tell its end."""
        if received:
            self._incoming.write(received)
        else:
            self._incoming.write_eof()

    def read_into(self, view: memoryview) -> int:
        """Decipher what was taken into `view`, which holds at least as much; how much it was, 0 at the session's end.

        Raises ssl.SSLWantReadError when more must be taken first, ssl.SSLError when the end is not the session's.
        """
        count = 0
        try:
            while more := self._session.read(len(view) - count, view[count:]):
                count += more
        except ssl.SSLWantReadError:
            if not count:
                raise
        except ssl.SSLZeroReturnError:
            pass
        except ssl.SSLError:
            # what came before is whole; the next read meets the same error.
            if not count:
                raise
        return count

    def sealed(self, message: bytes) -> bytes:
        """What to send for a message."""
        self._session.write(message)
        return self.outgoing()

    def outgoing(self) -> bytes:
        """Bytes that are to be sent."""
        return self._outgoing.read()
