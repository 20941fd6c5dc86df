"""An operator that records its calls and kills itself right before or right after one chosen call.

It is the unchanged operator with an observer of each call to the API server and to heads. Environment: SWEEP_DOOR, the
address of all heads; SWEEP_CALLS, a file that gets a line per call; SWEEP_POINTS, a JSON list of points: the name of a
call, or its beginning with a star, and `before` it is made or `after` it was answered. At the first point reached it
ends as by SIGKILL, and leaves in SWEEP_STATE the point and the meaning of names, from which the next operator goes on.
SWEEP_JOB is the job's name if it is not j.
"""

from __future__ import annotations

import collections
import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dljob.kube.head import Ask
from dljob.kube.ray_jobs import PORT as RAY_PORT
from dljob.kube.transport import Transport
from dljob_operator import app, main
from dljob_operator.app import Options
from dljob_operator.controller.heads import Heads

DIED = 86
"""Exit code of an operator that reached its point."""
_PATH = re.compile(
    r"^/(?:api|apis/(?P<group>[^/]+))/v1(?:alpha1)?"
    r"(?:/namespaces/[^/]+)?/(?P<plural>[a-z]+)(?:/(?P<name>[^/?]+))?(?:/(?P<sub>[^?]+))?"
)
_HEX = re.compile(r"\b[0-9a-f]{32}(?:[0-9a-f]{24})?\b")
"""Uids of jobs, and ids of Ray nodes."""
_STATUS = ("phase", "submissionId", "attempt", "completionTime", "lastCommands", "carried")


