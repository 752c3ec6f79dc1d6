"""Tests of explanations of Slurm's reason codes: every code in its manual and its source."""

from __future__ import annotations

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


def names() -> list[str]:
    return [*(name for name in MANUAL.split() if "*" not in name), *OTHERS.split(), *LIMITS.split()]


def test_each_reason_is_told_in_sentences_without_slurms_names() -> None:
    for name in names():
        words = in_words(name)
        assert not words.startswith("Slurm says") and words[0].isupper() and words.endswith("."), name
        assert not re.search(r"\b[A-Z][a-z]+[A-Z]|[{}]", words), (name, words)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "It starts when enough nodes, cores, memory or GPUs are free."),
        ("Priority", "Jobs with a higher priority start before it."),
        (
            "QOSMaxGRESPerUser",
            "With it, you would have more GPUs at once than its quality of service (QOS) allows.",
        ),
        (
            "AssocGrpCPUMinutesLimit",
            "Of the core minutes that your account may use, too little is left for it: ask for less time.",
        ),
        ("", "The scheduler has not considered it yet."),
        ("SomethingNew", "Slurm says: SomethingNew"),
    ],
)
def test_reasons_in_full(reason: str, words: str) -> None:
    assert in_words(reason) == words


@pytest.mark.parametrize(
    ("reason", "part"),
    [
        ("ReqNodeNotAvail", "down, reserved, or kept free for maintenance."),
        ("ReqNodeNotAvail, UnavailableNodes:gpu_[1-3],gpu_7", "Down or drained: gpu_[1-3],gpu_7."),
        ("ReqNodeNotAvail, May be reserved for other job", "a shorter time limit may let it start."),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "All nodes that it could use are down",
        ),
        ("launch failed requeued held", "could not be started on its nodes and is held"),
        ("job requeued in held state", "`scontrol release`"),
        ("RaisedSignal:9(Killed)", "ended by a signal"),
    ],
)
def test_what_slurm_adds_to_a_reason_is_understood(reason: str, part: str) -> None:
    words = in_words(reason)
    assert part in words and "Slurm says" not in words
