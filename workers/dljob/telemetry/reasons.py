"""Reasons of the events in a job's timeline and of its verdict: one table, CamelCase, each with its meaning.

Reasons are an interface: dashboards and scripts match on them. New ones may be added.
"""

from __future__ import annotations

# Finding room.
NO_ROOM = "NoRoom"  # the units do not fit now; placement is tried again when nodes change
NEVER_FITS = "NeverFits"  # the units can never fit on these machines: the job fails
ADMITTED = "Admitted"  # all units have their reservations
DOMAIN_CHOSEN = "DomainChosen"  # the topology domain (such as a rack) chosen for all units of a role, and why
PREFERRED_DOMAIN_MISSED = "PreferredDomainMissed"  # a role prefers one topology domain, and is placed without: why
TOPOLOGY_DOMAIN_CHANGED = "TopologyDomainChanged"  # no room in the domain for lost units: all of the role move
RESOURCES_CHOSEN = "ResourcesChosen"  # resources.auto chose CPUs or memory of a role: how much, and from which job
RESERVATION_REFUSED = "ReservationRefused"  # a node refused a reservation; all were released, placement is tried again
UNIT_RESCHEDULED = "UnitRescheduled"  # a unit has a reservation on another node after the loss of its own
RESIZED = "Resized"  # an elastic role continues with another number of ranks: lost nodes, new room, or a command
AUTOSCALED = "Autoscaled"  # a role's wanted size follows its load: by which load, and how many ranks that needs
RANKS_LEAVING = "RanksLeaving"  # ranks that their role gives up get no new calls, and finish those under way
NODE_LOST = "NodeLost"  # a node with units of the job is gone
NODE_FROZEN = "NodeFrozen"  # a node stopped answering; its units move, and it is excluded for a time
PART_SILENT = "PartSilent"  # a node, Ray's head or PrimeMaster does not answer, and is waited for: why, if it is known
NODE_RECOVERED = "NodeRecovered"  # a silent part answers again; a frozen node stays excluded until its time is over
NODE_LEAVING = "NodeLeaving"  # a node was announced to go: by whom, and how it is drained meanwhile
NODE_DRAIN_CANCELLED = "NodeDrainCancelled"  # a node that was announced to go is still there, and used again
NODE_REPLACED = "NodeReplaced"  # a rule replaced a node; its units move, and it is excluded for a time
DOMAIN_REPLACED = "DomainReplaced"  # too many nodes of a rack or super-pod failed; all others there are left with them
DOMAIN_STAYS = "DomainStays"  # the same, but there is no room elsewhere: the nodes that have not failed are used on
NODE_CHECK_FAILED = "NodeCheckFailed"  # a node failed its check before a start; its units move, and it is excluded
NODE_RELAUNCH = "NodeRelaunch"  # the job's relauncher was called for a node that was replaced or lost
NODE_RELAUNCH_FAILED = "NodeRelaunchFailed"  # the relauncher failed; its message says why
NODE_READMITTED = "NodeReadmitted"  # a node's exclusion ended: its time is over, or no other node is left
PLACEMENT_PENDING = "PlacementPending"  # a placement group, actor or task that a rank asked of Ray waits for room
PLACEMENT_RESOLVED = "PlacementResolved"  # that group or actor is placed, or was given up

# Starting.
ROLE_READY = "RoleReady"  # all ranks of a role are set up
READINESS_CHANGED = "ReadinessChanged"  # a ready rank's readiness probe fails or succeeds again, or one never can
WEIGHTS_STALE = "WeightsStale"  # a rank gets no requests: it failed to load the newest weights, or holds none
WEIGHTS_LOADED = "WeightsLoaded"  # a rank that failed to load weights, or had none, holds the newest and gets requests
ROLE_COMPLETED = "RoleCompleted"  # all ranks of a role ended
JOB_RUNNING = "JobRunning"  # all roles are ready, except those that wait for another role's completion
NODES_CHECKED = "NodesChecked"  # all nodes of a role passed their check
CHECK_NOT_MADE = "CheckNotMade"  # a check could not run, which is not a failure: the node is used
SPARE_POOL_DEGRADED = "SparePoolDegraded"  # a process spare could not be made three times in a row

