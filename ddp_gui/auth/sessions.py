"""Login sessions: random tokens, stored as hashes, that expire."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ddp_gui.auth.account_file import Account, AccountFile
from ddp_gui.auth.rights import Person
from trainers.files.json_files import read_json, write_json_atomically
from trainers.machine.os_errors import explain

IDLE_S = 2 * 3600.0
ABSOLUTE_S = 24 * 3600.0
MAX_PER_PERSON = 20
# Interval at which the time of last use is written; a restart of the page loses at most this much.
WRITE_EVERY_S = 60.0


@dataclass
class Session:
    """A login in a browser; `mark` is the account's mark at the login."""

    name: str
    mark: str
    began_unix_s: float
    seen_unix_s: float


class Sessions:
    """The sessions, in a file, so that they survive a restart of the page."""

    def __init__(self, accounts: AccountFile, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._accounts = accounts
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._written_unix_s = clock()
        self._sessions = self._load()

    def begin(self, account: Account) -> str:
        """Return the token of a new session."""
        token = secrets.token_urlsafe(32)
        now = self._clock()
        with self._lock:
            self._drop_old()
            own_sessions = [key for key, session in self._sessions.items() if session.name == account.name]
            for oldest in own_sessions[: max(0, len(own_sessions) - MAX_PER_PERSON + 1)]:
                del self._sessions[oldest]
            session = Session(name=account.name, mark=account.mark, began_unix_s=now, seen_unix_s=now)
            self._sessions[_key(token)] = session
            self._write()
        return token

    def person(self, token: str, *, is_seen: bool = True) -> Person | None:
        """Return the user of a session, or None if it has ended.

        Args:
            is_seen: True to record this call as a use of the session.
        """
        now = self._clock()
        with self._lock:
            session = self._sessions.get(_key(token))
            if session is None:
                return None
            account = self._accounts.find(session.name)
            if self._is_over(session, now) or account is None or account.mark != session.mark:
                del self._sessions[_key(token)]
                self._write()
                return None
            if is_seen:
                session.seen_unix_s = now
                if now - self._written_unix_s > WRITE_EVERY_S:
                    self._write()
            return account.person

    def end(self, token: str) -> None:
        """End a session (logout)."""
        with self._lock:
            if self._sessions.pop(_key(token), None) is not None:
                self._write()

    def _drop_old(self) -> None:
        now = self._clock()
        self._sessions = {
            key: session for key, session in self._sessions.items() if not self._is_over(session, now)
        }

    def _is_over(self, session: Session, now: float) -> bool:
        return now - session.seen_unix_s > IDLE_S or now - session.began_unix_s > ABSOLUTE_S

    def _write(self) -> None:
        self._written_unix_s = self._clock()
        try:
            sessions = {key: asdict(session) for key, session in self._sessions.items()}
            write_json_atomically(self._path, sessions, mode=0o600)
        except OSError as error:
            print(f"{self._path} cannot be written ({explain(error)}): a restart will log all users out.")

    def _load(self) -> dict[str, Session]:
        try:
            raw = read_json(self._path, must_be_ours=True)
            return {key: Session(**values) for key, values in raw.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            print(f"{self._path} is damaged ({explain(error)}): all users must log in again.")
            return {}


def sessions_path(accounts: AccountFile) -> Path:
    """Return the path of the sessions file, next to the accounts."""
    return accounts.path.with_name(f"{accounts.path.name}.sessions")


def _key(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", errors="surrogatepass")).hexdigest()
