"""The schema of a DLJob's status: what the operator writes there, typed and bounded.

Fields that are not named here are kept all the same, so that an older CRD loses nothing of what a newer operator says.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

PHASES = (
    *("Pending", "Queued", "Provisioning", "Scheduling", "Running", "Recovering"),
    *("Suspending", "Suspended", "Stopping", "Succeeded", "Failed"),
)
LEVELS = ("inProcess", "process", "roleGroup", "role", "job", "node", "master", "cluster")

COLUMNS: tuple[Schema, ...] = (
    {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
    {"name": "Roles", "type": "string", "jsonPath": ".status.rolesReady"},
    {"name": "Devices", "type": "string", "jsonPath": ".status.accelerators"},
    {"name": "Restarts", "type": "integer", "jsonPath": ".status.restartsTotal"},
    {"name": "Step", "type": "integer", "jsonPath": ".status.progress.step"},
    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    {"name": "Cluster", "type": "string", "jsonPath": ".status.rayCluster.name", "priority": 1},
    {"name": "Attempt", "type": "integer", "jsonPath": ".status.attempt", "priority": 1},
    {"name": "Goodput", "type": "integer", "jsonPath": ".status.progress.goodputPermille", "priority": 1},
    {"name": "LastFault", "type": "string", "jsonPath": ".status.lastFault.reason", "priority": 1},
    {"name": "Reason", "type": "string", "jsonPath": ".status.reason", "priority": 1},
)
"""What `kubectl get` prints; from Cluster on, with `-o wide`."""


def _text(words: str, size: int = 1024) -> Schema:
    """Roomy: a word too long would cost the whole status."""
    return {"description": words, "type": "string", "maxLength": size}


def _count(words: str) -> Schema:
    return {"description": words, "type": "integer", "format": "int64"}


def _time(words: str) -> Schema:
    return {"description": words, "type": "string", "format": "date-time"}


def _object(words: str, **fields: Schema) -> Schema:
    # The API server drops empty properties, and who applies them would differ from it for ever.
    known: Schema = {"properties": fields} if fields else {}
    return {"description": words, "type": "object", **known, "x-kubernetes-preserve-unknown-fields": True}


def _list(words: str, most: int, item: Schema, *, key: str = "") -> Schema:
    kind: Schema = {"x-kubernetes-list-type": "atomic"}
    if key:
        kind = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        item = {**item, "required": [key]}
    return {"description": words, "type": "array", "maxItems": most, "items": item, **kind}


def _flag(words: str) -> Schema:
    return {"description": words, "type": "boolean"}


def _condition() -> Schema:
    """metav1.Condition."""
    return _object(
        "One condition.",
        type={**_text("Name of the condition.", 316), "pattern": "^[A-Z][A-Za-z]*$"},
        status={"description": "Whether it holds.", "type": "string", "enum": ["True", "False", "Unknown"]},
        observedGeneration=_count("metadata.generation that it was said of."),
        lastTransitionTime=_time("When its status became what it is."),
        reason=_text("Why, in one CamelCase word that programs may match."),
        message=_text("Why, in words, with what to do next.", 32768),
    )


def _fault(words: str) -> Schema:
    return _object(
        words,
        level=_text("What was restarted for it."),
        reason=_text("Its kind."),
        target=_text("Whom it hit: a role, a rank, a node."),
        firstCause=_text("What failed first, in its own words."),
        detectedAt=_time("When it was noticed."),
        recoveredAt=_time("When the job went on; absent until then."),
        lostSteps=_count("How many steps further than the checkpoint that it went on from the role had come."),
    )


def status_schema() -> Schema:
    """The schema of `.status`."""
    return _object(
        "What the operator observed.",
        observedGeneration=_count("metadata.generation that this status is about."),
        phase={"description": "Where the job stands, in one word.", "type": "string", "enum": list(PHASES)},
        reason=_text("Why it stands there, in one word."),
        message=_text("Why it stands there, in words.", 32768),
        startTime=_time("When the operator began with the job."),
        completionTime=_time("When the job ended."),
        attempt=_count("Which RayCluster of the job this is, from 1."),
        submissionId=_text("The id of the attempt at Ray's Job API."),
        attemptSpecHash=_text("Digest of the spec that the attempt runs."),
        rolesReady=_text('Ranks that are set up or have ended well, of all: "24/24".'),
        accelerators=_text('All devices of the machines: "16 NPU".'),
        restartsTotal=_count("All restarts, of every level."),
        effective=_object(
            "What the spec left out.",
            image=_text("The runtime image."),
            rayVersion=_text("Ray's version in it."),
        ),
        **_places(),
        **_history(),
    )


def _places() -> dict[str, Schema]:
    return {
        "rayCluster": _object(
            "The RayCluster of the attempt.",
            name=_text("Its name."),
            uid=_text("Its uid."),
            headPod=_text("The pod that the job was submitted to."),
            headPodUID=_text("That pod's uid."),
            headContainer=_text("The id of Ray's container in that pod, when the submission was ordered."),
            sessionName=_text("Ray's session: another one means that the head lost its memory."),
            dashboardURL=_text("Ray's dashboard, inside the cluster."),
        ),
        "master": _object(
            "PrimeMaster.",
            state=_text("Ready or Unreachable."),
            epoch=_count("How many masters the job has had."),
            restarts=_count("How often it was restarted."),
            pod=_text("The pod it lives in."),
            node=_text("The machine that pod lives on."),
        ),
        "placement": _object(
            "Units: what must share a host.",
            units=_count("How many there are."),
            ready=_count("How many have their place."),
            pending=_count("How many have none."),
            notReady=_list(
                "The first of those without a place.",
                20,
                _object(
                    "One unit.",
                    name=_text("Its name."),
                    node=_text("The Ray node it is meant for."),
                    why=_text("What it waits for."),
                ),
            ),
        ),
        "nodes": _object(
            "Machines.",
            desired=_count("How many the job wants."),
            ready=_count("How many are ready."),
            replaced=_count("How many were left for others, frozen, lost or by a rule."),
            excluded=_list(
                "Those that get no ranks now, the newest last.",
                50,
                _object(
                    "One machine.",
                    name=_text("Its id in Ray, or in Kubernetes when the annotation dljob.io/exclude-nodes names it."),
                    reason=_text("Why it was left, in one word."),
                    since=_time("From when on."),
                    until=_time("Until when at least."),
                    kubernetesNode=_text("The Kubernetes node it was on."),
                    pod=_text("The pod it was."),
                    avoided=_flag("Whether new pods keep away from that Kubernetes node."),
                    attempt=_count("The attempt in which it was left."),
                ),
            ),
        ),
    }


def _history() -> dict[str, Schema]:
    counts = {name: _count(f"{name[0].upper()}{name[1:]}") for name in ("desired", "ready", "running")}
    counts |= {name: _count(f"{name[0].upper()}{name[1:]}") for name in ("succeeded", "failed", "restarts")}
    role = _object("Ranks of one role, counted.", name=_text("Name of the role."), **counts)
    restarts = {level: _count(f"Restarts at level {level}.") for level in LEVELS}
    metric = _object("One metric.", name=_text("Its name."), value=_text("Its value."))
    command = _object("One command.", id=_text("Its id."), kind=_text("What was asked."), target=_text("Of whom."))
    return {
        "roles": _list("The roles.", 32, role, key="name"),
        "restarts": _object("Restarts by level.", **restarts),
        "carried": _object(
            "What PrimeMaster hands on to the next attempt, so that budgets hold over attempts.",
            attempt=_count("The attempt that said it."),
            step=_count("Its last step, when the attempt was lost."),
            state=_object("PrimeMaster's own: how often it restarted whom, and when."),
        ),
        "lastFault": _fault("The last failure."),
        "recentFaults": _list("The last failures, the newest last.", 10, _fault("One failure.")),
        "progress": _object(
            "How far the first driver role is; written at most every 15 seconds.",
            time=_time("When this was said."),
            step=_count("Its step."),
            lastCheckpointStep=_count("The step that was saved last: by that role, or if it saves nothing by any."),
            lastCheckpointTime=_time("When that checkpoint was whole on disk."),
            goodputPermille=_count(
                "Productive share of the time of all ranks since the start of the attempt, in thousandths."
            ),
            metrics=_list("What came with the step.", 16, metric),
        ),
        "lastCommands": _list("Commands that are settled, the newest last.", 16, command, key="id"),
        "conditions": _list("What programs wait for.", 16, _condition(), key="type"),
    }
