"""Whether a run that is not created yet would wait in the queue, at which place and for how long."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ddp_gui.queue import estimate
from ddp_gui.queue.policy import Waiting, decide, in_order
from ddp_gui.queue.presenter import QueueView, in_words
from trainers.contract.tickets import DeviceKind

NEW = ""  # the id of the run that does not exist yet


def expected_wait(
    view: QueueView, person: str, kind: DeviceKind, num_ranks: int, *, may_share: bool
) -> dict[str, Any]:
    """Return the place that a person's run would get now; `place` is None if it would start at once."""
    now = time.time()
    run = Waiting(
        run_id=NEW,
        person=person,
        kind=kind,
        num_ranks=num_ranks,
        asked_unix_s=now,
        may_share=may_share,
    )
    situation = replace(view.snapshot.situation, waiting=[*view.snapshot.situation.waiting, run])
    if any(start.run_id == NEW for start in decide(situation, now)):
        return {"place": None, "starts_in_s": None, "words": ""}
    place = 1 + [each.run_id for each in in_order(situation, now)].index(NEW)
    starts_in_s = estimate.waiting_times(situation, view.ends_in_s, view.usual_s, now).get(NEW)
    return {
        "place": place,
        "starts_in_s": None if starts_in_s is None else round(starts_in_s, 1),
        "words": in_words(place, starts_in_s),
    }
