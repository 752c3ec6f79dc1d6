"""One start of a run: its tag, which no other start has, and its hosts. That is the handle of the run."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.status import Handle


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start; the first host is node 0, whose launcher keeps the status.

    Attributes:
        run_dir: the run's folder on its host, where it was brought there; empty: the hosts share it.
    """

    tag: str
    hosts: tuple[str, ...]
    run_dir: str = ""

    @property
    def handle(self) -> Handle:
        brought = {"run_dir": self.run_dir} if self.run_dir else {}
        return {"tag": self.tag, "hosts": list(self.hosts), **brought}

    @classmethod
    def of(cls, handle: Handle) -> Start | None:
        """Return the start that a handle names; None where it names none."""
        if not isinstance(handle, dict):
            return None
        tag, hosts = handle.get("tag"), handle.get("hosts")
        if not isinstance(tag, str) or not tag or not isinstance(hosts, list) or not hosts:
            return None
        if not all(isinstance(name, str) for name in hosts):
            return None
        run_dir = handle.get("run_dir", "")
        return cls(tag=tag, hosts=tuple(hosts), run_dir=run_dir if isinstance(run_dir, str) else "")
