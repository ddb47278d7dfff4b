"""Short GET requests to processes on loopback: is this one ready?"""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

# for those who ask again and again
PROBE_SECONDS = 0.5
# for those who ask once, of a server that may be busy
ASK_ONCE_SECONDS = 5.0
_ANSWER_BYTES = 65536


def probe(url: str, timeout_seconds: float) -> tuple[int, bytes] | None:
    """Status and first 64 KiB of the answer to ``GET url``; None when there is no whole answer in time.

    Written on http.client because that reads no proxy settings and is in the standard library.
    """
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_seconds)
    try:
        connection.request("GET", parts.path or "/")
        response = connection.getresponse()
        return response.status, response.read(_ANSWER_BYTES)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def is_healthy(base_url: str, timeout_seconds: float = ASK_ONCE_SECONDS) -> bool:
    """Whether ``GET /health`` answers 200 in time."""
    answer = probe(f"{base_url}/health", timeout_seconds)
    return answer is not None and answer[0] == 200
