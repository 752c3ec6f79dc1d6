"""The command line's options, and what must go together."""

from __future__ import annotations

import ipaddress
import stat
from dataclasses import dataclass
from pathlib import Path

from trainers.machine import processor

# Fewer would show nothing of several ranks.
FEWEST_CPU_RANKS_OF_A_CLASS = 2


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the page is served, and to whom."""

    host: str
    port: int
    runs_dir: Path
    open_browser: bool
    # Who may log in; None: nobody has to.
    auth_file: Path | None = None
    # Others may reach the page without logging in.
    is_insecure: bool = False
    # Where a reverse proxy puts the page, such as /ddp; empty: at the top.
    root_path: str = ""
    # Further names of this machine, as browsers know it.
    allowed_hosts: tuple[str, ...] = ()
    # The addresses of proxies that are believed when they say whom they ask for.
    trusted_proxies: str = ""
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    # The folders on this machine whose files students may train on.
    data_dirs: tuple[Path, ...] = ()
    # As many CPU ranks are handed out at once; None is as many as are asked for.
    cpu_ranks: int | None = None
    # Ranks stand by while nothing runs, so that Start needs no imports.
    keeps_standby: bool = True

    @property
    def handed_out_cpu_ranks(self) -> int | None:
        """As many CPU ranks are handed out at once: where people log in no more than there are cores."""
        if self.cpu_ranks is not None or self.auth_file is None:
            return self.cpu_ranks
        return max(FEWEST_CPU_RANKS_OF_A_CLASS, processor.num_cores())

    @property
    def is_one_users(self) -> bool:
        """Only whoever has started the page may use it: nobody logs in to say who it is."""
        return self.auth_file is None and not self.is_insecure

    @property
    def is_tls(self) -> bool:
        return self.ssl_certfile is not None


def check(options: Options) -> None:
    """Refuse what would be open to others by mistake, or cannot work.

    Raises:
        ValueError: saying what to do instead.
    """
    reached_by = _reached_by(options)
    if reached_by and options.auth_file is None and not options.is_insecure:
        raise ValueError(
            f"{reached_by}, and without a login anybody who reaches this page can start jobs here. Either "
            "make accounts (python -m ddp_gui.accounts accounts.json add YOUR-NAME --role teacher) and add "
            "--auth-file accounts.json, or add --insecure if everybody there may do everything"
        )
    if (options.ssl_certfile is None) != (options.ssl_keyfile is None):
        raise ValueError("--ssl-certfile and --ssl-keyfile go together: give both or none")
    for file in (options.ssl_certfile, options.ssl_keyfile):
        if file is not None and not file.is_file():
            raise ValueError(f"there is no file {file}")
    if (key := options.ssl_keyfile) is not None and key.stat().st_mode & stat.S_IROTH:
        raise ValueError(f"every user of this machine can read the private key {key}: chmod o-r {key}")


def root_path(text: str) -> str:
    """Return a prefix as the rest expects it: with a slash at its beginning and none at its end.

    Raises:
        ValueError: when it is more than a path.
    """
    stripped = text.strip("/")
    if any(part in ("", ".", "..") for part in stripped.split("/") if stripped) or not stripped.isascii():
        raise ValueError(f"--root-path is {text!r}, but allowed is: a path such as /ddp")
    if any(letter in stripped for letter in "?#%:\\\"'<> "):
        raise ValueError(f"--root-path is {text!r}, but allowed is: a path such as /ddp, not a whole address")
    return f"/{stripped}" if stripped else ""


def is_only_here(host: str) -> bool:
    """Tell whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reached_by(options: Options) -> str:
    """Say by which option others reach the page; nothing where none does."""
    if not is_only_here(options.host):
        return f"--host {options.host} opens the page to other machines"
    if options.allowed_hosts:
        return f"--allow-host {options.allowed_hosts[0]} means that others reach the page by that name"
    if options.trusted_proxies:
        return "--proxy-from means that others reach the page through a proxy"
    return ""
