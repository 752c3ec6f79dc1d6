"""Permissions of the current user: which runs they may view and change."""

from __future__ import annotations

from ddp_gui.auth.class_settings import ClassSettings
from ddp_gui.auth.current_user import current_user


class NotAllowedError(ValueError):
    """The current user may not do this; says who may."""


def may_see(owner: str | None, settings: ClassSettings) -> bool:
    """Tell whether the current user may view a run of this owner."""
    return may_change(owner) or settings.everyone_sees


def may_change(owner: str | None) -> bool:
    """Tell whether the current user may stop, resume, rename or delete a run of this owner."""
    person = current_user()
    return person.is_teacher or (owner is not None and owner == person.name)


def require_change(run_id: str, owner: str | None) -> None:
    """Require the owner of a run, or a teacher.

    Raises:
        NotAllowedError: for everybody else.
    """
    if not may_change(owner):
        whose = f"belongs to {owner}: only {owner}" if owner else "is nobody's: only"
        raise NotAllowedError(f"run {run_id} {whose}{' or' if owner else ''} a teacher can change it")


def require_teacher(what: str) -> None:
    """Require a teacher; `what` names the action.

    Raises:
        NotAllowedError: for everybody else.
    """
    if not current_user().is_teacher:
        raise NotAllowedError(f"only a teacher can {what}")
