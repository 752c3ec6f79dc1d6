"""The current user: set once per request by the session check, read by everything that depends on it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

Role = Literal["teacher", "student"]
ROLES: tuple[Role, ...] = ("teacher", "student")

# The key of the current user in a request's scope, for handlers that run in another task.
SCOPE_KEY = "ddp_person"


@dataclass(frozen=True)
class Person:
    """Somebody with an account; the name is empty where nobody has to log in."""

    name: str
    role: Role

    @property
    def is_teacher(self) -> bool:
        return self.role == "teacher"


# The current user without a login: whoever reaches the page may do everything.
EVERYBODY = Person(name="", role="teacher")
# The current user with a login but no session: owns nothing and may change nothing.
NOBODY = Person(name="", role="student")

# No default: the context of a request begins empty, and must not hold the rights of a page without logins.
_asking: ContextVar[Person] = ContextVar("ddp_asking")
_default = EVERYBODY


def current_user() -> Person:
    """Return the current user."""
    return _asking.get(_default)


def nobody_by_default() -> None:
    """Make `NOBODY` the default user from now on."""
    global _default
    _default = NOBODY


@contextlib.contextmanager
def asked_by(person: Person) -> Iterator[None]:
    """Let `current_user` return this person inside the block."""
    token = _asking.set(person)
    try:
        yield
    finally:
        _asking.reset(token)
