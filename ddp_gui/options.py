"""The command line's options, and checks of their combinations."""

from __future__ import annotations

import ipaddress
import stat
from dataclasses import dataclass
from pathlib import Path

from trainers.contract.status import LOCAL
from trainers.machine import processor

SLURM = "slurm"
SSH = "ssh"
# Fewer would not show several ranks at work.
FEWEST_CPU_RANKS_OF_A_CLASS = 2


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the page is served, and to whom."""

    host: str
    port: int
    runs_dir: Path
    open_browser: bool
    # The accounts file; None: no login.
    auth_file: Path | None = None
    # Serve others without a login.
    is_insecure: bool = False
    # The path prefix of a reverse proxy, such as /ddp; empty: the root.
    root_path: str = ""
    # Further host names of this machine.
    allowed_hosts: tuple[str, ...] = ()
    # The addresses of proxies whose forwarding headers are trusted.
    trusted_proxies: str = ""
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    # The folders on this machine whose files students may train on.
    data_dirs: tuple[Path, ...] = ()
    # How many CPU ranks the queue allocates at once; None is no limit.
    cpu_ranks: int | None = None
    # Keep a warm pool of ranks, so that Start needs no imports.
    keeps_standby: bool = True
    # Where runs train, by the name of an engine.
    engine: str = LOCAL
    # What an administrator says of the place where runs train (trainers.engines.site_file).
    site_file: Path | None = None

    @property
    def handed_out_cpu_ranks(self) -> int | None:
        """How many CPU ranks the queue allocates at once: with a login at most the number of cores."""
        if self.cpu_ranks is not None or self.auth_file is None:
            return self.cpu_ranks
        return max(FEWEST_CPU_RANKS_OF_A_CLASS, processor.num_cores())

    @property
    def is_one_users(self) -> bool:
        """Without a login only the user who started the page may use it."""
        return self.auth_file is None and not self.is_insecure

    @property
    def is_tls(self) -> bool:
        return self.ssl_certfile is not None


def check(options: Options) -> None:
    """Refuse options that would expose the page by mistake, or cannot work.

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
    if options.engine == SLURM and (options.auth_file is not None or options.is_insecure):
        raise ValueError(
            "--engine slurm submits every job in the name of whoever started the page, so it serves nobody "
            "else: leave out --auth-file and --insecure; each person starts a page of their own"
        )
    if options.engine == SSH and (options.auth_file is not None or options.is_insecure):
        raise ValueError(
            "--engine ssh starts every run with the SSH keys of whoever started the page, so it serves "
            "nobody else: leave out --auth-file and --insecure; each person starts a page of their own"
        )
    if options.engine == SSH and options.site_file is None:
        raise ValueError(
            "--engine ssh needs --site FILE, whose table [ssh] names the hosts, such as: "
            'hosts = [{ name = "pc1" }, { name = "pc2" }]'
        )
    if options.site_file is not None and options.engine == LOCAL:
        raise ValueError(
            "--site describes a cluster, or several machines: add --engine slurm or --engine ssh, or leave "
            "it out; runs on this machine alone read nothing of it"
        )
    if (options.ssl_certfile is None) != (options.ssl_keyfile is None):
        raise ValueError("--ssl-certfile and --ssl-keyfile go together: give both or none")
    for file in (options.ssl_certfile, options.ssl_keyfile):
        if file is not None and not file.is_file():
            raise ValueError(f"there is no file {file}")
    if (key := options.ssl_keyfile) is not None and key.stat().st_mode & stat.S_IROTH:
        raise ValueError(f"every user of this machine can read the private key {key}: chmod o-r {key}")


def root_path(text: str) -> str:
    """Return a normalised prefix: with a leading slash and no trailing one.

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
    """Tell whether an address is reachable from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reached_by(options: Options) -> str:
    """Return the option that exposes the page to others; empty if none does."""
    if not is_only_here(options.host):
        return f"--host {options.host} opens the page to other machines"
    if options.allowed_hosts:
        return f"--allow-host {options.allowed_hosts[0]} means that others reach the page by that name"
    if options.trusted_proxies:
        return "--proxy-from means that others reach the page through a proxy"
    return ""
