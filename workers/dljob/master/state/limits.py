"""Every constant of PrimeMaster's decisions, in seconds unless it says otherwise."""

from __future__ import annotations

RESERVE_S = 30.0
"""How long one unit's reservation may take."""
SPAWN_S = 120.0
"""How long a host's process may take to answer first."""
NODES_S = 10.0
"""How long nodes that nobody makes for the job may take to join, before a job that they could never hold fails."""
RESTART_S = 600.0
"""How long a restart level may take, from its backoff's end to all ranks ready, before the next one is tried."""
GRACE_S = 5.0
"""What healthy ranks get to leave at the end of a job."""
SCRIPT_GRACE_S = 30.0
"""What a script gets after SIGTERM when a peer failed and it is to start again, as torchrun gives it: it may save."""
STOP_S = 10.0
"""How long a host may take beyond the grace to end ranks, before it is killed."""
LEAVE_S = 10.0
"""How long a rank may take to leave its torch group and keep its process, before the process is replaced."""
RELEASE_S = 30.0
"""After so long without an answer everything is ordered to be released again."""
JOIN_S = 5.0
"""Failures of one role on one node within this time, of processes older than the first, are one failure."""
NOTICE_S = 150.0
"""So long after something was announced of a node, or was to happen, the ends of processes there are put down to it."""
DEPART_S = 30.0
"""So long a node that is to be taken away is still there, where nobody says how long: Kubernetes' and Ray's default."""
PARTING_S = 5.0
"""How much of that time is left to its ranks to go, once what they copied is on disk."""
SHRINK_S = 30.0
"""So long, unless the spec says how long, a lost unit of an elastic role looks for a place before the role goes on
without it, where somebody makes nodes for the job: about twice what KubeRay takes to replace a pod."""
SHRINK_BARE_S = 3.0
"""The same where nobody does."""
SETTLE_S = 5.0
"""So long after the last change nodes that join are waited for before a role grows."""
VAIN_S = 600.0
"""A growth that is lost again within this time was in vain: the role waits twice as long before the next one."""
GROW_DOUBLINGS = 6
LEARN_S = 60.0
"""So long after a failure what becomes known of its node is put down as its cause."""
ADMIT_BACKOFF_S = 1.0
"""The first wait after a refused reservation; doubles up to the next."""
ADMIT_BACKOFF_MAX_S = 30.0
SPARE_FAILURES = 3
"""Times in a row that a spare may fail to come up."""
CHECK_FACTOR = 4.0
"""How many times slower than is usual of its like a node is bad."""
CHECK_PACE_FACTOR = 8.0
"""The same of a team's all-reduce, which two processes and a network take part in."""
CHECK_TAKEN_BYTES = 2**30
"""How much of its memory a rank may have taken before it starts: its process is there, and has imported torch."""
CHECK_DISK_BYTES = 64 * 2**20
CHECK_DISK_FILES = 1000
CHECK_CLOCK_S = 5.0
"""How far a node's clock may be from PrimeMaster's."""
BAD_NODE_S = 86400.0
"""So long, at least, a node that failed its check is not used."""
CHECK_PACES = 64
"""How many bandwidths are remembered of a role."""
