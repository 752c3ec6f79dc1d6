"""Explanations of Slurm's reasons, as `squeue` prints them, for waiting and for the end of a job."""

from __future__ import annotations

import re

_NOT_CONSIDERED = "The scheduler has not considered it yet."
_HELD = "It was put back into the queue and is held: `scontrol release` lets it start."
_ASK = "ask an administrator"

# Keys are complete sentences of Slurm, or the part of a reason before its first comma or colon.
_WORDS = {
    "": _NOT_CONSIDERED,
    "None": _NOT_CONSIDERED,
    "WaitingForScheduling": _NOT_CONSIDERED,
    "SchedDefer": _NOT_CONSIDERED,
    "Resources": "It starts when enough nodes, cores, memory or GPUs are free.",
    "Priority": "Jobs with a higher priority start before it.",
    "Dependency": "It waits for the job that it depends on.",
    "DependencyNeverSatisfied": "The job that it depends on did not end as required: it never starts.",
    "BeginTime": "It may not start yet; after a requeue Slurm lets about two minutes pass.",
    "JobHeldUser": "You or a coordinator of your account hold it: `scontrol release` lets it start.",
    "JobHeldAdmin": f"An administrator or a limit holds it: {_ASK}.",
    "JobHoldMaxRequeue": f"It was requeued too often and is held: {_ASK}.",
    "launch failed requeued held": f"It could not be started on its nodes and is held: {_ASK}.",
    "job requeued in held state": _HELD,
    "job requeued in special exit state": _HELD,
    "JobLaunchFailure": f"It could not be started on its nodes: {_ASK}.",
    "Prolog": "The cluster prepares its nodes.",
    "Cleaning": "The cluster cleans up after its last start.",
    "Licenses": "It waits for a licence that other jobs use.",
    "JobArrayTaskLimit": "The maximum number of jobs of its array is running.",
    "FedJobLock": "The clusters of the federation agree on where it starts.",
    "DeadLine": "It cannot end before its deadline.",
    "PowerNotAvail": "It waits for electric power that other jobs use.",
    "PowerReserved": "It waits for electric power that is reserved for other jobs.",
    "BurstBufferResources": "It starts when there is enough room in the burst buffer.",
    "BurstBufferStageIn": "Its files are copied to the burst buffer.",
    "BurstBufferOperation": f"Its files could not be copied to or from the burst buffer: {_ASK}.",
    # Nodes
    "ReqNodeNotAvail": "Nodes that it needs are down, reserved, or kept free for maintenance.",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
        "All nodes that it could use are down, drained or reserved. Where only a reservation is near, "
        "a shorter time limit may let it start."
    ),
    "Required nodes outside of the reservation": "It asks for nodes that its reservation does not have.",
    "NodeDown": f"A node that it needs is down: {_ASK}.",
    "FrontEndDown": f"The host that starts jobs is down: {_ASK}.",
    "BadConstraints": "No node has what it asks for, so it never starts: ask for something else.",
    "Constraints": "No node has what it asks for now.",
    "Reservation": "It waits for its reservation to begin.",
    "ReservationDeleted": "Its reservation was deleted: start it without, or in another one.",
    "ReservationInvalid": "Its reservation cannot be used: start it without, or in another one.",
    # Its partition
    "PartitionDown": "Its partition starts no jobs now.",
    "PartitionInactive": "Its partition is closed for new jobs.",
    "PartitionNodeLimit": (
        "It asks for more or fewer nodes than its partition allows, or too many of them are down."
    ),
    "PartitionTimeLimit": "It asks for more time than its partition allows: ask for less.",
    "PartitionConfig": "It asks for something that its partition does not allow.",
    "MaxMemPerLimit": "It asks for more memory for a core or a node than allowed: ask for less.",
    # Its account and its quality of service
    "InvalidAccount": f"Its account is not valid: {_ASK}.",
    "AccountNotAllowed": "Its account may not use this partition.",
    "InvalidQOS": f"Its quality of service (QOS) is not valid: {_ASK}.",
    "QOSNotAllowed": "Its quality of service (QOS) may not be used by your account, or in this partition.",
    "QOSUsageThreshold": "Your account has recently used too much for its quality of service (QOS).",
    "QOSJobLimit": "The maximum number of jobs with its quality of service (QOS) is running.",
    "QOSResourceLimit": "It would exceed a limit of its quality of service (QOS).",
    "QOSTimeLimit": "It would exceed the time that its quality of service (QOS) allows.",
    "AssociationJobLimit": "The maximum number of jobs of your account is running.",
    "AssociationResourceLimit": "It would exceed a limit of your account.",
    "AssociationTimeLimit": "It would exceed the time that your account allows.",
    "AccountingPolicy": "It would exceed a limit of your account or its quality of service (QOS).",
    # Of jobs that have ended
    "TimeLimit": "It reached its time limit.",
    "OutOfMemory": "It needed more memory than it had asked for.",
    "NonZeroExitCode": "It ended with an error.",
    "RaisedSignal": "It was ended by a signal.",
    "InactiveLimit": "The cluster ended it because its launcher was silent for too long.",
    "SystemFailure": f"The cluster failed: {_ASK}.",
}

