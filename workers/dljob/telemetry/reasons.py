"""Every reason that a user sees in a job's timeline or verdict: one table, CamelCase, each with what it means.

Reasons are an interface: dashboards and scripts match on them. They are added, not renamed.
"""

from __future__ import annotations

# Finding room.
NO_ROOM = "NoRoom"  # the units do not fit now; tried again when nodes change
NEVER_FITS = "NeverFits"  # the units can fit on no arrangement of these machines: the job fails
ADMITTED = "Admitted"  # all units are held
DOMAIN_CHOSEN = "DomainChosen"  # the units of a role go to one domain, such as a rack: which one, and why
DOMAIN_LEFT = "DomainLeft"  # what was lost has no room in its domain: all units of the role go to another one
RESERVATION_REFUSED = "ReservationRefused"  # a node would not hold a unit; everything was given back, tried again later
UNIT_MOVED = "UnitMoved"  # a unit is held on another node after its own was lost
RESIZED = "Resized"  # an elastic role goes on with another number of ranks: it lost nodes, has room, or was told to
NODE_LOST = "NodeLost"  # a node with units of the job is gone
NODE_FROZEN = "NodeFrozen"  # a node stopped answering; its units go elsewhere, and it is excluded for a time
NODE_THAWED = "NodeThawed"  # a node that was frozen answers again; it stays excluded for its time
NODE_LEAVING = "NodeLeaving"  # a node is to be taken away: who said so, and what is done while it is there
NODE_STAYS = "NodeStays"  # a node that was to be taken away is still there, and used again
NODE_REPLACED = "NodeReplaced"  # a rule says to leave a node; its units go elsewhere, and it is excluded for a time
NODE_CHECK_FAILED = "NodeCheckFailed"  # a node failed its check before a start; it is excluded, its units go elsewhere
NODE_RELAUNCH = "NodeRelaunch"  # whoever replaces machines for the job was told of a node that was left or is gone
NODE_RELAUNCH_FAILED = "NodeRelaunchFailed"  # whoever replaces machines did not take an order: look at its message
NODE_READMITTED = "NodeReadmitted"  # a node is excluded no longer: its time is over, or nothing else is left
PLACEMENT_PENDING = "PlacementPending"  # a placement group or an actor of a role's own Ray driver waits: what it needs
PLACEMENT_RESOLVED = "PlacementResolved"  # such a group or actor is placed, or nobody waits for it any more

# Starting.
ROLE_READY = "RoleReady"  # all ranks of a role are set up
ROLE_COMPLETED = "RoleCompleted"  # all ranks of a role ended
JOB_RUNNING = "JobRunning"  # every role that waits for no completion is ready
NODES_CHECKED = "NodesChecked"  # all nodes of a role passed their check
CHECK_NOT_MADE = "CheckNotMade"  # a check could not be made, which is no failure: the node is used
SPARE_GIVEN_UP = "SpareGivenUp"  # a process spare could not be made three times in a row

# Failing and recovering.
RESTARTING = "Restarting"  # ranks are being restarted; the level says how many
ESCALATED = "Escalated"  # a level did not help or may not be used again; the next one is tried
RECOVERED = "Recovered"  # all ranks of a restart are ready again; the seconds count from the failure
HANG_FOUND = "HangFound"  # a rank, or a role as a whole, stands still; the note names the file with all stacks
TIMEOUTS_CROSS = "TimeoutsCross"  # torch's timeout of a collective comes before the bounds that name who hangs
STRAGGLER_FOUND = "StragglerFound"  # a rank takes twice as long for a step as its role
CAUSE_LEARNED = "CauseLearned"  # what was taken for the cause of a failure followed from another, or is known better
IGNORED = "FailureIgnored"  # a rule says to leave a failed rank as it is
MASTER_RESTARTED = "MasterRestarted"  # PrimeMaster came back and took the job in hand again
JOURNAL_TAKEN_OVER = "JournalTakenOver"  # another version of dljob wrote the journal; its state goes on as it is
JOURNAL_NOT_TAKEN_OVER = "JournalNotTakenOver"  # the same, but the state cannot be read: all ranks start again
MEMORY_RAISED = "MemoryRaised"  # a rank that was ended for want of memory comes back with more
MEMORY_KEPT = "MemoryKept"  # more memory is not to be had: the most is reached, or no node has room for it
CARRIED = "Carried"  # a new attempt on Kubernetes counts restarts on from where the last one was
CARRY_IGNORED = "CarryIgnored"  # what the last attempt handed on cannot be used: budgets begin anew
CHECKPOINT_RESTORED = "CheckpointRestored"  # a role, or a rank of it, goes on from a checkpoint, or found none
DATA_RETURNED = "DataReturned"  # samples that were done after the checkpoint that is gone on from are handed out again
CHECKPOINT_REFUSED = "CheckpointRefused"  # what an old process saved does not count: its successor went on without it

# Commands.
COMMAND_ACCEPTED = "CommandAccepted"  # somebody ordered something, and it is being done
COMMAND_REFUSED = "CommandRefused"  # an order about an unknown target, or one that makes no sense now

# Ending; all but the first are failures.
COMPLETED = "Completed"  # all driver roles ended well
USER_ERROR_REPEATS = "UserErrorRepeats"  # user code failed in a way that must repeat
FAIL_RULE = "FailRule"  # a rule or a restart level of Never ends the job at this failure
BUDGET_EXHAUSTED = "BudgetExhausted"  # no restarts are left in the window
DEADLINE_EXCEEDED = "DeadlineExceeded"  # activeDeadlineSeconds passed
PRE_RUNNING_DEADLINE = "PreRunningDeadlineExceeded"  # preRunningDeadlineSeconds passed before the job ran
NO_ROOM_FOR_LOST_UNITS = "NoRoomForLostUnits"  # units of a lost node found no room in time
RESTART_TIMED_OUT = "RestartTimedOut"  # a restart of the whole job did not finish in time
MASTER_BUDGET = "MasterBudgetExhausted"  # PrimeMaster was restarted too often
JOURNAL_FAILED = "JournalFailed"  # the journal cannot be written or read: nothing more may be decided
MASTER_FAILED = "MasterFailed"  # PrimeMaster itself is wrong; please report it with its log
STOPPED = "StoppedByUser"  # a stop was ordered
SUSPENDED = "JobSuspended"  # the job is suspended: this attempt ends, and the next one goes on
RELEASED = "Released"  # nothing of the job is left
