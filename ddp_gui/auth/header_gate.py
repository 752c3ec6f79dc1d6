"""The check of a login by a proxy: the proxy in front names the person in a header of each request.

Only the proxy's requests arrive here: connections of anybody else are refused before (listening.py).
"""

from __future__ import annotations

from ddp_gui.auth import current_user, session_gate
from ddp_gui.auth.account_file import AccountError, checked_name
from ddp_gui.auth.current_user import Person
from ddp_gui.http.asgi import App, Message, Receive, Refused, Scope, Send
from ddp_gui.http.limits import MAX_AT_ONCE_OF_ONE, AtOnce


class HeaderGate:
    """ASGI middleware: requires the proxy's header and sets the current user; students but for `teachers`."""

    def __init__(self, app: App, header: str, teachers: frozenset[str]) -> None:
        self._app = app
        self._header = header
        self._teachers = teachers
        self._at_once = AtOnce(MAX_AT_ONCE_OF_ONE, "from you")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            Refused: when the proxy does not name exactly one person.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_not_kept(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = session_gate.not_kept(list(message.get("headers", [])))
            await send(message)

        scope[current_user.SCOPE_KEY] = person = self._take_person(scope)
        with current_user.asked_by(person), self._at_once.one_more(person.name):
            await self._app(scope, receive, send_not_kept)

    def _take_person(self, scope: Scope) -> Person:
        """Return the person named, and remove the header: nothing behind this reads it."""
        wanted = self._header.lower().encode("ascii")
        values = [value for name, value in scope["headers"] if name.lower() == wanted]
        scope["headers"] = [(name, value) for name, value in scope["headers"] if name.lower() != wanted]
        name = _name(values, self._header)
        return Person(name=name, role="teacher" if name in self._teachers else "student")


def _name(values: list[bytes], header: str) -> str:
    """Return the account name that these values of the header are.

    Raises:
        Refused: when they are not exactly one name.
    """
    if not any(values):
        raise Refused(
            401, f"You are not logged in: the proxy in front of this page sent no name in {header}."
        )
    if len(values) > 1 or b"," in values[0]:
        raise Refused(400, f"The proxy in front of this page must send exactly one name in {header}.")
    written = values[0].decode("latin-1")
    if not (written.isascii() and written.isprintable()):
        raise Refused(
            400, f"The name in {header} has letters other than ASCII. The proxy must send a plain name."
        )
    try:
        return checked_name(written)
    except AccountError as error:
        hint = " The proxy should send the part before the @." if "@" in written else ""
        raise Refused(403, f"The name in {header} cannot be used: {error}.{hint}") from error
