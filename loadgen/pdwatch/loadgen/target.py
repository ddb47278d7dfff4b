"""Where requests go: the parts of a base URL."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from .errors import PlanError


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server, `prefix` being the path before `/v1`."""

    url: str
    host: str
    port: int
    is_tls: bool
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Target:
        """The target at a base URL, with or without a trailing `/v1`. Raises PlanError."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise PlanError(f"target {url!r} is not a URL ({error}); write it as http://HOST:PORT") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise PlanError(f"target {url!r} is not an http URL; write it as http://HOST:PORT")
        if parts.username or parts.password:
            raise PlanError(
                f"target on {parts.hostname} holds credentials; name an environment variable in "
                "bearer_token_environment instead"
            )
        if parts.query or parts.fragment:
            raise PlanError(f"target {url!r} has a query or a fragment; give the base URL only")
        if not (url.isascii() and url.isprintable() and " " not in url):
            raise PlanError(f"target {url!r} holds characters that no URL may hold; percent-encode them")
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(url, parts.hostname, port or (443 if is_tls else 80), is_tls, prefix)

    @property
    def authority(self) -> str:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"
