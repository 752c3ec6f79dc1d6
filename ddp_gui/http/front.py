"""The outermost middleware: serves below a prefix, and removes untrusted proxy headers."""

from __future__ import annotations

from ddp_gui.http.asgi import App, Receive, Scope, Send

# Gradio builds addresses from these, whoever sends them. A trusted proxy's values are in the scope by now.
PROXY_HEADERS = (b"x-forwarded-", b"forwarded", b"x-gradio-server")


class Front:
    """ASGI middleware: serves below a prefix, whether the proxy in front strips it or keeps it."""

    def __init__(self, app: App, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["headers"] = [
            (name, value) for name, value in scope["headers"] if not name.lower().startswith(PROXY_HEADERS)
        ]
        if self._root_path:
            if scope["path"] == self._root_path:
                await _add_slash(self._root_path, scope, send)
                return
            scope["root_path"] = self._root_path
            if not scope["path"].startswith(f"{self._root_path}/"):
                scope["path"] = self._root_path + scope["path"]
                scope["raw_path"] = self._root_path.encode() + scope.get("raw_path", b"")
        await self._app(scope, receive, send)


async def _add_slash(root_path: str, scope: Scope, send: Send) -> None:
    """Links on the first page are relative: without the slash they would lead outside the prefix."""
    query = scope.get("query_string", b"")
    location = root_path.encode() + b"/" + (b"?" + query if query else b"")
    headers = [(b"location", location), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
