"""Login: limits, checks and page."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import math
import secrets
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from weakref import WeakValueDictionary

from ddp_gui.auth import account_file
from ddp_gui.auth.account_file import Account, AccountFile
from ddp_gui.auth.rights import Person
from ddp_gui.auth.sessions import Sessions, sessions_path
from ddp_gui.http import shell
from ddp_gui.http.front import network_of

# Free attempts per name and address or device.
FREE_FAILURES = 5
# Free attempts per name from all addresses together, because an attack may use many addresses.
FREE_FAILURES_OF_A_NAME = 50
LONGEST_WAIT_S = 60.0
FORGOTTEN_AFTER_S = 15 * 60.0
MAX_REMEMBERED = 10_000


class TooManyTriesError(Exception):
    """Too many failed attempts; `wait_s` is the time until the next one is allowed."""

    def __init__(self, wait_s: float) -> None:
        super().__init__(f"wait {wait_s:.0f} s")
        self.wait_s = wait_s


@dataclass
class _Failures:
    count: int = 0
    newest_s: float = 0.0
    free_again_s: float = 0.0


Key = tuple[str, ...]


class Failures:
    """Failed attempts by key; bounded in number and age."""

    def __init__(self, free: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._free = free
        self._clock = clock
        self._found: OrderedDict[Key, _Failures] = OrderedDict()

    def wait_s(self, key: Key) -> float:
        """Return the seconds until the next attempt is allowed."""
        self._forget_old()
        found = self._found.get(key)
        return max(0.0, found.free_again_s - self._clock()) if found else 0.0

    def add(self, key: Key) -> None:
        """Count a failure."""
        found = self._found.setdefault(key, _Failures())
        self._found.move_to_end(key)
        found.count += 1
        found.newest_s = now = self._clock()
        beyond = found.count - self._free
        if beyond >= 0:
            found.free_again_s = now + min(LONGEST_WAIT_S, 2.0 ** min(beyond, 10))
        while len(self._found) > MAX_REMEMBERED:
            self._found.popitem(last=False)

    def forget(self, key: Key) -> None:
        """Clear the failures of this key."""
        self._found.pop(key, None)

    def _forget_old(self) -> None:
        oldest_s = self._clock() - FORGOTTEN_AFTER_S
        while self._found and next(iter(self._found.values())).newest_s < oldest_s:
            self._found.popitem(last=False)


class LoginLimits:
    """Limits per name and source, and per name for all unknown sources together; thread-safe.

    A source is an address, or a device on which the account has logged in before. An address alone has no
    limit, so that one phone's failures cannot lock out a class behind the same address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._pairs = Failures(FREE_FAILURES, clock)
        self._names = Failures(FREE_FAILURES_OF_A_NAME, clock)

    def check(self, name: str, source: str, *, is_known: bool = False) -> None:
        """Return if the client may try a password now.

        Args:
            is_known: True if the source is a known device, for which failures elsewhere do not count.
        Raises:
            TooManyTriesError: if the client must wait.
        """
        with self._lock:
            wait_s = self._pairs.wait_s((name, source))
            if not is_known:
                wait_s = max(wait_s, self._names.wait_s((name,)))
        if wait_s > 0:
            raise TooManyTriesError(wait_s)

    def count(self, name: str, source: str, *, is_right: bool, is_known: bool = False) -> None:
        """Count a checked attempt; a correct password clears the failures of its source."""
        with self._lock:
            if is_right:
                self._pairs.forget((name, source))
                return
            self._pairs.add((name, source))
            if not is_known:
                self._names.add((name,))


TITLE = "Log in · Rankscope"
# The only files served without a session, in addition to the login page.
FILES = (
    "live/assets/css/shared/colours.css",
    "live/assets/css/auth/login.css",
    "live/assets/icons/favicon.svg",
    "live/assets/js/first.js",
    shell.TYPEFACE,
)


def render_login_page(wished: str, name: str = "", problem: str = "") -> str:
    """Return the login page as HTML.

    Args:
        wished: the URL to open after the login.
        name: the name entered before.
        problem: why the last attempt failed.
    """
    alert = f'<p class="ddp-login-problem" role="alert" id="problem">{escape(problem)}</p>' if problem else ""
    described = ' aria-describedby="problem" aria-invalid="true"' if problem else ""
    # If the name is filled in, the password field gets the focus.
    focus_name, focus_password = ("", " autofocus") if name else (" autofocus", "")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{TITLE}</title>
<link rel="stylesheet" href="./{FILES[0]}">
<link rel="stylesheet" href="./{FILES[1]}">
<link rel="icon" href="./{FILES[2]}">
<script src="./{FILES[3]}"></script>
</head>
<body class="ddp-login-body">
<main class="ddp-login">
<p class="ddp-login-brand">Rankscope</p>
<h1>Log in</h1>
<p class="ddp-login-words">Train networks on several GPUs at once, and watch it happen.</p>
{alert}
<form method="post" action="./login">
<input type="hidden" name="next" value="{escape(wished, quote=True)}">
<label for="username">Name</label>
<input id="username" name="username" value="{escape(name, quote=True)}"
 autocomplete="username" autocapitalize="none" spellcheck="false" maxlength="80"
 required{focus_name}{described}>
<label for="password">Password</label>
<input id="password" name="password" type="password" autocomplete="current-password" maxlength="200"
 required{focus_password}{described}>
