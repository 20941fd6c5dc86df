"""The schema of a DLJob's status, with a type and a bound for each field that the operator writes.

The API server keeps unknown fields of the status too, so that an older CRD drops no field of a newer operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

PHASES = (
    *("Invalid", "Pending", "Queued", "Provisioning", "Scheduling", "Running", "Recovering"),
    *("Suspending", "Suspended", "Stopping", "Succeeded", "Failed", "Stopped"),
)
_PHASE = (
    "Phase of the job. Invalid: the spec is refused. Pending: there is no RayCluster yet. Queued: the RayCluster is"
    " suspended, by a queue or by its owner. Provisioning: its pods start. Scheduling: PrimeMaster starts, or units"
    " wait for nodes. Running: all ranks that should run do. Recovering: something restarts. Suspending, Suspended:"
    " spec.suspend stops the job, or has stopped it. Stopping: PrimeMaster was asked to stop. Succeeded, Failed,"
    " Stopped: the job ended."
)
"""The description of the phase for `kubectl explain`: a sentence for each of `PHASES`."""
TERMINAL = ("Succeeded", "Failed", "Stopped")
"""The phases in which a job has ended. It leaves the last two only when somebody resumes it."""
LEVELS = ("inProcess", "process", "roleGroup", "role", "job", "node", "master", "cluster")


def total_restarts(counts: Mapping[str, object]) -> int:
    """Return the number of restarts: `node` counts nodes that were left, whose ranks are counted where they restart."""
    return sum(int(count) for level, count in counts.items() if level != "node" and isinstance(count, int | float))


COLUMNS: tuple[Schema, ...] = (
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Reason", "type": "string", "jsonPath": ".status.reason"},
    {"name": "Roles", "type": "string", "jsonPath": ".status.rolesReady"},
    {"name": "Devices", "type": "string", "jsonPath": ".status.accelerators"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restartsTotal"},
    {"name": "Step", "type": "integer", "jsonPath": ".status.progress.step"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Cluster", "type": "string", "jsonPath": ".status.rayCluster.name", "priority": 1},
    {"name": "Attempt", "type": "integer", "jsonPath": ".status.attempt", "priority": 1},
    {"name": "Goodput", "type": "integer", "jsonPath": ".status.progress.goodputPermille", "priority": 1},
    {"name": "LastFault", "type": "string", "jsonPath": ".status.lastFault.reason", "priority": 1},
)
"""Columns of `kubectl get`; from Cluster on, `-o wide` alone prints them."""


def _text(words: str, size: int = 1024) -> Schema:
    """Return the schema of a bounded text. The bound is generous: one text beyond it would void the whole status."""
    return {"description": words, "type": "string", "maxLength": size}


def _count(words: str) -> Schema:
    return {"description": words, "type": "integer", "format": "int64"}


def _time(words: str) -> Schema:
    return {"description": words, "type": "string", "format": "date-time"}


# Unknown fields are preserved everywhere: an older CRD then drops nothing that a newer operator writes.
def _object(words: str, **fields: Schema) -> Schema:
    # The API server drops empty properties: a CRD applied with them would show a difference for ever.
    known: Schema = {"properties": fields} if fields else {}
    # Also for free objects, whose fields the API server would drop otherwise.
    return {"description": words, "type": "object", **known, "x-kubernetes-preserve-unknown-fields": True}


def _list(words: str, most: int, item: Schema, *, key: str = "") -> Schema:
    kind: Schema = {"x-kubernetes-list-type": "atomic"}
    if key:
        # A keyed list: a server-side apply merges items instead of replacing the list.
        kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        item = {**item, "required": [key]}
    return {"description": words, "type": "array", "maxItems": most, "items": item, **kind}


def _flag(words: str) -> Schema:
    return {"description": words, "type": "boolean"}


def _condition() -> Schema:
    """Return the schema of Kubernetes' metav1.Condition."""
    return _object(
        "One condition.",
        type={**_text("Name of the condition.", 316), "pattern": "^[A-Z][A-Za-z]*$"},
        status={"description": "Whether it holds.", "type": "string", "enum": ["True", "False", "Unknown"]},
        observedGeneration=_count("The metadata.generation that the condition was computed from."),
        lastTransitionTime=_time("Time of the last change of the condition's status."),
        reason=_text("Reason of the status in one CamelCase word, which programs may match."),
        message=_text("Explanation of the status for people, with the next step to take.", 32768),
    )


def _fault(words: str) -> Schema:
    return _object(
        words,
        level=_text("Level of the restart: the part of the job that was restarted."),
        reason=_text("Kind of the failure."),
        target=_text("Role, rank or node that failed."),
        firstCause=_text("Original error message of the first failure."),
        rule=_text("Rule of evidence that recognized the first failure; absent where none did."),
        rank=_text("The rank that failed first (role/rank); absent where no rank is to blame."),
        incarnation=_count("Number of that rank's process, from 1."),
        caller=_text("The rank that ended by an error of `rank`, which it had called; absent where none did."),
        detectedAt=_time("Time of the detection."),
        recoveredAt=_time("Time when the job continued; absent until then."),
        lostSteps=_count("Steps of the role after the checkpoint that it resumed from."),
    )


