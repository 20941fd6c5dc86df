"""Reads objects from an API server by HTTP, as `kubectl get -o json` does, without a process for each question.

kubectl costs 0.17 s of processor time a call, most of it to start a program of 100 MB; the tests ask a thousand times.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
SECONDS = 60.0


class RefusedError(Exception):
    """The API server refused a read; the message is what kubectl prints."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"Error from server ({reason}): {message}" if reason else message)
        self.reason = reason


@dataclass(frozen=True)
class Kind:
    """A resource that the API server serves.

    Args:
        path: of its group and version, such as `/apis/ray.io/v1`.
        plural: its name in paths.
    """

    path: str
    plural: str
    namespaced: bool


@dataclass
class Query:
    """The arguments of `kubectl get` that the tests use."""

    targets: list[tuple[str, str]] = field(default_factory=list)
    """(type, name); the name is empty for a list."""
    namespace: str | None = None
    """None for the context's namespace, empty for all."""
    selector: str = ""
    managed: bool = False
    absent: bool = False
    """Whether an object that does not exist is no error."""

    @classmethod
    def parse(cls, args: tuple[str, ...]) -> Query | None:
        """Return the query of these arguments; None where kubectl must be asked."""
        query, words, rest = cls(), list[str](), iter(args)
        for word in rest:
            match word:
                case "-n" | "--namespace":
                    query.namespace = next(rest)
                case "-l" | "--selector":
                    query.selector = next(rest)
                case "-A" | "--all-namespaces":
                    query.namespace = ""
                case "--show-managed-fields":
                    query.managed = True
                case "--ignore-not-found":
                    query.absent = True
                case _ if word.startswith("-"):
                    return None
                case _:
                    words.append(word)
        if not words:
            return None
        if "/" in words[0]:
            pairs = [word.partition("/") for word in words]
            query.targets = [(kind, name) for kind, _, name in pairs]
        else:
            query.targets = [(kind, name) for kind in words[0].split(",") for name in words[1:] or [""]]
        return query


class Reader:
    """Connections to the API server of a kubeconfig, and what it serves.

    Args:
        config: the kubeconfig's content, of one cluster and user: a client certificate or a token.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self.namespace: str = config["contexts"][0]["context"].get("namespace", "default")
        self._at = urlsplit(cluster["server"])
        self._tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self._headers = {"Accept": "application/json"}
        if "token" in user:
            self._headers["Authorization"] = f"Bearer {user['token']}"
        else:
            with tempfile.NamedTemporaryFile() as file:  # the ssl module takes no certificate from memory
                file.write(b"\n".join(base64.b64decode(user[f"client-{one}-data"]) for one in ("certificate", "key")))
                file.flush()
                self._tls.load_cert_chain(file.name)
        self._idle: list[http.client.HTTPSConnection] = []
        self._kinds: dict[str, Kind] = {}

    def get(self, query: Query) -> dict[str, Any]:
        """Return the object that a query names, or a list; an empty one where the query allows that it is absent.

        Raises:
            RefusedError: the API server refused, or knows no such object.
            OSError, http.client.HTTPException: it could not be reached.
        """
        found = [one for kind, name in query.targets for one in self._read(query, kind, name)]
        if len(query.targets) == 1 and query.targets[0][1]:
            return found[0] if found else {}
        return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": found}

    def _read(self, query: Query, kind: str, name: str) -> list[dict[str, Any]]:
        try:
            answer = self._ask(self._path(query, self._kind(kind), name))
        except RefusedError as error:
            if error.reason == "NotFound" and name and query.absent:
                return []
            raise
        objects = [answer]
        if not name:
            of = {"apiVersion": answer["apiVersion"], "kind": answer["kind"].removesuffix("List")}
            objects = [{**of, **item} for item in answer["items"]]
        if not query.managed:
            for one in objects:
                one["metadata"].pop("managedFields", None)
        return objects

    def _path(self, query: Query, kind: Kind, name: str) -> str:
        space = self.namespace if query.namespace is None else query.namespace
        path = f"{kind.path}/namespaces/{space}/{kind.plural}" if kind.namespaced and space else _all(kind)
        if name:
            return f"{path}/{name}"
        return f"{path}?{urlencode({'labelSelector': query.selector})}" if query.selector else path

    def _kind(self, name: str) -> Kind:
        if name not in self._kinds:  # a CRD may have been created since
            self._kinds = dict(self._served())
        if name not in self._kinds:
            raise RefusedError("", f'the server doesn\'t have a resource type "{name}"')
        return self._kinds[name]

    def _served(self) -> Iterator[tuple[str, Kind]]:
        """Yield each name of each resource; of several with one name the last counts, so the core group comes last."""
        core, groups = (self._ask(path, DISCOVERY)["items"] for path in ("/api", "/apis"))
        for group in reversed([*core, *groups]):
            name = group["metadata"].get("name", "")
            for version in reversed(group["versions"]):  # the preferred one comes first
                path = f"/apis/{name}/{version['version']}" if name else f"/api/{version['version']}"
                for one in version.get("resources", ()):
                    plural = one["resource"]
                    kind = Kind(path, plural, one["scope"] == "Namespaced")
                    names = [plural, one.get("singularResource", ""), *one.get("shortNames", ())]
                    names += [each + f".{name}" for each in names[:2] if name]
                    yield from ((each, kind) for each in names if each)

    def _ask(self, path: str, accept: str = "") -> dict[str, Any]:
        headers = {**self._headers, **({"Accept": accept} if accept else {})}
        while True:
            old = bool(self._idle)
            connection = self._idle.pop() if old else self._connect()
            try:
                connection.request("GET", path, headers=headers)
                reply = connection.getresponse()
                status, body = reply.status, reply.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                if old:  # it was idle for too long, or its server is another now
                    continue
                raise
            self._idle.append(connection)
            return _answer(status, body)

    def _connect(self) -> http.client.HTTPSConnection:
        assert self._at.hostname
        return http.client.HTTPSConnection(self._at.hostname, self._at.port or 443, timeout=SECONDS, context=self._tls)


def _all(kind: Kind) -> str:
    return f"{kind.path}/{kind.plural}"


def _answer(status: int, body: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    with contextlib.suppress(ValueError):  # a path that is not served has no JSON
        answer = json.loads(body)
    if status == 200:
        return answer
    known = (answer.get("details") or {}).get("name")  # else it is not the object that is missing, but its type
    reason = answer.get("reason", "") if status != 404 or known else ""
    raise RefusedError(reason, answer.get("message") or body.decode(errors="replace").strip())


@lru_cache(maxsize=8)
def _reader(file: Path, _written: int) -> Reader | None:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))  # ours are JSON
        return Reader(config) if all(len(config[part]) == 1 for part in ("clusters", "users", "contexts")) else None
    except (ValueError, KeyError):
        return None


def reader(kubeconfig: Path) -> Reader | None:
    """Return the reader of a kubeconfig that the tests wrote; None for another, which kubectl must read."""
    return _reader(kubeconfig, kubeconfig.stat().st_mtime_ns)