<button type="submit">Log in</button>
</form>
<p class="ddp-login-words">No account, or forgot your password? Ask the person who set up this page.</p>
</main>
</body>
</html>
"""


# Number of concurrent checks: each takes 32 MiB and a core, and training needs the other cores.
AT_ONCE = 2
MAX_WAITING = 120
# Maximum number of waiting checks per address: a class behind one address logs in at the same time.
MAX_WAITING_OF_AN_ADDRESS = 60
# Limits within an address, for one name and for all names without an account. Further attempts wait.
PLACES_OF_A_NAME = 2
PLACES_OF_UNKNOWN_NAMES = 15
# Known devices have their own thread, so that attempts from unknown sources cannot delay them.
MAX_WAITING_OF_A_NAME = 5
DEVICE_FOR_S = 180 * 24 * 3600


class LoginError(Exception):
    """A refused login; the message is for the user."""

    def __init__(self, message: str, *, status: int, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class Login:
    """The accounts, the sessions and the limits of one page."""

    def __init__(
        self, accounts: AccountFile, cookie_name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cookie_name = cookie_name
        self.device_cookie_name = f"{cookie_name}_device"
        self._accounts = accounts
        self._sessions = Sessions(accounts, sessions_path(accounts))
        self._limits = LoginLimits(clock)
        self._lines = _Places(None, MAX_WAITING_OF_AN_ADDRESS)
        self._shares: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._strangers = _Checks(AT_ONCE, MAX_WAITING, MAX_WAITING_OF_AN_ADDRESS)
        # No total limit is needed, because the number of accounts and the limit per account imply one.
        self._known = _Checks(1, None, MAX_WAITING_OF_A_NAME)
        self._lock = threading.Lock()
        self._in_turn: WeakValueDictionary[tuple[str, str], threading.Lock] = WeakValueDictionary()

    async def begin(self, name: str, password: str, address: str, device: str | None = None) -> str:
        """Return the token of a new session for this name and password.

        Args:
            device: the browser's device token. If this account has logged in on this device before, only
                failures of this browser count, so that no other client can lock it out.
        Raises:
            LoginError: if name or password is wrong, or the client must wait.
        """
        small = name.strip().lower()[:80]
        account = self._accounts.find(small)
        is_known = account is not None and _is_device_of(account, device)
        source, checks = (
            (f"device {device}", self._known) if is_known else (network_of(address), self._strangers)
        )
        try:
            # Check the limit before waiting, so that a blocked name does not delay other users.
            self._limits.check(small, source, is_known=is_known)
            async with contextlib.AsyncExitStack() as place:
                if not is_known:
                    await self._wait_for_place(place, source, None if account is None else small)
                place.enter_context(checks.admit(small if is_known else source))
                is_right = await asyncio.get_running_loop().run_in_executor(
                    checks.threads, self._check, small, source, password, account, is_known
                )
        except TooManyTriesError as error:
            raise _must_wait(error.wait_s) from error
        if account is None or not is_right:
            raise LoginError("The name or the password is incorrect.", status=401)
        return self._sessions.begin(account)

    def device_token(self, name: str, device: str | None) -> str:
        """Return the device token of a browser after its login: its current one, or a new one.

        The token is signed with the account's mark, so a new password or role makes all devices unknown.
        """
        account = self._accounts.find(name.strip().lower()[:80])
        if account is None:
            return ""
        if device is not None and _is_device_of(account, device):
            return device
        return _device_token(account, secrets.token_hex(16))

    def person(self, token: str | None, *, is_seen: bool = True) -> Person | None:
        """Return the user of this token, or None if the session has ended."""
        return self._sessions.person(token, is_seen=is_seen) if token else None

    def end(self, token: str | None) -> None:
        """End the session of this token (logout)."""
        if token:
            self._sessions.end(token)

    async def _wait_for_place(self, place: contextlib.AsyncExitStack, source: str, name: str | None) -> None:
        """Wait until an attempt from an unknown source may be checked.

        Attempts with wrong names must not delay an entire class.

        Args:
            name: the account's name; None for all names without an account.
        """
        line, most = f"{source} {name}", PLACES_OF_A_NAME
        if name is None:
            line, most = source, PLACES_OF_UNKNOWN_NAMES
        place.enter_context(self._lines.admit(line))
        await place.enter_async_context(self._shares.setdefault(line, asyncio.Semaphore(most)))

    def _check(self, name: str, source: str, password: str, account: Account | None, is_known: bool) -> bool:
        """Return True if the password is correct; runs in a thread.

        Checks of one name from one source run one after the other, because only finished checks count
        against the limit.
        """
        with self._lock:
            lock = self._in_turn.setdefault((name, source), threading.Lock())
        with lock:
            self._limits.check(name, source, is_known=is_known)
            # Check a password also for an unknown name, so that timing does not reveal which accounts exist.
            is_right = account_file.fits_password(
                password, account_file.NOBODYS if account is None else account.password
            )
            self._limits.count(name, source, is_right=is_right and account is not None, is_known=is_known)
        return is_right


class _Places:
    """A limit on waiting checks, in total and per sender."""

    def __init__(self, most: int | None, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()

    @contextlib.contextmanager
    def admit(self, sender: str) -> Iterator[None]:
        """Count a check until it is done.

        Raises:
            LoginError: if there are too many.
        """
        with self._lock:
            is_full = self._most is not None and self._waiting.total() >= self._most
            if is_full or self._waiting[sender] >= self._most_of_one:
                raise LoginError(
                    "Many users are logging in at the moment. Try again in a few seconds.", status=503
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
    """Threads that check passwords, with a limit on waiting checks."""

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
