"""`endpoints("rollout")`: the servers of a role that are ready, as PrimeMaster sees them now, and the choice of one."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from dljob.errors import CallTimeoutError, NotFoundError, UnreachableError, UsageError
from dljob.plan.serving import ENDPOINTS
from dljob.runtime.process.context import current_worker

log = logging.getLogger(__package__)

ANSWER_S = 90.0
"""Seconds for PrimeMaster to answer; it keeps a question for a part of that, until something has changed."""
RETRY_S = 0.5
FILE_POLL_S = 0.05
"""Seconds between two looks at the file of endpoints: Python has no way to wait for a change of a file."""

Table = Mapping[str, Sequence[Mapping[str, Any]]]
"""Role -> its ready ranks, each with `rank`, `incarnation` and `addresses` (port name -> host:port)."""
Policy = Literal["round_robin", "least_loaded"]


class AsksMaster(Protocol):
    """The transport of questions to PrimeMaster."""

    def ask(self, method: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        """Ask PrimeMaster. The future returns its answer, or raises UnreachableError."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A rank that serves."""

    role: str
    rank: int
    incarnation: int
    addresses: Mapping[str, str] = field(hash=False)
    """Port name -> host:port."""

    @property
    def address(self) -> str:
        """host:port of the role's first port."""
        return next(iter(self.addresses.values()))

    def url(self, path: str = "", port: str = "") -> str:
        """Return an http URL of the rank; `port` is the name of a port, by default the first."""
        return f"http://{self.addresses[port] if port else self.address}{path}"


class FollowsEndpoints(Protocol):
    """The job's endpoints in this process, as they are now, and their changes."""

    def table(self) -> Table:
        """Return the present table."""
        ...

    def wait(self, known_table: Table, seconds: float | None) -> bool:
        """Wait until the table is not `known_table` any more; False after `seconds`."""
        ...

    def on_change(self, known_table: Table) -> Future[None]:
        """Return a future that is done once the table is not `known_table` any more."""
        ...


