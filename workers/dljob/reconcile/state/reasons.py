"""Every reason of a condition, phase or Event that the operator gives: one table, CamelCase, each with what it means.

PrimeMaster's own reasons (`dljob.telemetry.reasons`), KubeRay's, the kubelet's and the launcher's are passed on as they
are. Reasons are an interface: dashboards and scripts match on them. They are added, not renamed.
"""

from __future__ import annotations

# Accepted.
SPEC_ACCEPTED = "SpecAccepted"  # the spec was read and planned
INVALID_SPEC = "InvalidSpec"  # the loader refuses the spec; its words are the message
DOES_NOT_FIT = "DoesNotFit"  # the roles cannot be placed on the node groups, whatever the cluster has
FORBIDDEN_POD = "ForbiddenPod"  # a template asks for a privileged container, or for the operator's own service account
CHANGE_WAITS = "ChangeWaits"  # the spec was changed after the running attempt began, which goes on with the old one
PLAN_SKEW = "PlanSkew"  # another minor version of dljob runs the attempt than the operator has; it goes on as it is

# QuotaReserved.
QUOTA_RESERVED = "QuotaReserved"  # the queue let the RayCluster in
WAITS_IN_QUEUE = "WaitsInQueue"  # the queue holds the RayCluster suspended

# ClusterReady.
PODS_READY = "PodsReady"  # head and workers are ready
CLUSTER_MISSING = "ClusterMissing"  # the RayCluster is about to be created
RAY_CLUSTER_NOT_FOUND = "RayClusterNotFound"  # there is no RayCluster of the name that spec.rayClusterRef says
TOKEN_UNKNOWN = "TokenUnknown"  # noqa: S105 - spec.rayClusterRef has a token that the operator may not read
KUBERAY_MISSING = "KubeRayMissing"  # the API server serves no RayCluster
KUBERAY_TOO_OLD = "KubeRayTooOld"  # the served RayCluster lacks fields that jobs need
KUBERAY_SILENT = "KubeRaySilent"  # the RayCluster is there, and KubeRay has written nothing to it
NAME_TAKEN = "NameTaken"  # an object of a child's name belongs to somebody else; it is left alone
CREATION_REFUSED = "CreationRefused"  # the API server refuses a child; its words are the message
HEAD_PENDING = "HeadPending"  # the head pod is not ready
POD_STUCK = "PodStuck"  # a pod that should be gone is not, and nothing takes its place meanwhile
WORKERS_PENDING = "WorkersPending"  # the head is ready, not all worker pods are
CLUSTER_SUSPENDED = "ClusterSuspended"  # somebody suspended the RayCluster
CLUSTER_EDITED = "ClusterEdited"  # somebody changed the RayCluster; it is left as it is
CLUSTER_LEAVING = "ClusterLeaving"  # a RayCluster is being deleted
DELETION_REFUSED = "DeletionRefused"  # the API server does not delete a RayCluster that must go; tried again
CLUSTER_DELETED = "ClusterDeleted"  # the job ended and its RayCluster was deleted
CLUSTER_KEPT = "ClusterKept"  # the job ended; cleanupPolicy keeps its RayCluster

CLUSTER_CREATED = "ClusterCreated"  # an Event: an attempt has its RayCluster

# Suspended.
SUSPENDING = "Suspending"  # the job is being suspended: what is in memory is saved, then the attempt ends
JOB_SUSPENDED = "JobSuspended"  # spec.suspend: nothing of the job is left but the DLJob
JOB_RESUMED = "JobResumed"  # spec.suspend is false again: the next attempt begins

# Kubernetes nodes, in Events.
NODE_EXCLUDED = "NodeExcluded"  # a pod leaves a Kubernetes node that is bad, or that somebody excluded
NODE_READMITTED = "NodeReadmitted"  # new pods may go to a Kubernetes node again
POD_FORCED = "PodForced"  # a pod that should be gone is on a node that does not answer, and is deleted by force

