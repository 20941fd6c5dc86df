"""Joining a Ray that runs already, with errors that say what to do."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from dljob.errors import UnreachableError

REACH_S = 3.0
"""How long a GCS may take to accept a TCP connection."""
NAMESPACE = "dljob"
_FOREIGN = ("RAY_AUTH_TOKEN",)
"""What would show a Ray with a token file of its own the wrong token: Ray prefers a token to its file."""


def connect(address: str | None = None, code_dir: Path | None = None) -> str:
    """Join the Ray at `address`, that of RAY_ADDRESS, or the one this process has joined already; returns its address.

    `code_dir` is where Ray's own workers import from, for tasks and actors that ranks make, when this joins.

    Raises:
        UnreachableError: there is none, it does not answer, or it refuses us.
    """
    import ray

    if ray.is_initialized():
        joined = str(ray.get_runtime_context().gcs_address)
        if address is None or address == joined:
            return joined
        raise UnreachableError(
            f"this process has joined the Ray at {joined}, not that at {address}", hint="call ray.shutdown() first"
        )
    wanted = address or os.environ.get("RAY_ADDRESS") or ""
    if not wanted:
        raise UnreachableError(
            "there is no Ray to run on: no address was given and RAY_ADDRESS is not set",
            hint="`dljob run FILE` brings a Ray of its own; on a cluster give address= (--address HOST:PORT)",
        )
    if "://" in wanted:
        raise UnreachableError(
            f"{wanted} is not the address of a GCS", hint="give HOST:PORT, usually port 6379, from inside the cluster"
        )
    _knock(wanted)
    return _join(wanted, code_dir)


def _knock(address: str) -> None:
    """Whether somebody listens there; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UnreachableError(f"{address!r} is not HOST:PORT", hint="Ray's GCS usually has port 6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UnreachableError(f"no Ray answers at {address}: {error}", hint="does it run? `ray status`") from error


def _join(address: str, code_dir: Path | None) -> str:
    import ray
    from ray._private import worker
    from ray.job_config import JobConfig

    worker.listen_error_messages = _listen_to_nothing
    try:
        # Whatever ranks start in Ray belongs to this Ray job, as PrimeMaster does.
        config = JobConfig(_py_driver_sys_path=[str(code_dir.absolute())] if code_dir else [])
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, job_config=config)
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, AuthenticationError, ...
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        token = "authent" in str(error).lower() or "authent" in type(error).__name__.lower()
        raise UnreachableError(
            f"the Ray at {address} refuses us: {reason}",
            hint="set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to its token file" if token else "see `ray status`",
        ) from error
    return address


def _listen_to_nothing(*_: object) -> None:
    """Ray prints each worker's death on stdout, whatever `log_to_driver` says (ray/_private/worker.py, 2.60).

    Our stdout is data, and the timeline tells of deaths.
    """


@contextmanager
def joined(address: str, environment: Mapping[str, str]) -> Generator[None]:
    """This process as a client of one Ray, by its own token, while the block runs.

    Raises:
        UnreachableError: it does not answer or refuses us.
    """
    token = environment.get("RAY_AUTH_TOKEN_PATH")
    if token and not Path(token).is_file():
        raise UnreachableError(f"the Ray at {address} is gone", hint="its token file has been removed")
    foreign = _FOREIGN if token else ()
    before = {name: os.environ.get(name) for name in (*environment, *foreign)}
    for name in foreign:
        os.environ.pop(name, None)
    os.environ.update(environment)
    try:
        import ray
        from ray._raylet import Config  # pyright: ignore[reportAttributeAccessIssue] - compiled, without stubs

        Config.initialize("")  # reads RAY_AUTH_MODE again, should Ray have been imported before
        connect(address)
        yield
        ray.shutdown()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