class EndpointFeed:
    """The job's endpoints in this process: one long poll of PrimeMaster for all roles.

    With `path`, each change is also written to that file, atomically; what cannot be written now is written later.
    """

    def __init__(self, line: AsksMaster, path: Path | None = None) -> None:
        self._line = line
        self._path = path
        self._changed = threading.Condition()
        self._table: Table | None = None
        self._unwritten = False
        """Whether the file is older than the table."""
        self._begun = False
        self._waiting: list[Future[None]] = []

    def table(self) -> Table:
        """Return the present table. The first call asks PrimeMaster and begins to follow changes.

        Raises:
            UnreachableError: PrimeMaster does not answer.
        """
        with self._changed:
            if self._table is None:
                self._take(self._line.ask("endpoints", (None,), ANSWER_S).result())
            if not self._begun:
                self._begun = True
                threading.Thread(target=self._follow, name="dljob-endpoints", daemon=True).start()
            return self._table or {}

    def refresh(self) -> Table:
        """Ask PrimeMaster, and return the table as it is now."""
        with self._changed:
            self._take(self._line.ask("endpoints", (None,), ANSWER_S).result())
        return self.table()

    def wait(self, known_table: Table, seconds: float | None) -> bool:
        """Wait until the table is not `known_table` any more; False after `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._table != known_table, seconds)

    def on_change(self, known_table: Table) -> Future[None]:
        """Return a future that is done once the table is not `known_table` any more, for coroutines that wait."""
        with self._changed:
            if self._table == known_table:
                # Those whose waiter gave up are dropped here: while nothing changes nobody else does it.
                self._waiting = [waiting for waiting in self._waiting if not waiting.done()]
                self._waiting.append(future := Future())
                return future
        return _done()

    def _take(self, table: Table) -> None:
        if table == self._table:
            if self._unwritten:
                self._write(table)
            return
        self._table = table
        self._write(table)
        self._changed.notify_all()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            # A waiter that gave up has cancelled it.
            if future.set_running_or_notify_cancel():
                future.set_result(None)

    def _write(self, table: Table) -> None:
        """Write the file. A full disk does not keep the table from those who wait for it in this process."""
        if self._path is None:
            return
        try:
            write_table(self._path, table)
        except OSError as error:
            if not self._unwritten:
                log.warning(
                    "cannot write the endpoints to %s, which stays as it was; tried again: %s", self._path, error
                )
            self._unwritten = True
        else:
            self._unwritten = False

    def _follow(self) -> None:
        while True:
            try:
                # PrimeMaster answers at once to those who have seen nothing: the file is tried again.
                known_table = None if self._unwritten else self._table
                table = self._line.ask("endpoints", (known_table,), ANSWER_S).result()
                with self._changed:
                    self._take(table)
                if not self._unwritten:
                    continue
            except UnreachableError:
                pass  # PrimeMaster restarts; what was known stays
            except Exception:
                log.exception("cannot follow the endpoints; tried again")  # nobody would begin this thread again
            time.sleep(RETRY_S)


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


class Endpoints:
    """The ready servers of a role; iterable, with a length, always of now."""

    def __init__(self, role: str, feed: FollowsEndpoints) -> None:
        self.role = role
        self.feed = feed
        """Where they are read, and waited for."""
        self._turns = itertools.count()
        self._load: Counter[tuple[int, int]] = Counter()
        self._lock = threading.Lock()
        self.ready()

    def ready(self) -> tuple[Endpoint, ...]:
        """Return the ranks that are ready, by rank.

        Raises:
            NotFoundError: The job has no role of that name with ports.
            UnreachableError: PrimeMaster does not answer.
        """
        return self._of(self.feed.table())

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.ready())

    def __len__(self) -> int:
        return len(self.ready())

    def changes(self, timeout: float | None = None) -> Iterator[tuple[Endpoint, ...]]:
        """Yield the ready ranks, at first those of now, then those after each change.

        Ends when there is no change for `timeout` seconds; without one, never.
        """
        known_table = self.feed.table()
        last = self._of(known_table)
        yield last
        while self.feed.wait(known_table, timeout):
            known_table = self.feed.table()
            if (now := self._of(known_table)) != last:
                last = now
                yield now

    def pick(
        self,
        *,
        key: str | None = None,
        policy: Policy = "round_robin",
        without: Collection[Endpoint] = (),
        timeout: float | None = 60.0,
    ) -> Endpoint:
        """Return a ready rank; wait for one while there is none.

        Args:
            key: requests of one key go to one rank as long as it is ready.
            policy: without a key: one after another, or that with the fewest `using` blocks of this process.
            without: ranks that were tried already; they are taken only where there are no others.
            timeout: seconds to wait; None: without limit.

        Raises:
            CallTimeoutError: None was ready in time.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not (ready := self._of(known_table := self.feed.table())):
            seconds_left = None if end is None else end - time.monotonic()
            if (seconds_left is not None and seconds_left <= 0) or not self.feed.wait(known_table, seconds_left):
                raise CallTimeoutError(
                    f"no rank of {self.role} was ready within {timeout:g} s",
                    role=self.role,
                    rank=-1,
                    hint="dljob describe shows what its ranks wait for",
                )
        fresh = [endpoint for endpoint in ready if endpoint not in without] or list(ready)
        return self.choose(fresh, self.turn(), key=key, policy=policy)

    def turn(self) -> int:
        """Return the number of a request, from which ranks take turns."""
        return next(self._turns)

    def choose(self, among: Sequence[Endpoint], turn: int, *, key: str | None, policy: Policy) -> Endpoint:
        """Return one of some ranks, by key or by policy."""
        if key is not None:
            return chosen_by_key(among, key)
        if policy == "round_robin":
            return among[turn % len(among)]
        with self._lock:
            loads = dict(self._load)
        return least_loaded(among, loads, turn)

    def look(self) -> tuple[Table, tuple[Endpoint, ...]]:
        """Return the whole table, as `feed` waits for its change, and the ready ranks in it."""
        known_table = self.feed.table()
        return known_table, self._of(known_table)

    @contextlib.contextmanager
    def using(
        self,
        *,
        key: str | None = None,
        policy: Policy = "least_loaded",
        without: Collection[Endpoint] = (),
        timeout: float | None = 60.0,
    ) -> Generator[Endpoint]:
        """Pick a rank for the time of a block, which counts as load; the arguments are those of `pick`."""
        endpoint = self.pick(key=key, policy=policy, without=without, timeout=timeout)
        with self.counted(endpoint):
            yield endpoint

    @contextlib.contextmanager
    def counted(self, endpoint: Endpoint) -> Generator[None]:
        """Count a block as load of a rank."""
        load_key = endpoint.rank, endpoint.incarnation
        with self._lock:
            self._load[load_key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._load[load_key] -= 1
                if not self._load[load_key]:
                    del self._load[load_key]

    def _of(self, table: Table) -> tuple[Endpoint, ...]:
        if self.role not in table:
            roles_with_ports = ", ".join(table) or "none"
            raise NotFoundError(
                f"endpoints({self.role!r}): there is no such role with ports",
                hint=f"roles with ports: {roles_with_ports}",
            )
        return tuple(Endpoint(self.role, **row) for row in table[self.role])


def chosen_by_key(ready: Sequence[Endpoint], key: str) -> Endpoint:
    """Return the rank of a key by rendezvous hashing: when ranks come or go, few keys move."""

    def weight(endpoint: Endpoint) -> bytes:
        return hashlib.blake2b(key.encode(), digest_size=8, salt=str(endpoint.rank).encode()).digest()

    return max(ready, key=weight)


def least_loaded(ready: Sequence[Endpoint], loads: Mapping[tuple[int, int], int], turn: int) -> Endpoint:
    """Return the rank with the smallest load; equals take turns."""
    least = min(loads.get((endpoint.rank, endpoint.incarnation), 0) for endpoint in ready)
    equal = [endpoint for endpoint in ready if loads.get((endpoint.rank, endpoint.incarnation), 0) == least]
    return equal[turn % len(equal)]


def write_table(path: Path, table: Table) -> None:
    """Replace the file of endpoints: whoever reads it finds the old table or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(table))
    beside.replace(path)


class EndpointFile:
    """The file of endpoints in the place of PrimeMaster, for processes that a rank started."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ask(self, method: str, args: Sequence[Any], timeout_s: float) -> Future[Any]:
        """Answer as PrimeMaster does, once the file differs from what the asker has seen."""
        del method
        (known_table,) = args
        end = time.monotonic() + timeout_s
        answer: Future[Any] = Future()
        try:
            while (table := json.loads(self._path.read_text())) == known_table and time.monotonic() < end:
                time.sleep(FILE_POLL_S)
        except (OSError, ValueError) as error:
            answer.set_exception(UnreachableError(f"the file of endpoints {self._path}, in {ENDPOINTS}: {error}"))
        else:
            answer.set_result(table)
        return answer


def one_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the first port of each ready rank as `host:port,host:port`."""
    return ",".join(next(iter(row["addresses"].values())) for row in rows)


_feed_lock = threading.Lock()
_feeds: dict[int, EndpointFeed] = {}
"""Pid -> the feed that all `endpoints` of this process share; a forked child begins its own."""


def _line() -> AsksMaster:
    try:
        return current_worker().calls
    except UsageError:
        if path := os.environ.get(ENDPOINTS):
            return EndpointFile(Path(path))
        raise


def endpoints(role: str) -> Endpoints:
    """Return the servers of a role that are ready, always those of now; for ranks of the same job and their children.

    Raises:
        NotFoundError: The job has no role of that name with ports.
        UnreachableError: PrimeMaster does not answer.
        UsageError: This process is no rank of a job.
    """
    with _feed_lock:
        if os.getpid() not in _feeds:
            _feeds.clear()
            _feeds[os.getpid()] = EndpointFeed(_line())
        feed = _feeds[os.getpid()]
    return Endpoints(role, feed)
