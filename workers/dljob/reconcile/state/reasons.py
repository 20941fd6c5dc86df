"""The reasons of conditions, phases and Events that the operator itself gives, in CamelCase, each with its meaning.

Reasons of PrimeMaster (`dljob.telemetry.reasons`), KubeRay, the kubelet and the launcher are passed on unchanged.
Reasons are an interface that dashboards and scripts match on: new ones are added, none is renamed.
"""

from __future__ import annotations

# Accepted.
SPEC_ACCEPTED = "SpecAccepted"  # the spec was read and planned
INVALID_SPEC = "InvalidSpec"  # the loader refuses the spec; its error is the message
DOES_NOT_FIT = "DoesNotFit"  # the roles cannot be placed on the node groups, whatever the cluster has
FORBIDDEN_POD = "ForbiddenPod"  # a template asks for a privileged container, or for the operator's own service account
CHANGE_WAITS = "ChangeWaits"  # the spec was edited after the running attempt began, which keeps the old one
PLAN_SKEW = "PlanSkew"  # the attempt runs another minor version of dljob than the operator, and keeps it

# QuotaReserved.
QUOTA_RESERVED = "QuotaReserved"  # the queue let the RayCluster in
WAITS_IN_QUEUE = "WaitsInQueue"  # the queue holds the RayCluster suspended

# ClusterReady.
PODS_READY = "PodsReady"  # head and workers are ready
CLUSTER_MISSING = "ClusterMissing"  # the RayCluster is about to be created
RAY_CLUSTER_NOT_FOUND = "RayClusterNotFound"  # the RayCluster that spec.rayClusterRef names does not exist
TOKEN_UNKNOWN = "TokenUnknown"  # noqa: S105 - the operator may not read the token of spec.rayClusterRef
KUBERAY_MISSING = "KubeRayMissing"  # the API server serves no RayCluster
KUBERAY_TOO_OLD = "KubeRayTooOld"  # the served RayCluster lacks fields that jobs need
KUBERAY_SILENT = "KubeRaySilent"  # the RayCluster exists, and KubeRay has written no status to it
NAME_TAKEN = "NameTaken"  # an object with a child's name belongs to another owner; it is left alone
CREATION_REFUSED = "CreationRefused"  # the API server refuses to create a child; its error is the message
HEAD_PENDING = "HeadPending"  # the head pod is not ready
POD_STUCK = "PodStuck"  # a pod that should be gone still exists, so KubeRay does not replace it
WORKERS_PENDING = "WorkersPending"  # the head is ready, some worker pods are not
CLUSTER_SUSPENDED = "ClusterSuspended"  # a user or tool other than a queue suspended the RayCluster
CLUSTER_EDITED = "ClusterEdited"  # a user or tool changed the RayCluster; it is left as it is
CLUSTER_LEAVING = "ClusterLeaving"  # a RayCluster is being deleted
DELETION_REFUSED = "DeletionRefused"  # the API server refuses to delete a RayCluster that must go; tried again
CLUSTER_DELETED = "ClusterDeleted"  # the job ended and its RayCluster was deleted
CLUSTER_KEPT = "ClusterKept"  # the job ended; cleanupPolicy keeps its RayCluster

CLUSTER_CREATED = "ClusterCreated"  # an Event: an attempt has its RayCluster

# Suspended.
SUSPENDING = "Suspending"  # the job is being suspended: checkpoints in memory are saved, then the attempt ends
JOB_SUSPENDED = "JobSuspended"  # spec.suspend is true, and nothing of the job is left but the DLJob
JOB_RESUMED = "JobResumed"  # spec.suspend is false again, or dljob.io/resume was set: the next attempt begins

# Kubernetes nodes, in Events.
NODE_EXCLUDED = "NodeExcluded"  # pods leave a Kubernetes node that is bad or that a user excluded
NODE_READMITTED = "NodeReadmitted"  # new pods may go to a Kubernetes node again
POD_FORCED = "PodForced"  # a pod that should be gone, on a node that does not answer, was deleted by force

# A new attempt; also counted in restarts.cluster.
CLUSTER_GONE = "ClusterGone"  # a user or tool deleted the RayCluster
HEAD_LOST = "HeadLost"  # the head came back without Ray's state
HEAD_REPLACED = "HeadReplaced"  # an Event: another head has Ray's state from the lost one, and nothing else restarted
PREEMPTED = "Preempted"  # the queue took the machines back; not counted
SPEC_CHANGED = "SpecChanged"  # the spec was edited before anything ran; not counted, no fault
OPERATOR_UPGRADED = "OperatorUpgraded"  # the operator was upgraded before anything ran; not counted, no fault
SUBMISSION_FAILED = "SubmissionFailed"  # the launcher could not be started, or died before PrimeMaster answered
MASTER_LOST = "MasterLost"  # the launcher has ended and PrimeMaster does not answer
CLUSTER_RESTARTS_EXHAUSTED = "ClusterRestartsExhausted"  # faultTolerance.maxClusterRestarts is used up: the job failed