class Watcher:
    """An observer that names calls, counts them, and ends the process at one of them."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._file = Path(environment["SWEEP_CALLS"]).open("a", buffering=1)  # noqa: SIM115 - as long as the process
        self._points: list[tuple[str, str]] = [tuple(p) for p in json.loads(environment.get("SWEEP_POINTS") or "[]")]
        self._state = Path(environment["SWEEP_STATE"])
        self._job = environment.get("SWEEP_JOB", "j")
        self._cluster = re.compile(rf"\b{self._job}-[0-9a-f]{{5}}\b")
        kept = json.loads(self._state.read_text()) if self._state.exists() else {}
        self._count: collections.Counter[str] = collections.Counter(kept.get("count", {}))
        self._clusters: list[str] = kept.get("clusters", [])
        self._conditions: dict[str, str] = kept.get("conditions", {})
        self._attempt: int = kept.get("attempt", 1)
        """The attempt in the last status."""
        self._written: dict[str, Any] = {}
        """Changes of the status write under way."""
        self._began = time.monotonic()

    def before(self, names: Sequence[str]) -> list[str]:
        """Record that a call is about to be made; returns its full names."""
        self._count.update(names)
        full = [f"{name} #{self._count[name]}" for name in names]
        self._file.write(f"{time.monotonic() - self._began:.3f} > {json.dumps(full)}\n")
        self._end(full, "before")
        return full

    def after(self, full: Sequence[str], said: int) -> None:
        """Record that a call was answered."""
        if full[0].startswith("PATCH") and "/status " in full[0] and said < 300:
            self._conditions.update(self._written["conditions"])
            self._attempt = self._written["attempt"]
        self._file.write(f"{time.monotonic() - self._began:.3f} < {full[0]} {said}\n")
        self._end(full, "after")

    def _end(self, full: Sequence[str], when: str) -> None:
        points = [at for at, then in self._points if then == when]
        met = next((at for at in points if any(_meant(at, name) for name in full)), None)
        if met is None:
            return
        if when == "before":
            self._count.subtract(name.rpartition(" #")[0] for name in full)  # The call was not made.
        kept = {"count": self._count, "clusters": self._clusters, "conditions": self._conditions}
        self._state.write_text(json.dumps({"died": [met, when], **kept, "attempt": self._attempt}))
        self._file.write("dead\n")
        self._file.flush()
        os._exit(DIED)

    def plain(self, words: str) -> str:
        """Return words that are equal in every life: RayCluster names by attempt, without uids."""

        def number(found: re.Match[str]) -> str:
            if found[0] not in self._clusters:
                self._clusters.append(found[0])
            return f"{self._job}-<{self._clusters.index(found[0]) + 1}>"

        return _HEX.sub("<uid>", self._cluster.sub(number, words))

    def api(self, method: str, path: str, body: Any) -> list[str]:
        """Return the names of a call to the API server: a status patch has one for each change."""
        found = _PATH.match(path)
        if not found:
            return [f"{method} {path.partition('?')[0]}"]
        where = "/".join(part for part in (found["plural"], found["name"], found["sub"]) if part)
        if found["plural"] in ("pods", "events"):  # Their names are generated.
            where = found["plural"]
        if found["sub"] == "status":
            return [f"{method} {where} {told}" for told in self._told(body["status"])]
        about = self._about(method, found["plural"], body, path)
        return [self.plain(f"{method} {where}{' ' * bool(about)}{about}")]

    def _about(self, method: str, plural: str, body: Any, path: str) -> str:
        if method == "POST":
            return f"{body['reason']} in <{self._attempt}>" if plural == "events" else body["metadata"]["name"]
        if method == "PATCH" and plural == "dljobs":
            return ", ".join(sorted(body["metadata"].get("annotations") or ["finalizers"]))
        if method == "PATCH" and plural == "pods":
            return "annotations"
        if method == "GET" and plural == "pods":
            return "of the last attempt" if "ray.io" in path else "the head"
        return ""

    def _told(self, change: Mapping[str, Any]) -> list[str]:
        """Return the significant changes of a status against the last one, and their attempt.

        Changes that are written together in one life may come one after another in the next, so each has a name.
        """
        now = {one["type"]: f"{one['status']}/{one['reason']}" for one in change.get("conditions", ())}
        new = [f"{type_}={said}" for type_, said in now.items() if self._conditions.get(type_) != said]
        words = [f"{key}={change[key]}" if key == "phase" else key for key in _STATUS if change.get(key)]
        attempt = change.get("attempt") or self._attempt
        self._written = {"conditions": now, "attempt": attempt}
        return [f"{word} in <{attempt}>" for word in [*words, *new] or ["the rest"]]

    def head(self, whom: str, method: str, path: str, options: Mapping[str, Any]) -> list[str]:
        """Return the name of a call to a head."""
        query, body = options.get("query") or {}, options.get("body")
        what = path
        if path.endswith("/status"):
            what += " at once" if query.get("timeout") == "0" else " when it is new"
        if path.endswith("/commands"):
            what += f" {body['kind']} {body['target']}"
        if method == "POST" and path == "/api/jobs/":
            what += f" {body['submission_id']}"
        return [self.plain(f"{whom}: {method} {re.sub(rf'{self._job}-[0-9a-f]{{8}}-', f'{self._job}-', what)}")]


def _meant(at: str, full: str) -> bool:
    return at == full or (at.endswith("*") and full.startswith(at[:-1]))


def watch(watcher: Watcher) -> None:
    """Observe every call."""
    request, ask_of = Transport.request, Heads._ask

    async def requested(self: Transport, method: str, path: str, body: object = None, **options: Any) -> Any:
        full = watcher.before(watcher.api(method, f"{path}?{options.get('query') or ''}", body))
        answer = await request(self, method, path, body, **options)
        watcher.after(full, answer.status)
        return answer

    def way(self: Heads, namespace: str, uid: str, cluster: str, url: str) -> Ask:
        made = ask_of(self, namespace, uid, cluster, url)
        port = int(re.split("[:/]", url)[-1])

        async def asked(method: str, path: str, **options: Any) -> Any:
            whom = f"{'Ray' if port == RAY_PORT else 'gateway'} of {cluster}"
            full = watcher.before(watcher.head(whom, method, path, options))
            answer = await made(method, path, **options)
            watcher.after(full, answer.status)
            return answer

        return asked

    Transport.request = requested  # type: ignore[method-assign]
    Heads._ask = way  # type: ignore[method-assign]


def run(flags: Sequence[str]) -> None:
    """Run the operator; all its heads are behind one door if there is one."""
    watch(Watcher(os.environ))
    door = os.environ.get("SWEEP_DOOR")
    if door:

        def made(options: Options) -> app.App:
            return app.App(replace(options, head_url=lambda host, port: f"{door}/{host}/{port}"))

        main.App = made  # type: ignore[assignment, misc]
    main.main(flags)


if __name__ == "__main__":
    run(sys.argv[1:])
