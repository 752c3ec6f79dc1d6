"""Tests of explanations of Slurm's reason codes: every code in its manual and its source."""

from __future__ import annotations

import fnmatch
import re

import pytest

from trainers.engines.slurm.reasons import in_words

# The section "JOB REASON CODES" of `man squeue`, version 22.05.
MANUAL = """
AssocGrp*Limit AssociationJobLimit AssocMax*Limit AssociationResourceLimit AssociationTimeLimit
BadConstraints BeginTime Cleaning Dependency DependencyNeverSatisfied FrontEndDown InactiveLimit
InvalidAccount InvalidQOS JobHeldAdmin JobHeldUser JobLaunchFailure Licenses NodeDown NonZeroExitCode
PartitionDown PartitionInactive PartitionNodeLimit PartitionTimeLimit Priority Prolog QOSGrp*Limit
QOSJobLimit QOSMax*Limit QOSResourceLimit QOSTimeLimit QOSUsageThreshold ReqNodeNotAvail Reservation
Resources SystemFailure TimeLimit WaitingForScheduling
"""
# Further codes of versions 22.05 to 25.05, from the page "Job Reason Codes" and the source.
OTHERS = """
None SchedDefer RaisedSignal QOSNotAllowed AccountNotAllowed JobHoldMaxRequeue JobArrayTaskLimit
BurstBufferResources BurstBufferStageIn BurstBufferOperation PowerNotAvail PowerReserved
ReservationDeleted ReservationInvalid Constraints DeadLine PartitionConfig AccountingPolicy FedJobLock
OutOfMemory MaxMemPerLimit
"""
LIMITS = """
AssocGrpBB AssocGrpBBMinutes AssocGrpBBRunMinutes AssocGrpBilling AssocGrpBillingMinutes
AssocGrpBillingRunMinutes AssocGrpCPUMinutesLimit AssocGrpCPURunMinutesLimit AssocGrpCpuLimit
AssocGrpEnergy AssocGrpEnergyMinutes AssocGrpEnergyRunMinutes AssocGrpGRES AssocGrpGRESMinutes
AssocGrpGRESRunMinutes AssocGrpJobsLimit AssocGrpLicense AssocGrpLicenseMinutes
AssocGrpLicenseRunMinutes AssocGrpMemLimit AssocGrpMemMinutes AssocGrpMemRunMinutes
AssocGrpNodeLimit AssocGrpNodeMinutes AssocGrpNodeRunMinutes AssocGrpSubmitJobsLimit AssocGrpUnknown
AssocGrpUnknownMinutes AssocGrpUnknownRunMinutes AssocGrpWallLimit AssocMaxBBMinutesPerJob
AssocMaxBBPerJob AssocMaxBBPerNode AssocMaxBillingMinutesPerJob AssocMaxBillingPerJob
AssocMaxBillingPerNode AssocMaxCpuMinutesPerJobLimit AssocMaxCpuPerJobLimit AssocMaxCpuPerNode
AssocMaxEnergyMinutesPerJob AssocMaxEnergyPerJob AssocMaxEnergyPerNode AssocMaxGRESMinutesPerJob
AssocMaxGRESPerJob AssocMaxGRESPerNode AssocMaxJobsLimit AssocMaxLicenseMinutesPerJob
AssocMaxLicensePerJob AssocMaxMemMinutesPerJob AssocMaxMemPerJob AssocMaxMemPerNode
AssocMaxNodeMinutesPerJob AssocMaxNodePerJobLimit AssocMaxSubmitJobLimit
AssocMaxUnknownMinutesPerJob AssocMaxUnknownPerJob AssocMaxUnknownPerNode
AssocMaxWallDurationPerJobLimit MaxBBPerAccount MaxBillingPerAccount MaxCpuPerAccount
MaxEnergyPerAccount MaxGRESPerAccount MaxJobsPerAccount MaxLicensePerAccount MaxMemoryPerAccount
MaxNodePerAccount MaxSubmitJobsPerAccount MaxUnknownPerAccount QOSGrpBB QOSGrpBBMinutes
QOSGrpBBRunMinutes QOSGrpBilling QOSGrpBillingMinutes QOSGrpBillingRunMinutes QOSGrpCPUMinutesLimit
QOSGrpCPURunMinutesLimit QOSGrpCpuLimit QOSGrpEnergy QOSGrpEnergyMinutes QOSGrpEnergyRunMinutes
QOSGrpGRES QOSGrpGRESMinutes QOSGrpGRESRunMinutes QOSGrpJobsLimit QOSGrpLicense QOSGrpLicenseMinutes
QOSGrpLicenseRunMinutes QOSGrpMemLimit QOSGrpMemoryMinutes QOSGrpMemoryRunMinutes QOSGrpNodeLimit
QOSGrpNodeMinutes QOSGrpNodeRunMinutes QOSGrpSubmitJobsLimit QOSGrpUnknown QOSGrpUnknownMinutes
QOSGrpUnknownRunMinutes QOSGrpWallLimit QOSMaxBBMinutesPerJob QOSMaxBBPerJob QOSMaxBBPerNode
QOSMaxBBPerUser QOSMaxBillingMinutesPerJob QOSMaxBillingPerJob QOSMaxBillingPerNode
QOSMaxBillingPerUser QOSMaxCpuMinutesPerJobLimit QOSMaxCpuPerJobLimit QOSMaxCpuPerNode
QOSMaxCpuPerUserLimit QOSMaxEnergyMinutesPerJob QOSMaxEnergyPerJob QOSMaxEnergyPerNode
QOSMaxEnergyPerUser QOSMaxGRESMinutesPerJob QOSMaxGRESPerJob QOSMaxGRESPerNode QOSMaxGRESPerUser
QOSMaxJobsPerUserLimit QOSMaxLicenseMinutesPerJob QOSMaxLicensePerJob QOSMaxLicensePerUser
QOSMaxMemoryMinutesPerJob QOSMaxMemoryPerJob QOSMaxMemoryPerNode QOSMaxMemoryPerUser
QOSMaxNodeMinutesPerJob QOSMaxNodePerJobLimit QOSMaxNodePerUserLimit QOSMaxSubmitJobPerUserLimit
QOSMaxUnknownMinutesPerJob QOSMaxUnknownPerJob QOSMaxUnknownPerNode QOSMaxUnknownPerUser
QOSMaxWallDurationPerJobLimit QOSMinBB QOSMinBilling QOSMinCpuNotSatisfied QOSMinEnergy QOSMinGRES
QOSMinLicense QOSMinMemory QOSMinNode QOSMinUnknown
"""
WHAT = {
    "CPU": "core",
    "Cpu": "core",
    "Mem": "memory",
    "Node": "node",
    "GRES": "GPU",
    "Jobs": "jobs",
    "SubmitJob": "wait or run",
    "Wall": "time",
    "Energy": "energy",
    "BB": "burst buffer",
    "Billing": "billing",
    "License": "licence",
    "Unknown": "resource",
}