# MasterReady.
MASTER_READY = "MasterReady"  # PrimeMaster answers
WAITS_FOR_HEAD = "WaitsForHead"  # nothing was submitted yet, since the head is not ready
SUBMITTED = "Submitted"  # the submission is ordered; PrimeMaster has not answered yet
SUBMISSION_REFUSED = "SubmissionRefused"  # Ray's Job API refuses the launcher; its error is the message; tried again
HEAD_MISBEHAVES = "HeadMisbehaves"  # the head's answers are too large, too slow or no JSON; it is left alone a while
MASTER_UNREACHABLE = "MasterUnreachable"  # PrimeMaster does not answer; the status shows its last report

# PlacementReady and RolesReady.
WAITS_FOR_MASTER = "WaitsForMaster"  # PrimeMaster has not reported yet
UNITS_HELD = "UnitsHeld"  # all units have their reservation
UNITS_PENDING = "UnitsPending"  # some units have no reservation
ROLES_READY = "RolesReady"  # all ranks of all roles are ready or have ended well
RANKS_PENDING = "RanksPending"  # some ranks are neither ready nor ended well

# Recovering.
STEADY = "Steady"  # nothing is being restarted, or no rank stands still
RECOVERING = "Recovering"  # something is being restarted, and no fault tells why

# Commands by annotation.
COMMAND_SENT = "CommandSent"  # PrimeMaster accepted the command
COMMAND_REFUSED = "CommandRefused"  # PrimeMaster does not know the target or the kind, or an ended job cannot go on
COMMAND_IGNORED = "CommandIgnored"  # nothing ran yet that could be restarted, or had ended that could go on

# Of a pod whose Ray container the kubelet ended.
LIVENESS_FAILED = "LivenessProbeFailed"  # Ray had started, and did not answer the liveness probe
STARTUP_FAILED = "StartupProbeFailed"  # Ray did not start within the time of the startup probe

# The end.
COMPLETED = "Completed"  # all drivers ended well
JOB_FAILED = "JobFailed"  # the launcher's exit code says so, and nothing says more
JOB_ENDED = "JobEnded"  # of MasterReady, PlacementReady and RolesReady after the end of the job
STOPPED = "StoppedByUser"  # a user set the annotation dljob.io/stop
DEADLINE_EXCEEDED = "DeadlineExceeded"  # activeDeadlineSeconds passed
PRE_RUNNING_DEADLINE = "PreRunningDeadlineExceeded"  # preRunningDeadlineSeconds passed before the job ran
IMAGE_WITHOUT_DLJOB = "ImageWithoutDLJob"  # the head's Python cannot import dljob
PYTHON_MISMATCH = "PythonVersionMismatch"  # the image of a node group has another Python than the job's
RAY_MISMATCH = "RayVersionMismatch"  # it has another Ray, or none
DLJOB_MISMATCH = "DLJobVersionMismatch"  # it has another dljob, or none
LOGS_SAVED = "LogsSaved"  # the tails of the ranks' logs are in a ConfigMap that outlives the RayCluster
LOGS_LOST = "LogsLost"  # the tails of the logs could not be fetched in time; the RayCluster was deleted without them

# Phases before PrimeMaster speaks.
PROVISIONING = "Provisioning"  # the pods are being made
STARTING = "Starting"  # PrimeMaster is being started

OF_CREATION = (CREATION_REFUSED, NAME_TAKEN, LIVENESS_FAILED, STARTUP_FAILED)
"""Reasons of ours for which a RayCluster or its pods do not come, until somebody helps."""
FAILED_PROBES = {"liveness": LIVENESS_FAILED, "startup": STARTUP_FAILED}
"""The kubelet's name of a probe whose failure ends a container -> the reason."""

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
        *(HEAD_MISBEHAVES, LIVENESS_FAILED, STARTUP_FAILED),
        *(DEADLINE_EXCEEDED, PRE_RUNNING_DEADLINE, IMAGE_WITHOUT_DLJOB, LOGS_LOST, JOB_FAILED),
        *(PYTHON_MISMATCH, RAY_MISMATCH, DLJOB_MISMATCH),
    }
)
"""Reasons whose Events are Warnings."""

ALL = frozenset(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))
"""All reasons of the operator itself; a condition with another reason passes on somebody else's."""
