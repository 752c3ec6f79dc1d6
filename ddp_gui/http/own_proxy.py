"""A proxy that lets only the user of this page through: Jupyter's or Colab's.

It is described by environment variables that `ddp_gui.notebook.page` sets, which other users of the machine
cannot read. The proxy's users reach the page without a login, by a name that is unknown when the page starts.
"""

from __future__ import annotations

import hmac
from collections.abc import MutableMapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from ddp_gui.http.front import App, Receive, Scope, Send

SECRET_VARIABLE = "DDP_PROXY_SECRET"  # noqa: S105 - a name  # nosec B105
ORIGIN_VARIABLE = "DDP_PROXY_ORIGIN"
FRAMES_VARIABLE = "DDP_PROXY_FRAMES"
SECRET_HEADER = "x-rankscope-proxy"  # noqa: S105 - a name  # nosec B105
# Key in a request's scope: the origins whose pages may send the request. Missing for requests without the
# proxy.
ORIGINS_KEY = "ddp_proxy_origins"


@dataclass(frozen=True, kw_only=True)
class OwnProxy:
    """Recognises requests of the proxy by a secret that it sends, or by the page's only origin.

    Attributes:
        secret: the value of `SECRET_HEADER` that only the proxy knows; empty: `origin` is given.
        origin: the origin at which the proxy shows the page, such as https://name; it replaces the names
            that the proxy uses for this server.
        frames: the origins of the pages that may contain this page as a frame.
    """

    secret: str = ""
    origin: str = ""
    frames: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, variables: MutableMapping[str, str]) -> OwnProxy | None:
        """Return the proxy that environment variables describe, or None.

        Removes the variables, so that jobs do not inherit them.

        Raises:
            ValueError: if a value is not an origin.
        """
        secret, origin = variables.pop(SECRET_VARIABLE, ""), variables.pop(ORIGIN_VARIABLE, "")
        frames = tuple(variables.pop(FRAMES_VARIABLE, "").split())
        for value in (*frames, *([origin] if origin else [])):
            _require_origin(value)
        return cls(secret=secret, origin=origin, frames=frames) if secret or origin else None

    def wrap(self, app: App) -> App:
        """Return an app that marks requests of the proxy before other code reads them."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self._mark(scope)
            await app(scope, receive, send)

        return serve

    def _mark(self, scope: Scope) -> None:
        secret = _header_value(scope, SECRET_HEADER)
        scope["headers"] = [
            (name, value) for name, value in scope["headers"] if name != SECRET_HEADER.encode()
        ]
        if self.secret and hmac.compare_digest(secret.encode("latin-1"), self.secret.encode()):
            # Jupyter forwards the host name in the browser's URL unchanged. A proxy in front of Jupyter sets
            # the scheme; without such a proxy, the request's scheme is correct.
            scheme = _header_value(scope, "x-forwarded-proto").partition(",")[0].strip().lower()
            scope["scheme"] = scheme if scheme in ("http", "https") else scope.get("scheme", "http")
            host = _header_value(scope, "host").lower()
            scope[ORIGINS_KEY] = {f"http://{host}", f"https://{host}"}
        elif self.origin and _header_value(scope, "host").lower() in self._names(scope):
            scheme, _, host = self.origin.partition("://")
            scope["scheme"] = scheme
            other_headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope["headers"] = [(b"host", host.encode("latin-1")), *other_headers]
            scope[ORIGINS_KEY] = {self.origin.lower()}

    def _names(self, scope: Scope) -> set[str]:
        """Return the host names of this page that the proxy may send; never others (DNS rebinding)."""
        _, port = scope.get("server") or ("", None)
        return {urlsplit(self.origin).netloc.lower(), f"localhost:{port}", f"127.0.0.1:{port}"}


def _require_origin(text: str) -> None:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or f"{parts.scheme}://{parts.netloc}" != text or "@" in text:
        raise ValueError(f"{text!r} is not an origin such as https://name")
    if not parts.netloc.isascii() or any(letter in text for letter in "\\\"';,*<> "):
        raise ValueError(f"{text!r} is not an origin such as https://name")


def _header_value(scope: Scope, header_name: str) -> str:
    return next(
        (value.decode("latin-1") for name, value in scope["headers"] if name == header_name.encode()), ""
    )