def names() -> list[str]:
    return [*(name for name in MANUAL.split() if "*" not in name), *OTHERS.split(), *LIMITS.split()]


def test_each_reason_is_told_in_sentences_without_slurms_names() -> None:
    for name in names():
        words = in_words(name)
        assert not words.startswith("Slurm says") and words[0].isupper() and words.endswith("."), name
        assert not re.search(r"\b[A-Z][a-z]+[A-Z]|[{}]", words), (name, words)


def test_the_manuals_families_are_among_them() -> None:
    families = [name for name in MANUAL.split() if "*" in name]
    assert len(families) == 4
    assert all(fnmatch.filter(LIMITS.split(), family) for family in families)


def test_a_limit_names_what_it_is_on_and_whose_it_is() -> None:
    for name in LIMITS.split():
        words = in_words(name)
        on = max((sign for sign in WHAT if re.search(rf"(Grp|Max|Min){sign}", name)), key=len)
        assert WHAT[on] in words, name
        is_of_account = name.startswith("Assoc") or name.endswith("PerAccount")
        assert ("your account" in words.lower()) == is_of_account, name
        assert ("(QOS)" in words) == (not name.startswith("Assoc")), name
        assert ("minutes" in words) == ("Minutes" in name), name


def test_limits_of_one_scope_are_told_apart_from_those_of_another() -> None:
    scopes = (
        *("AssocGrpGRES", "AssocGrpGRESMinutes", "AssocGrpGRESRunMinutes"),
        *("AssocMaxGRESPerJob", "AssocMaxGRESPerNode", "AssocMaxGRESMinutesPerJob"),
        *("QOSGrpGRES", "QOSMaxGRESPerUser", "QOSMaxGRESPerJob", "QOSMinGRES", "MaxGRESPerAccount"),
    )
    assert len({in_words(name) for name in scopes}) == len(scopes)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "It starts when enough nodes, cores, memory or GPUs are free."),
        ("Priority", "Jobs with a higher priority start before it."),
        (
            "QOSMaxGRESPerUser",
            "With it, you would have more GPUs at once than its quality of service (QOS) allows.",
        ),
        ("AssocMaxJobsLimit", "With it, you would have more running jobs at once than your account allows."),
        (
            "AssocGrpCPUMinutesLimit",
            "Of the core minutes that your account may use, too little is left for it: ask for less time.",
        ),
        (
            "QOSMaxWallDurationPerJobLimit",
            "It asks for more time than its quality of service (QOS) allows one job: ask for less.",
        ),
        ("", "The scheduler has not considered it yet."),
        ("(null)", "Slurm says: (null)"),
        ("SomethingNew", "Slurm says: SomethingNew"),
        ("burst_buffer/lua: no pool", "Slurm says: burst_buffer/lua: no pool"),
    ],
)
def test_reasons_in_full(reason: str, words: str) -> None:
    assert in_words(reason) == words


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("ReqNodeNotAvail", "down, reserved, or kept free for maintenance."),
        ("ReqNodeNotAvail, UnavailableNodes:gpu_[1-3],gpu_7", "Down or drained: gpu_[1-3],gpu_7."),
        ("ReqNodeNotAvail, UnavailableNodes:", "kept free for maintenance."),
        ("ReqNodeNotAvail, May be reserved for other job", "a shorter time limit may let it start."),
        ("ReqNodeNotAvail, Reserved for maintenance", "a shorter time limit may let it start."),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "All nodes that it could use are down",
        ),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
            "All nodes that it could use are down",
        ),
        ("launch failed requeued held", "could not be started on its nodes and is held"),
        ("launch_failed_requeued_held", "could not be started on its nodes and is held"),
        ("job requeued in held state", "`scontrol release`"),
        ("RaisedSignal:9(Killed)", "ended by a signal"),
    ],
)
def test_what_slurm_adds_to_a_reason_is_understood(reason: str, part: str) -> None:
    words = in_words(reason)
    assert part in words and "Slurm says" not in words
