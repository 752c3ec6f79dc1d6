"""Login: passwords are checked in threads, a few at a time, with a rate limit."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor

from ddp_gui.auth import passwords
from ddp_gui.auth.account_file import Account, AccountFile
from ddp_gui.auth.current_user import Person
from ddp_gui.auth.login_limits import LoginLimits, TooManyTriesError
from ddp_gui.auth.sessions import Sessions, sessions_path

# Each check takes 32 MiB and a core: training needs the others.
AT_ONCE = 2
MAX_WAITING = 60


class LoginError(Exception):
    """Somebody cannot log in; the message is for them."""

    def __init__(self, message: str, *, status: int, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class Login:
    """The accounts, the sessions and the limits of one page."""

    def __init__(self, accounts: AccountFile, cookie_name: str) -> None:
        self.cookie_name = cookie_name
        self._accounts = accounts
        self._sessions = Sessions(accounts, sessions_path(accounts))
        self._limits = LoginLimits()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="password")
        self._num_waiting = 0

    async def begin(self, name: str, password: str, address: str) -> str:
        """Return the token of a new session for this name and password.

        Raises:
            LoginError: when they are wrong, or the client has to wait.
        """
        small = name.strip().lower()[:80]
        try:
            self._limits.begin(small, address)
        except TooManyTriesError as error:
            raise _must_wait(error.wait_s) from error
        if self._num_waiting >= MAX_WAITING:
            self._limits.withdraw(small, address)
            raise LoginError(
                "Many people are logging in at this moment. Try again in a few seconds.", status=503
            )
        account = self._accounts.find(small)
        self._num_waiting += 1
        try:
            is_right = await asyncio.get_running_loop().run_in_executor(
                self._threads, _is_right, password, account
            )
        finally:
            self._num_waiting -= 1
        if account is None or not is_right:
            raise LoginError("The name or the password is wrong.", status=401)
        self._limits.succeed(small, address)
        return self._sessions.begin(account)

    def person(self, token: str | None, *, is_seen: bool = True) -> Person | None:
        """Return the person of this token; None if the session has ended."""
        return self._sessions.person(token, is_seen=is_seen) if token else None

    def end(self, token: str | None) -> None:
        """Log somebody out."""
        if token:
            self._sessions.end(token)


def _is_right(password: str, account: Account | None) -> bool:
    # An unknown name takes as long, so that timing does not reveal which accounts exist.
    return passwords.fits(password, passwords.NOBODYS if account is None else account.password)


def _must_wait(wait_s: float) -> LoginError:
    whole_s = max(1, math.ceil(wait_s))
    seconds = "1 second" if whole_s == 1 else f"{whole_s} seconds"
    return LoginError(
        f"Too many failed attempts. Try again in {seconds}.",
        status=429,
        retry_after_s=whole_s,
    )
