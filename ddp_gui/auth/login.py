"""Login: passwords are checked in threads, a few at a time, with limits on failed attempts."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import secrets
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from ddp_gui.auth import passwords
from ddp_gui.auth.account_file import Account, AccountFile
from ddp_gui.auth.current_user import Person
from ddp_gui.auth.login_limits import LoginLimits, TooManyTriesError
from ddp_gui.auth.sessions import Sessions, sessions_path
from ddp_gui.http.hosts import network_of

# Each check takes 32 MiB and a core: training needs the others.
AT_ONCE = 2
MAX_WAITING = 120
# A class behind one address logs in at the same time.
MAX_WAITING_OF_AN_ADDRESS = 60
# Of these, the places of one name, and of all names that have no account; further tries stand in line for
# them, at most as many as an address has places.
PLACES_OF_A_NAME = 2
PLACES_OF_UNKNOWN_NAMES = 15
# Known devices have a thread of their own, which strangers cannot keep busy.
MAX_WAITING_OF_A_NAME = 5
DEVICE_FOR_S = 180 * 24 * 3600


class LoginError(Exception):
    """A refused login; the message is for the person who tries it."""

    def __init__(self, message: str, *, status: int, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class Login:
    """The accounts, the sessions and the limits of one page."""

    def __init__(self, accounts: AccountFile, cookie_name: str) -> None:
        self.cookie_name = cookie_name
        self.device_cookie_name = f"{cookie_name}_device"
        self._accounts = accounts
        self._sessions = Sessions(accounts, sessions_path(accounts))
        self._limits = LoginLimits()
        self._lines = _Places(None, MAX_WAITING_OF_AN_ADDRESS)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._strangers = _Checks(AT_ONCE, MAX_WAITING, MAX_WAITING_OF_AN_ADDRESS)
        # In total as many as there are accounts, times those of one.
        self._known = _Checks(1, None, MAX_WAITING_OF_A_NAME)
        self._lock = threading.Lock()
        self._in_turn: WeakValueDictionary[tuple[str, str], threading.Lock] = WeakValueDictionary()

    async def begin(self, name: str, password: str, address: str, device: str | None = None) -> str:
        """Return the token of a new session for this name and password.

        Args:
            device: the browser's device token. Where this account has logged in before, only failures of that
                browser count, so that nobody else can lock it out.

        Raises:
            LoginError: when they are wrong, or the client has to wait.
        """
        small = name.strip().lower()[:80]
        account = self._accounts.find(small)
        is_known = account is not None and _is_device_of(account, device)
        source, checks = (
            (f"device {device}", self._known) if is_known else (network_of(address), self._strangers)
        )
        try:
            # Before a place in the queue is taken: a name that has to wait delays nobody else.
            self._limits.check(small, source, is_known=is_known)
            async with contextlib.AsyncExitStack() as place:
                if not is_known:
                    await self._stand_in_line(place, source, None if account is None else small)
                place.enter_context(checks.one_more(small if is_known else source))
                is_right = await asyncio.get_running_loop().run_in_executor(
                    checks.threads, self._check, small, source, password, account, is_known
                )
        except TooManyTriesError as error:
            raise _must_wait(error.wait_s) from error
        if account is None or not is_right:
            raise LoginError("The name or the password is wrong.", status=401)
        return self._sessions.begin(account)

    def device_token(self, name: str, device: str | None) -> str:
        """Return the device token of a browser after its login: its own one, or a new one.

        It is signed with the account's mark: a new password or role makes all devices unknown.
        """
        account = self._accounts.find(name.strip().lower()[:80])
        if account is None:
            return ""
        if device is not None and _is_device_of(account, device):
            return device
        return _device_token(account, secrets.token_hex(16))

    def person(self, token: str | None, *, is_seen: bool = True) -> Person | None:
        """Return the person of this token; None if the session has ended."""
        return self._sessions.person(token, is_seen=is_seen) if token else None

    def end(self, token: str | None) -> None:
        """Log somebody out."""
        if token:
            self._sessions.end(token)

    async def _stand_in_line(self, place: contextlib.AsyncExitStack, source: str, name: str | None) -> None:
        """Wait until a stranger's try may take a place: wrong names must not take those of a whole class.

        Args:
            name: None for all that have no account.
        """
        line, most = f"{source} {name}", PLACES_OF_A_NAME
        if name is None:
            line, most = source, PLACES_OF_UNKNOWN_NAMES
        place.enter_context(self._lines.one_more(line))
        await place.enter_async_context(self._shares.setdefault(line, asyncio.Semaphore(most)))

    def _check(self, name: str, source: str, password: str, account: Account | None, is_known: bool) -> bool:
        """Return True if the password is right; runs in a thread.

        A name's checks from one source take turns: those in progress have neither failed nor succeeded.
        """
        with self._lock:
            lock = self._in_turn.setdefault((name, source), threading.Lock())
        with lock:
            self._limits.check(name, source, is_known=is_known)
            # An unknown name takes as long, so that timing does not reveal which accounts exist.
            is_right = passwords.fits(password, passwords.NOBODYS if account is None else account.password)
            self._limits.count(name, source, is_right=is_right and account is not None, is_known=is_known)
        return is_right


class _Places:
    """A limit on those that wait, in all and of one sender."""

    def __init__(self, most: int | None, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()

    @contextlib.contextmanager
    def one_more(self, sender: str) -> Iterator[None]:
        """Count a check while it waits and runs.

        Raises:
            LoginError: when there are too many.
        """
        with self._lock:
            is_full = self._most is not None and self._waiting.total() >= self._most
            if is_full or self._waiting[sender] >= self._most_of_one:
                raise LoginError(
                    "Many people are logging in at this moment. Try again in a few seconds.", status=503
                )
            self._waiting[sender] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[sender] -= 1
                if not self._waiting[sender]:
                    del self._waiting[sender]


class _Checks(_Places):
    """Threads that check passwords, with a limit on the checks that wait for one."""

    def __init__(self, at_once: int, most: int | None, most_of_one: int) -> None:
        super().__init__(most, most_of_one)
        self.threads = ThreadPoolExecutor(at_once, thread_name_prefix="password")


def _device_token(account: Account, number: str) -> str:
    signature = hmac.new(account.mark.encode(), f"device {number}".encode(), "sha256").hexdigest()
    return f"{number}.{signature}"


def _is_device_of(account: Account, device: str | None) -> bool:
    if device is None:
        return False
    expected = _device_token(account, device.partition(".")[0])
    return hmac.compare_digest(device.encode(), expected.encode())


def _must_wait(wait_s: float) -> LoginError:
    whole_s = max(1, math.ceil(wait_s))
    seconds = "1 second" if whole_s == 1 else f"{whole_s} seconds"
    return LoginError(
        f"Too many failed attempts. Try again in {seconds}.",
        status=429,
        retry_after_s=whole_s,
    )
