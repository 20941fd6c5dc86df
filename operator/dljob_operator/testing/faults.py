"""Faults of operators, their calls, the cluster and the job, and orders of its users: drawn beforehand, as data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from dljob.reconcile.state import names
from dljob.reconcile.state.fields import part, text
from dljob.spec.status import TERMINAL
from dljob_operator.testing.api_server import Body
from dljob_operator.testing.head_process import HeadProcess, SimulatedMaster
from dljob_operator.testing.kuberay_model import is_head, node_of
from dljob_operator.testing.slow_calls import SlowCall
from dljob_operator.testing.world import ApiTrouble, StoryState

MOST_TROUBLES = 12
"""Most calls in a row that fail: a job fails after 20 refusals of its submission."""


@dataclass(frozen=True, slots=True)
class Mishap:
    """A fault so many seconds after the beginning; `pick` chooses its object, `value` is its duration in seconds."""

    at: float
    kind: str
    pick: int = 0
    value: float = 0.0


def draw(
    rng: Random, most: int, horizon: float, of: Collection[str] = (), aims: Sequence[float] = ()
) -> tuple[Mishap, ...]:
    """Draw up to so many faults, many of them close together.

    Args:
        rng: all chance.
        most: so many at most.
        horizon: seconds within which they come.
        of: these kinds alone, if any are named.
        aims: moments that they come close to, if any are named.
    """
    kinds = {kind: max(mix, 1) if of else mix for kind, (mix, _) in KINDS.items() if not of or kind in of}
    mishaps: list[Mishap] = []
    for kind in rng.choices(list(kinds), list(kinds.values()), k=rng.randint(1, most)):
        near = bool(mishaps) and rng.random() < 0.5
        at = mishaps[-1].at + rng.random() ** 3 * 3 if near else rng.random() ** 2 * horizon
        # Around a decision of the operator: an order and its submission are 20 ms apart, which chance hardly ever hits.
        if aims and rng.random() < 0.7:
            at = max(0.0, rng.choice(aims) - 0.1 + 0.2 * rng.random())
        value = rng.choice((0.05, 0.5, 3.0, 12.0, 40.0, 90.0)) * (0.5 + rng.random())
        mishaps.append(Mishap(round(at, 3), kind, rng.randrange(1 << 10), round(value, 3)))
    return tuple(sorted(mishaps, key=lambda mishap: mishap.at))


def happen(w: StoryState, mishap: Mishap) -> None:
    """Inject a fault, where that is possible."""
    w.note(f"-- {mishap.kind} ({mishap.pick}, {mishap.value})")
    w.happened()
    KINDS[mishap.kind][1](w, mishap)


def mend(w: StoryState) -> None:
    """End all faults that last, and undo what users ordered."""
    w.note("-- peace")
    w.happened()
    w.slow.end()
    w.troubles, w.fuse, w.silent_until, w.nature.away_until, w.behind = [], None, 0.0, 0.0, 0
    # Two operators that lead at once are a fault of their own (`overlap`), so one stays.
    for operator in w.alive[1:]:
        w.end(operator)
    for cluster in w.server.objects_of("RayCluster"):
        if part(cluster, "spec").get("suspend"):
            w.server.edit("RayCluster", cluster["metadata"]["name"], suspend=False)
    _share(w)
    if w.job is not None:
        w.server.annotate("DLJob", w.name, {names.PAUSE: None})
        _go_on(w)
        # A job without roles would never end: undo `spec broken`.
        if not part(w.job, "spec").get("roles"):
            w.server.edit("DLJob", w.name, roles=_ROLES)


def _share(w: StoryState) -> None:
    """Create the RayCluster that the job refers to whenever it is gone, until the job has ended."""
    if w.shared and w.server.find("RayCluster", w.shared) is None:
        w.happened()
        w.share()
    elif w.shared:
        w.agenda.after(100.0, lambda: w.phase in TERMINAL or _share(w))


_ROLES = [{"name": "worker", "replicas": 2, "entrypoint": {"class": "hello.main"}, "resources": {"cpu": "500m"}}]


# -- operators and their calls


def _crash(w: StoryState, m: Mishap) -> None:
    w.fuse, w.back_in = m.pick % 12, m.value


def _overlap(w: StoryState, m: Mishap) -> None:
    """Start the next leader before the last one stops."""
    # Taken before the start, so that the new operator stays.
    old = w.alive
    w.start()
    for operator in old:
        w.agenda.after(m.value, lambda operator=operator: w.end(operator))


def _rewound(w: StoryState, m: Mishap) -> None:
    """Replace the operators by one whose first lists are old: its API server lags."""
    w.behind, w.lag = 1 + m.pick % 20, min(m.value, 20.0)
    for operator in w.alive:
        w.end(operator)


def _late(w: StoryState, m: Mishap) -> None:
    kind = ("DLJob", "RayCluster", "Pod")[m.pick % 3]
    for operator in w.alive:
        operator.late[kind] = w.agenda.now + min(m.value, 20.0)


def _lose_events(w: StoryState, m: Mishap) -> None:
    for operator in w.alive:
        operator.loses = ("DLJob", "RayCluster", "Pod")[m.pick % 3]


def _api(w: StoryState, m: Mishap) -> None:
    status = (500, 503, 429, 0)[m.pick % 4]
    # Only these leave open whether the call took effect.
    done = bool(m.pick & 4) and status in (0, 500)
    seconds = min(m.value, 15.0) if status == 0 else 0.01
    w.troubles = (w.troubles + [ApiTrouble(status, done, seconds)] * (1 + m.pick // 8 % 5))[:MOST_TROUBLES]


def _slow(target: str) -> Callable[[StoryState, Mishap], None]:
    """Return a fault that slows the next reads or writes: their requests, answers, or both, by up to hours."""

    def do(w: StoryState, m: Mishap) -> None:
        seconds, way = m.value * (1.0, 10.0, 100.0)[m.pick % 3], m.pick // 3 % 3
        call = SlowCall(request=0.0 if way == 1 else seconds, answer=0.0 if way == 0 else seconds)
        slow_calls = w.slow.due[target, bool(m.pick // 9 % 2)]
        slow_calls += [call] * min(1 + m.pick // 18 % 4, MOST_TROUBLES - len(slow_calls))

    return do


# -- what befalls the cluster


def _kuberay(w: StoryState, m: Mishap) -> None:
    w.nature.away_until = w.agenda.now + m.value


def _silent(w: StoryState, m: Mishap) -> None:
    w.silence(m.value)


def _of_head(act: Callable[[StoryState, str, Mishap], None]) -> Callable[[StoryState, Mishap], None]:
    return lambda w, m: _to_pod(w, m, act, head=True)


def _of_worker(act: Callable[[StoryState, str, Mishap], None]) -> Callable[[StoryState, Mishap], None]:
    return lambda w, m: _to_pod(w, m, act, head=False)


def _to_pod(w: StoryState, m: Mishap, act: Callable[[StoryState, str, Mishap], None], *, head: bool) -> None:
    pods = sorted(body["metadata"]["name"] for body in w.server.objects_of("Pod") if is_head(body) is head)
    if pods:
        act(w, pods[m.pick % len(pods)], m)


def _restart(w: StoryState, pod: str, m: Mishap) -> None:
    w.nature.restart(pod, "OOMKilled" if m.pick & 1 else "Error")


def _evict(w: StoryState, pod: str, _m: Mishap) -> None:
    w.nature.fail(pod, "Evicted")


def _remove(w: StoryState, pod: str, _m: Mishap) -> None:
    w.nature.remove(pod)


def _node(w: StoryState, pod: str, _m: Mishap) -> None:
    w.nature.remove(pod, stuck=True)


def _dead(w: StoryState, m: Mishap) -> None:
    """Lose the Kubernetes node of a pod for good; at least two of the four stay."""
    nodes = sorted({node_of(body) for body in w.server.objects_of("Pod")} - {"", *w.nature.dead})
    if nodes and len(w.nature.dead) < 2:
        w.nature.lose_node(nodes[m.pick % len(nodes)], excluded=m.value * 30.0)


def _excluded(w: StoryState, m: Mishap) -> None:
    """Exclude a Kubernetes node by annotation for a while."""
    if w.job is not None:
        w.server.annotate("DLJob", w.name, {names.EXCLUDE_NODES: f"node-{m.pick % 4}"})
        w.agenda.after(m.value, lambda: w.job and w.server.annotate("DLJob", w.name, {names.EXCLUDE_NODES: None}))


def _head(w: StoryState) -> HeadProcess | None:
    return next((process for process in reversed(w.nature.heads) if process.alive), None)


def _master(w: StoryState) -> tuple[HeadProcess, SimulatedMaster] | None:
    head = _head(w)
    last = next(reversed(head.masters.values()), None) if head is not None else None
    return (head, last) if head is not None and last is not None and not last.gone_at else None


def _master_again(w: StoryState, m: Mishap) -> None:
    head_and_master = _master(w)
    if head_and_master is not None and not head_and_master[1].away:
        head_and_master[0].restart_master(head_and_master[1], m.value)


def _lose_master(w: StoryState, _m: Mishap) -> None:
    head_and_master = _master(w)
    if head_and_master is not None and head_and_master[1].phase not in TERMINAL:
        head_and_master[0].lose(head_and_master[1])


def _launcher(w: StoryState, _m: Mishap) -> None:
    head = _head(w)
    if head is not None and head.masters:
        head.kill_launcher()


def _refuses(w: StoryState, _m: Mishap) -> None:
    w.refuses = True


# -- what users order


def _of_cluster(act: Callable[[StoryState, Body, Mishap], None]) -> Callable[[StoryState, Mishap], None]:
    def do(w: StoryState, m: Mishap) -> None:
        cluster = next(w.server.objects_of("RayCluster"), None)
        if cluster is not None:
            act(w, cluster, m)

    return do


def _suspend(w: StoryState, cluster: Body, m: Mishap) -> None:
    w.server.edit("RayCluster", cluster["metadata"]["name"], suspend=True)
    w.agenda.after(m.value, lambda: _resume(w, cluster["metadata"]["name"]))


def _resume(w: StoryState, name: str) -> None:
    if w.server.find("RayCluster", name) is not None:
        w.happened()
        w.server.edit("RayCluster", name, suspend=False)


def _halt(w: StoryState, m: Mishap) -> None:
    """Suspend the job, and in most cases resume it after a while; otherwise `mend` does."""
    if w.job is None or w.shared:
        return
    w.server.edit("DLJob", w.name, suspend=True)
    if m.pick & 3:
        w.agenda.after(m.value, lambda: _go_on(w))


def _go_on(w: StoryState) -> None:
    if w.job is not None and part(w.job, "spec").get("suspend"):
        w.happened()
        w.server.edit("DLJob", w.name, suspend=False)


def _delete_cluster(w: StoryState, cluster: Body, m: Mishap) -> None:
    w.server.delete("RayCluster", cluster["metadata"]["name"], foreground=bool(m.pick & 1))


def _annotated(**annotations: str) -> Callable[[StoryState, Mishap], None]:
    """Return a fault that annotates the DLJob; an empty value stands for the present time."""

    def do(w: StoryState, _m: Mishap) -> None:
        if w.job is not None:
            at = f"{w.agenda.now:.3f}"
            w.server.annotate("DLJob", w.name, {getattr(names, key): v or at for key, v in annotations.items()})

    return do


def _go_on_after_end(w: StoryState, m: Mishap) -> None:
    """Resume the ended job as `dljob resume` does, or as `dljob run --resume` with another spec.

    Half of the users do not look whether the job has ended; the others wait for that. Half are impatient, and order it
    twice.
    """
    if w.job is None or (m.pick & 1 == 0 and w.phase == "Succeeded"):
        return
    if m.pick & 1 == 0 and w.phase not in TERMINAL:
        w.agenda.after(max(m.value, 1.0), lambda: _go_on_after_end(w, m))
        return
    w.happened()
    w.fails &= m.pick & 2 == 0  # half of them have mended their code
    patch: Body = {"metadata": {"annotations": {names.STOP: None, names.RESUME: f"{w.agenda.now:.3f}"}}}
    w.server.merge("DLJob", w.name, patch | ({"spec": {"runtimeEnv": _ENV[m.pick % 3]}} if m.pick & 4 else {}))
    if m.pick & 8:
        w.agenda.after(m.value, lambda: _go_on_after_end(w, replace(m, pick=m.pick & 4 | 1)))


def _pause(w: StoryState, m: Mishap) -> None:
    _annotated(PAUSE="true")(w, m)
    w.agenda.after(m.value, lambda: w.job and w.server.annotate("DLJob", w.name, {names.PAUSE: None}))


def _edited(field: str, *values: object) -> Callable[[StoryState, Mishap], None]:
    def do(w: StoryState, m: Mishap) -> None:
        if w.job is not None and not text(w.job, "metadata", "deletionTimestamp"):
            w.server.edit("DLJob", w.name, **{field: values[m.pick % len(values)]})

    return do


def _delete(w: StoryState, _m: Mishap) -> None:
    if w.job is not None:
        w.server.delete("DLJob", w.name)


_ENV = tuple({"env_vars": {"A": value}} for value in "123")
KINDS: Mapping[str, tuple[int, Callable[[StoryState, Mishap], None]]] = {
    "crash": (20, _crash),
    "overlap": (8, _overlap),
    "rewound": (8, _rewound),
    "late": (8, _late),
    "lost": (4, _lose_events),
    "api": (20, _api),
    "kuberay away": (3, _kuberay),
    "silent": (6, _silent),
    "head restarts": (5, _of_head(_restart)),
    "head evicted": (3, _of_head(_evict)),
    "head deleted": (3, _of_head(_remove)),
    "head's node lost": (2, _of_head(_node)),
    "worker restarts": (4, _of_worker(_restart)),
    "worker evicted": (3, _of_worker(_evict)),
    "worker's node lost": (2, _of_worker(_node)),
    "node lost for ever": (3, _dead),
    "node excluded": (2, _excluded),
    "master restarts": (5, _master_again),
    "master gone": (2, _lose_master),
    "launcher dies": (3, _launcher),
    "launcher refuses": (1, _refuses),
    "suspend": (4, _of_cluster(_suspend)),
    "job suspended": (6, _halt),
    "cluster deleted": (2, _of_cluster(_delete_cluster)),
    "restart": (5, _annotated(RESTART="")),
    "stop": (1, _annotated(STOP="")),
    "pause": (2, _pause),
    "spec changed": (4, _edited("runtimeEnv", *_ENV)),
    "spec broken": (1, _edited("roles", [])),
    "spec mended": (1, _edited("roles", _ROLES)),
    "deadline changed": (1, _edited("activeDeadlineSeconds", 10, 60, 600, None)),
    "ttl changed": (1, _edited("ttlSecondsAfterFinished", 0, 60, None)),
    "deleted": (1, _delete),
    "api slow": (0, _slow("api")),
    "head slow": (0, _slow("head")),
    "resume": (0, _go_on_after_end),
}
"""Kind -> (weight in the draw, what it does). Weight 0: drawn where it is named, so that it shifts no other draw."""
SLOW = ("api slow", "head slow")
RESUMING = ("resume", "stop")
"""Kinds that end a job and let it go on."""
HARMLESS = frozenset({"crash", "overlap", "rewound", "late", "lost", "api", "kuberay away", "silent", "pause"})
"""Kinds that hit only operators, their calls and KubeRay."""
SHORT_S = 10.0
"""Longest silence of heads, in seconds, that must not cost an attempt."""


def harmless(mishap: Mishap) -> bool:
    """Whether a fault hits nothing of the job, so that it must not cost an attempt."""
    return mishap.kind in {*HARMLESS, "api slow"} and (mishap.kind != "silent" or mishap.value <= SHORT_S)