_OWNERS = {"Assoc": "your account", "QOS": "its quality of service (QOS)"}
# Subject of a limit: as an amount, and multiplied by time.
_AMOUNTS = {
    "BB": ("room in the burst buffer", "burst buffer minutes"),
    "Billing": ("billing units", "billing minutes"),
    "CPU": ("cores", "core minutes"),
    "Cpu": ("cores", "core minutes"),
    "Energy": ("energy", "energy minutes"),
    "GRES": ("GPUs", "GPU minutes"),
    "Jobs": ("running jobs", "job minutes"),
    "License": ("licences", "licence minutes"),
    "Mem": ("memory", "memory minutes"),
    "Memory": ("memory", "memory minutes"),
    "Node": ("nodes", "node minutes"),
    "SubmitJob": ("jobs that wait or run", "job minutes"),
    "SubmitJobs": ("jobs that wait or run", "job minutes"),
    "Unknown": ("of a resource", "minutes of a resource"),
    "Wall": ("running time", "running time"),
    "WallDuration": ("time", "time"),
}
_LIMIT = re.compile(
    rf"(?P<owner>Assoc|QOS)(?P<kind>Grp|Max|Min)(?P<what>{'|'.join(_AMOUNTS)})"
    r"(?P<minutes>Minutes|RunMinutes)?(?P<each>Per(?:Job|Node|User))?(?:Limit|NotSatisfied)?"
)
_LIMIT_OF_ACCOUNT = re.compile(rf"Max(?P<what>{'|'.join(_AMOUNTS)})PerAccount")
# Each text must fit a job that exceeds the limit alone and a job that exceeds it together with other jobs.
_LIMITS = {
    "Grp": "With it, all jobs of {owner} together would have more {what} than they may.",
    "GrpMinutes": "Of the {what} that {owner} may use, too little is left for it: ask for less time.",
    "GrpRunMinutes": "With it, the running jobs of {owner} would have more {what} to go than they may.",
    "Min": "It asks for less than {owner} demands. The limit is on {what}.",
    "PerAccount": "With it, your account would have more {what} at once than {owner} allows.",
    "PerJob": "It asks for more {what} than {owner} allows one job: ask for less.",
    "PerNode": "It asks for more {what} on a node than {owner} allows: ask for less, or for more nodes.",
    "PerUser": "With it, you would have more {what} at once than {owner} allows.",
}


def in_words(reason: str) -> str:
    """Return why a job waits or how it ended; an unknown reason is quoted.

    Use only for jobs that wait or have failed: the reason of a running job is "None", too.
    """
    text = reason.strip().replace("_", " ")
    name = re.split("[,:]", text)[0]
    if name == "ReqNodeNotAvail":
        return _without_nodes(reason)
    words = _WORDS.get(text) or _WORDS.get(name) or _limit_text(name)
    return f"Slurm says: {reason.strip()}" if words is None else words


def _without_nodes(reason: str) -> str:
    """Return why nodes are unavailable, as far as Slurm reports it."""
    if "reserved" in reason.lower():
        return "Nodes that it needs are reserved before it would end: a shorter time limit may let it start."
    words = _WORDS["ReqNodeNotAvail"]
    unavailable = re.search(r"UnavailableNodes:(\S+)", reason)
    return words if unavailable is None else f"{words} Down or drained: {unavailable[1]}."


def _limit_text(name: str) -> str | None:
    """Return the text for a limit, built from the parts of its name; None if it is not a limit."""
    if found := _LIMIT_OF_ACCOUNT.fullmatch(name):
        return _LIMITS["PerAccount"].format(what=_AMOUNTS[found["what"]][0], owner=_OWNERS["QOS"])
    if (found := _LIMIT.fullmatch(name)) is None:
        return None
    is_over_time = found["minutes"] is not None or found["what"] == "Wall"
    if found["kind"] == "Grp":
        scope = f"Grp{found['minutes'] or ('Minutes' if is_over_time else '')}"
    else:
        scope = "Min" if found["kind"] == "Min" else found["each"] or "PerUser"
    return _LIMITS[scope].format(what=_AMOUNTS[found["what"]][is_over_time], owner=_OWNERS[found["owner"]])
