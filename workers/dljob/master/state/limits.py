"""The constants of PrimeMaster's decisions, in seconds unless the text says otherwise.

They are kept in one module, because several depend on each other, and tests and simulators read them by name.
"""

from __future__ import annotations

RESERVE_S = 30.0
"""Time limit of one unit's reservation."""
SPAWN_S = 120.0
"""Time limit for the first answer of a host's process."""
NODES_S = 10.0
"""Wait for further nodes to join before a job that the present ones could never hold fails.

It applies to clusters that are not created for the job: the number of nodes that will join is unknown.
"""
RESTART_TIME_LIMIT_S = 600.0
"""Time limit of a restart, from the end of its backoff to all ranks ready; after it the next larger level is tried."""
JOB_END_GRACE_S = 5.0
"""Grace period of healthy ranks at the end of a job."""
SIGTERM_GRACE_S = 30.0
"""Grace period of a script after SIGTERM when it restarts because a peer failed, as with torchrun: it may save."""
HOST_STOP_S = 10.0
"""Time that a host may take beyond the grace period to end its ranks; after it the host is killed."""
LEAVE_GROUP_S = 10.0
"""Time that a rank may take to leave its torch group and keep its process; after it the process is replaced."""
RELEASE_AGAIN_S = 30.0
"""Time without an answer after which the release of the job is ordered again."""
SAME_FAILURE_WINDOW_S = 5.0
"""Window in which failures of one role on one node, of processes older than the first failure, count as one."""
PEER_SAMPLE_DELAY_S = 0.5
"""Time after the first report of a lost peer after which the living ranks of its world are looked at: most causes have
reported themselves by then."""
PEER_WAIT_S = 8.0
"""Time after that report for which it is held while such a rank lives, which may end slowly or be busy elsewhere."""
LOCAL_PEER_WAIT_S = 12.0
"""The same where a rank has lost a connection of the user's own within its machine: nobody is looked at for it, since
another rank need not be in a call of torch, so that only the end of the rank that closed it can tell."""
EARLY_END_WAIT_S = 1.0
"""The same where a rank of the world has ended with code 0: only a death that is not reported yet is waited for."""
ANNOUNCED_END_WINDOW_S = 150.0
"""Window after a node's announced departure, or its deadline, in which ends of its processes are attributed to it."""
DEPART_S = 30.0
"""Assumed time until an announced node is gone, where no deadline is given: the default of Kubernetes and of Ray."""
PARTING_S = 5.0
"""Part of the time before a departure that is kept for ranks to leave once their copies are on disk."""
SHRINK_S = 30.0
"""Default time that a lost unit of an elastic role looks for a node before the role goes on without it.

It applies where nodes are created for the job, and is about twice what KubeRay takes to replace a pod.
"""
SHRINK_BARE_S = 3.0
"""The same default where no nodes are created for the job, so that a replacement is unlikely."""
FINISH_S = 30.0
"""Time for the calls under way at ranks that their role gives up; scripts have as long after SIGTERM."""
SETTLE_S = 5.0
"""Time without further new nodes before an elastic role grows to fewer ranks than are wanted, once for all nodes."""
VAIN_S = 600.0
"""A growth that is lost again within this time was in vain: the role waits twice as long before the next one."""
GROW_DOUBLINGS = 6
"""Largest number of such doublings (64 times), so that a role does not give up growing for good."""
LATE_CAUSE_WINDOW_S = 60.0
"""Window after a failure in which news about its node is recorded as its cause."""
ADMIT_BACKOFF_S = 1.0
"""First wait after a refused reservation; it doubles up to ADMIT_BACKOFF_MAX_S."""
ADMIT_BACKOFF_MAX_S = 30.0
SPARE_FAILURES = 3
"""Consecutive failures to come up after which a process spare is given up."""
# Node checks: speeds are compared with nodes of the same kind, since no absolute figure holds for all hardware.
CHECK_FACTOR = 4.0
"""A node is bad if its matrix product is this many times slower than the median of its kind."""
CHECK_PACE_FACTOR = 8.0
"""The same for an all-reduce; larger, because two processes and a network take part in it."""
CHECK_TAKEN_BYTES = 2**30
"""Memory that a rank may have taken before the check: its process exists and has imported torch."""
CHECK_DISK_BYTES = 64 * 2**20
"""Least free space (bytes) of a file system that the job writes to."""
CHECK_DISK_FILES = 1000
"""Least number of free inodes of such a file system."""
CHECK_CLOCK_S = 5.0
"""Largest difference between a node's clock and PrimeMaster's."""
BAD_NODE_S = 86400.0
"""Least time for which a node that failed its check is excluded: a bad machine would fail again."""
CHECK_PACES = 64
"""Number of all-reduce bandwidths remembered for a role."""
