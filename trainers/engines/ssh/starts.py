"""One start of a run: its tag, which no other start has, and its hosts. That is the handle of the run."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.contract.status import Handle


@dataclass(frozen=True, kw_only=True)
class Start:
    """One start; the first host is node 0, whose launcher keeps the status."""

    tag: str
    hosts: tuple[str, ...]

    @property
    def handle(self) -> Handle:
        return {"tag": self.tag, "hosts": list(self.hosts)}

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
        return cls(tag=tag, hosts=tuple(hosts))