def status_schema() -> Schema:
    """Return the OpenAPI schema of `.status`."""
    return _object(
        "The state of the job as the operator observed it.",
        observedGeneration=_count("The metadata.generation that this status was computed from."),
        phase={"description": _PHASE, "type": "string", "enum": list(PHASES)},
        reason=_text("Reason of the phase, in one CamelCase word."),
        message=_text("Explanation of the phase, for people.", 32768),
        startTime=_time("Time from which the deadlines run: when the job began, or the queue admitted it."),
        completionTime=_time("Time when the job ended."),
        attempt=_count("Number of the current attempt, from 1; each attempt has a RayCluster of its own."),
        submissionId=_text("Id of the attempt's submission in Ray's Job API."),
        attemptSpecHash=_text("Digest of the spec that the attempt runs; absent while the job is suspended."),
        rolesReady=_text('Ranks that are ready or have succeeded, of all ranks: "24/24".'),
        accelerators=_text('All devices of the machines: "16 NPU".'),
        restartsTotal=_count("Number of restarts of all levels but node, whose ranks count at theirs."),
        effective=_object(
            "Defaults that the operator used for fields left out of the spec.",
            image=_text("The runtime image."),
            rayVersion=_text("Ray's version in the image."),
        ),
        **_places(),
        **_history(),
    )


def _places() -> dict[str, Schema]:
    return {
        "rayCluster": _object(
            "The RayCluster of the attempt.",
            name=_text("Name of the RayCluster."),
            uid=_text("Uid of the RayCluster."),
            headPod=_text("The head pod that received the submission."),
            headPodUID=_text("Uid of the head pod."),
            headContainer=_text("Id of Ray's container in the head pod at the time of the submission."),
            sessionName=_text("Name of Ray's session; a new name means that the head lost its state."),
            dashboardURL=_text("URL of Ray's dashboard, inside the cluster."),
        ),
        "master": _object(
            "PrimeMaster, the actor that controls the job.",
            state=_text("Ready or Unreachable."),
            epoch=_count("Number of the current PrimeMaster, from 1."),
            restarts=_count("Number of restarts of PrimeMaster."),
            pod=_text("The pod that PrimeMaster runs in."),
            node=_text("The Kubernetes node of that pod."),
        ),
        "placement": _object(
            "Placement of the units; the ranks of a unit share a host.",
            units=_count("Number of units."),
            ready=_count("Units with a reservation."),
            pending=_count("Units without a reservation."),
            notReady=_list(
                "The first units without a reservation.",
                20,
                _object(
                    "One unit.",
                    name=_text("Name of the unit."),
                    node=_text("The node assigned to the unit, by the name of its pod."),
                    why=_text("Reason why the unit waits."),
                ),
            ),
        ),
        "nodes": _object(
            "The machines of the job.",
            desired=_count("Number of machines that the job wants."),
            ready=_count("Number of machines that are ready."),
            replaced=_count("Number of machines that were replaced because they froze, were lost, or by a rule."),
            excluded=_list(
                "Machines that get no ranks now, the newest last.",
                50,
                _object(
                    "One machine.",
                    name=_text("Id of the Ray node, or name of the Kubernetes node that dljob.io/exclude-nodes names."),
                    reason=_text("Reason of the exclusion, in one word."),
                    since=_time("Start of the exclusion."),
                    until=_time("Earliest end of the exclusion."),
                    kubernetesNode=_text("The Kubernetes node of the machine."),
                    pod=_text("The pod of the machine."),
                    avoided=_flag("Whether new pods avoid that Kubernetes node."),
                    attempt=_count("The attempt in which the machine was excluded."),
                ),
            ),
        ),
    }


def _servers() -> dict[str, Schema]:
    return {
        "services": _list(
            "The Services of roles with service: true.",
            32,
            _object(
                "One Service.",
                role=_text("Name of the role."),
                name=_text("Name of the Service."),
                slices=_count("Number of its EndpointSlices, which are named after it: <name>-0 and so on."),
            ),
            key="role",
        ),
        "endpoints": _list(
            "The servers of roles with ports; written at most every 15 seconds.",
            32,
            _object(
                "Servers of one role.",
                role=_text("Name of the role."),
                ready=_count("Ranks that get requests."),
                desired=_count("Ranks that the role has at its present size."),
                addresses=_list(
                    "Addresses of the first ranks that get requests.",
                    8,
                    {
                        "description": "host:port of each port of one rank, by the port's name.",
                        "type": "object",
                        "additionalProperties": _text("host:port.", 64),
                    },
                ),
            ),
        ),
    }