# Failing and recovering.
RESTARTING = "Restarting"  # ranks restart; the level says which
RESTARTED_WITH = "RestartedWith"  # all ranks of a role restart because those of a coupled role do (restartPolicy.with)
ESCALATED = "Escalated"  # a restart level did not help or has no budget left; the next higher one is tried
RECOVERED = "Recovered"  # all ranks of a restart are ready again; the seconds count from the failure
HANG_FOUND = "HangFound"  # a rank or a whole role hangs; the note names the file with all stacks
STALL_FOUND = "StallFound"  # ranks have waited for too long: for whom, since when, and at which line that stands
STALL_ENDED = "StallEnded"  # such a wait is over, and nothing was restarted for it
STACKS_UNREADABLE = "StacksUnreadable"  # ranks may hang, but their stacks cannot be read, so nobody is blamed
COLLECTIVE_TIMEOUT_TOO_SHORT = "CollectiveTimeoutTooShort"  # torch's timeout ends before a hang's rank can be named
STRAGGLER_FOUND = "StragglerFound"  # a rank takes twice as long for a step as its role
CORRUPTION_FOUND = "CorruptionFound"  # a detector says that a rank computes wrong results; its node is replaced
WITNESS_SAW = "WitnessSaw"  # an outside witness says something about a rank; evidence for what may happen to it
WITNESS_UNREADABLE = "WitnessUnreadable"  # an outside witness gives no answer that can be read; told once for each node
CAUSE_LEARNED = "CauseLearned"  # the assumed cause of a failure was corrected by later evidence
SHUTDOWN_FAILED = "ShutdownFailed"  # a rank's shutdown() raised after run() had returned, whose result counts
PROCESSES_LEFT = "ProcessesLeft"  # processes that a rank had left running at its good end were killed: which
IGNORED = "FailureIgnored"  # a rule left a failed rank as it is
MASTER_RESTARTED = "MasterRestarted"  # PrimeMaster restarted, and controls the job again
JOURNAL_TAKEN_OVER = "JournalTakenOver"  # another version of dljob wrote the journal; its state was adopted
JOURNAL_NOT_TAKEN_OVER = "JournalNotTakenOver"  # the same, but its state is unreadable: all ranks restart
JOURNAL_STALLED = "JournalStalled"  # the journal's volume was full for a time; ranks ran on, without decisions
JOURNAL_TRIMMED = "JournalTrimmed"  # superseded parts of the journal were deleted; no restart needs them
METRIC_SINK_FAILED = "MetricSinkFailed"  # a metric sink failed or hangs, and lost rows; ranks are not affected
MEMORY_RAISED = "MemoryRaised"  # a rank killed for lack of memory restarts with more
MEMORY_INCREASE_SKIPPED = "MemoryIncreaseSkipped"  # no memory was added: the bound is reached, or no node has more
RESTART_COUNTS_RESTORED = "RestartCountsRestored"  # an attempt on Kubernetes continues the last one's restart counts
RESTART_COUNTS_DISCARDED = "RestartCountsDiscarded"  # the last attempt's counts are unusable: budgets begin anew
CHECKPOINT_RESTORED = "CheckpointRestored"  # a role or rank resumed from a checkpoint, or found none
DATA_RETURNED = "DataReturned"  # samples processed after the restored checkpoint are handed out again
SOURCE_CHANGED = "SourceChanged"  # a source has new partitions, lost one, went back, or does not answer
SOURCE_LOST = "SourceLost"  # offsets of a source were deleted before they were read, or read again by a restore
CHECKPOINT_DAMAGED = "CheckpointDamaged"  # a checkpoint or its record fails its checksum, and is skipped
CHECKPOINT_REFUSED = "CheckpointRefused"  # a late save of an old process was refused: its successor resumed without it
CHECKPOINT_NOT_SAVED = "CheckpointNotSaved"  # a disk takes no checkpoint: which rank's, where and why; ranks go on
VOLUME_FULL = "VolumeFull"  # the volume of the job's folder is full or read-only: the message says what is lost
MACHINE_PAUSED = "MachinePaused"  # the machine of PrimeMaster was suspended or stood still: for how long
CLOCK_STEPPED = "ClockStepped"  # the machine's clock was set: by how much; the job's own clock does not follow it
CPU_THROTTLED = "CpuThrottled"  # the CPU quota of a control group holds a rank back for most of the time
MACHINE_BUSY = "MachineBusy"  # steps became slower as more threads want the machine's CPUs than it has
MEMORY_EXCEEDED = "MemoryExceeded"  # a rank uses more memory than its role's `memory`
MEMORY_GROWS = "MemoryGrows"  # a rank's memory grows all the time, and is full soon: by how much a step, and when
SLOW_CALLEE = "SlowCallee"  # steps became slower as a role that is called takes longer
SLOW_LOADER = "SlowLoader"  # steps became slower as a rank waits for its torch DataLoader for most of the time
SLOW_PEER = "SlowPeer"  # steps of a torch group became slower as one of its ranks comes last to its collectives
STRAGGLER = "Straggler"  # the problem that StragglerFound tells of, while the rank is slower than its role
PROBLEM_OVER = "ProblemOver"  # a problem that a note told of, such as CheckpointNotSaved, stands no longer
ITEM_FAILED = "ItemFailed"  # a rank failed with an item of a queue: another rank gets it next, and no budget pays
ITEM_SET_ASIDE = "ItemSetAside"  # an item of a queue was set aside, as ranks failed with it: queue, key, error and rank
ITEMS_KEEP_FAILING = "ItemsKeepFailing"  # ranks fail with every item of a queue: the budget of their role pays again
CUT_COMMITTED = "CutCommitted"  # a consistent cut of the job is on disk: states, queues, positions in the data
CUT_GIVEN_UP = "CutGivenUp"  # a cut was given up, or not begun; the one before stays the last
CUT_DAMAGED = "CutDamaged"  # a part of a cut is damaged or missing: the whole cut is passed over
CUT_RESTORED = "CutRestored"  # ranks and queues of the job go back to a cut