# A new attempt; also counted in restarts.cluster.
CLUSTER_GONE = "ClusterGone"  # somebody deleted the RayCluster
HEAD_LOST = "HeadLost"  # the head came back without its memory
HEAD_REPLACED = "HeadReplaced"  # an Event: another head has the memory of the lost one, and nothing else restarted
PREEMPTED = "Preempted"  # the queue took the machines back; this one is not counted
SPEC_CHANGED = "SpecChanged"  # the spec was changed before anything ran: the next attempt has it; not counted, no fault
OPERATOR_UPGRADED = "OperatorUpgraded"  # the operator became another version before anything ran; not counted, no fault
SUBMISSION_FAILED = "SubmissionFailed"  # the launcher could not be started, or died before PrimeMaster answered
MASTER_LOST = "MasterLost"  # the launcher is gone and PrimeMaster does not answer
CLUSTER_RESTARTS_EXHAUSTED = "ClusterRestartsExhausted"  # faultTolerance.maxClusterRestarts are used up: the job failed

# MasterReady.
MASTER_READY = "MasterReady"  # PrimeMaster answers
WAITS_FOR_HEAD = "WaitsForHead"  # nothing was submitted yet
SUBMITTED = "Submitted"  # the launcher was ordered; PrimeMaster has not answered yet
SUBMISSION_REFUSED = "SubmissionRefused"  # Ray's Job API refuses the launcher; its words are the message; tried again
HEAD_MISBEHAVES = "HeadMisbehaves"  # the head answers too much, too slowly, or no JSON; it is left alone for a while
MASTER_UNREACHABLE = "MasterUnreachable"  # PrimeMaster does not answer; what is shown is its last word

# PlacementReady and RolesReady.
WAITS_FOR_MASTER = "WaitsForMaster"  # PrimeMaster has not spoken yet
UNITS_HELD = "UnitsHeld"  # all units have their place
UNITS_PENDING = "UnitsPending"  # some units have no place
ROLES_READY = "RolesReady"  # all ranks of all roles are set up or have ended well
RANKS_PENDING = "RanksPending"  # some ranks are not

# Recovering.
STEADY = "Steady"  # nothing is being restarted
RECOVERING = "Recovering"  # something is being restarted and no fault says why

# Commands by annotation.
COMMAND_SENT = "CommandSent"  # PrimeMaster took the command
COMMAND_REFUSED = "CommandRefused"  # PrimeMaster does not know the target or the kind
COMMAND_IGNORED = "CommandIgnored"  # there was nothing yet that could be restarted

# The end.
COMPLETED = "Completed"  # all drivers ended well
JOB_FAILED = "JobFailed"  # the launcher says so, and nobody can say more
JOB_ENDED = "JobEnded"  # MasterReady, PlacementReady and RolesReady after the end
STOPPED = "StoppedByUser"  # the annotation dljob.io/stop
DEADLINE_EXCEEDED = "DeadlineExceeded"  # activeDeadlineSeconds passed
PRE_RUNNING_DEADLINE = "PreRunningDeadlineExceeded"  # preRunningDeadlineSeconds passed before the job ran
IMAGE_WITHOUT_DLJOB = "ImageWithoutDLJob"  # the head's Python cannot import dljob
LOGS_SAVED = "LogsSaved"  # the tails of the ranks' logs are in a ConfigMap that outlives the RayCluster
LOGS_LOST = "LogsLost"  # the tails of the logs could not be had in time; the RayCluster goes without them

# Phases before PrimeMaster speaks.
PROVISIONING = "Provisioning"  # the pods are being made
STARTING = "Starting"  # PrimeMaster is being started

WARNINGS = frozenset(
    {
        *(INVALID_SPEC, DOES_NOT_FIT, FORBIDDEN_POD, CHANGE_WAITS, NAME_TAKEN, PLAN_SKEW),
        *(KUBERAY_MISSING, KUBERAY_TOO_OLD, KUBERAY_SILENT, POD_STUCK),
        *(
            CREATION_REFUSED,
            RAY_CLUSTER_NOT_FOUND,
            TOKEN_UNKNOWN,
            DELETION_REFUSED,
            CLUSTER_EDITED,
            CLUSTER_GONE,
            HEAD_LOST,
            HEAD_REPLACED,
            PREEMPTED,
            SUBMISSION_FAILED,
            MASTER_LOST,
        ),
        *(CLUSTER_RESTARTS_EXHAUSTED, SUBMISSION_REFUSED, MASTER_UNREACHABLE, COMMAND_REFUSED, COMMAND_IGNORED),
        HEAD_MISBEHAVES,
        *(DEADLINE_EXCEEDED, PRE_RUNNING_DEADLINE, IMAGE_WITHOUT_DLJOB, LOGS_LOST, JOB_FAILED),
    }
)
"""Reasons whose Events are Warnings."""

ALL = frozenset(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))
"""The operator's own; others are passed on from whoever gave them."""