def _resources() -> dict[str, Schema]:
    """Return the fields about resources that the spec leaves open (`resources.auto`)."""
    shape = _text("Digest of the roles, their types, entrypoints, sizes and devices; records count for equal ones.")
    why_text = "The earlier job and the measurement that {} stands on, or why it is the value to begin with."
    chosen = _object(
        "The choices for one role.",
        name=_text("Name of the role."),
        cpu=_text("CPUs of a rank."),
        cpuWhy=_text(why_text.format("cpu")),
        memory=_text("Memory of a rank."),
        memoryWhy=_text(why_text.format("memory")),
    )
    counts = {
        "productiveSeconds": _count("Productive seconds of one rank."),
        "peakMiB": _count("Highest peak memory of a rank in MiB; 0: not recorded."),
        "growthPermille": _count("Growth of that peak in the last quarter of the run, in thousandths."),
        "cpuMillis": _count("CPUs that a rank did not exceed in 95 % of the measurements, in thousandths."),
        "measurements": _count("Measurements of CPU time."),
        "outOfMemory": _count("Ranks killed for want of memory."),
    }
    used = _object("Use of one role.", name=_text("Name of the role."), **counts)
    return {
        "chosenResources": _object(
            "Resources that the spec leaves open, as chosen for an attempt.",
            attempt=_count("The attempt."),
            shape=shape,
            roles=_list("The roles that leave resources open.", 32, chosen, key="name"),
        ),
        "resourceUse": _object(
            "Resources that ranks used of roles whose resources were chosen, for the next choice; written at most every"
            " 15 seconds.",
            shape=shape,
            roles=_list("The roles.", 32, used, key="name"),
        ),
    }


def _history() -> dict[str, Schema]:
    counts = {
        "desired": _count("Ranks that the role has at its present size."),
        "ready": _count("Ranks that are set up and work."),
        "running": _count("Ranks with a process: starting, ready or stopping."),
        "succeeded": _count("Ranks that ended with success."),
        "failed": _count("Ranks that ended with a failure."),
        "restarts": _count("Number of restarts of ranks of the role."),
    }
    lag = (
        "Age of the earliest event of a source that the role's weights had last learned from, when a rank had loaded"
        " them, in seconds; written at most every 15 seconds."
    )
    role = _object(
        "The ranks of one role, by state.",
        name=_text("Name of the role."),
        **counts,
        servedLagSeconds={"description": lag, "type": "number"},
    )
    restarts = {level: _count(f"Restarts at level {level}.") for level in LEVELS}
    restarts["node"] = _count("Nodes that were left; the restarts of their ranks count at their own levels.")
    metric = _object("One metric.", name=_text("Name of the metric."), value=_text("Value of the metric."))
    command = _object(
        "One command.",
        id=_text("Id of the command."),
        kind=_text("Kind of the command."),
        target=_text("Role, rank or node that the command is about."),
    )
    return {
        "roles": _list("The roles.", 32, role, key="name"),
        **_servers(),
        "restarts": _object("Restarts by level.", **restarts),
        "cuts": _object(
            "Consistent cuts of the job in this attempt; written at most every 15 seconds.",
            committed=_count("Number of cuts that were committed."),
            givenUp=_count("Number of cuts that were begun and given up."),
            why=_text("Reason why the last cut was given up, or none was begun; absent after one that began later."),
            last=_count("Number of the last cut that can be restored; absent where there is none."),
            lastTime=_time("Time when that cut was committed."),
            restored=_count("How often the job went back to a cut, or to the beginning where none was whole."),
            restoredCut=_count("Number of the cut that it went back to last; absent where there was none."),
        ),
        "carried": _object(
            "State that PrimeMaster passes to the next attempt, so that restart budgets count across attempts.",
            attempt=_count("The attempt that reported the state."),
            step=_count("Last step of the attempt, when it was lost."),
            state=_object("Restart counts and times, in PrimeMaster's own format."),
        ),
        **_resources(),
        "lastFault": _fault("The last failure."),
        "recentFaults": _list("The last failures, the newest last.", 10, _fault("One failure.")),
        "progress": _object(
            "Progress of the first driver role; written at most every 15 seconds.",
            time=_time("Time of this report."),
            step=_count("Last step of the role."),
            stepTime=_time("Time when the role last reported a new step."),
            secondsPerStep={"description": "Median time between its recent steps, in seconds.", "type": "number"},
            lastCheckpointStep=_count("Step of the last checkpoint of that role, or of any role if it saves none."),
            lastCheckpointTime=_time("Time when that checkpoint was complete on disk."),
            goodputPermille=_count(
                "Productive share of the time of all ranks since the start of the attempt, in thousandths."
            ),
            metrics=_list("Metrics reported with the step.", 16, metric),
        ),
        "lastCommands": _list("Commands that were carried out or refused, the newest last.", 16, command, key="id"),
        "conditions": _list("Conditions, for `kubectl wait` and other programs.", 16, _condition(), key="type"),
    }