# Commands.
COMMAND_ACCEPTED = "CommandAccepted"  # a command was accepted, and is carried out
COMMAND_REFUSED = "CommandRefused"  # a command has an unknown target, or is not possible now

# Ending; all but COMPLETED, STOPPED, SUSPENDED and RELEASED are failures.
COMPLETED = "Completed"  # all driver roles ended with success
USER_ERROR_REPEATS = "UserErrorRepeats"  # a rank failed the same way twice without progress, or is certain to
HANG_REPEATS = "HangRepeats"  # a rank hangs at the same line as before its restart, with nothing more done since
CRASH_LOOP = "CrashLoop"  # a rank failed soon after its start three times in a row, without progress
FAIL_RULE = "FailRule"  # a rule, or the restart level Never, fails the job at this failure
BUDGET_EXHAUSTED = "BudgetExhausted"  # all restarts of the window are used up
DEADLINE_EXCEEDED = "DeadlineExceeded"  # activeDeadlineSeconds passed
PRE_RUNNING_DEADLINE = "PreRunningDeadlineExceeded"  # preRunningDeadlineSeconds passed before the job ran
NO_ROOM_FOR_LOST_UNITS = "NoRoomForLostUnits"  # units of a lost node found no room in time
RESTART_TIMED_OUT = "RestartTimedOut"  # a restart of the whole job did not finish in time
MASTER_BUDGET = "MasterBudgetExhausted"  # PrimeMaster used up its restarts
JOURNAL_FAILED = "JournalFailed"  # the journal cannot be written or read: no further decision is safe
MASTER_FAILED = "MasterFailed"  # PrimeMaster has a bug; please report it with its log
STOPPED = "StoppedByUser"  # a person or a program ordered the job to stop
SUSPENDED = "JobSuspended"  # the job is suspended: this attempt ends, the next one resumes
RAY_LOST = "RayLost"  # the Ray that `dljob run` had started for the job ended before it; its last logs are in ray-logs
RUNNER_KILLED = "RunnerKilled"  # `dljob run` was killed, and the job's processes were ended with it
RUNNER_FAILED = "RunnerFailed"  # `dljob run` met an error while the job ran, and ended the job's processes
MACHINE_RESTARTED = "MachineRestarted"  # the machine was restarted while `dljob run` ran the job
RELEASED = "Released"  # all actors and reservations of the job are gone
