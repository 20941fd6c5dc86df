"""Connection to a running Ray, with errors that say what to do."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from dljob.errors import UnreachableError
from dljob.ray_private import driver_config, driver_config_without_code, joining_quietly

REACH_S = 3.0
"""Seconds for a GCS to accept a TCP connection."""
JOIN_S = 6.0
"""Seconds for a command to join a Ray, the import of Ray included, so that one that cannot join ends within 10 s."""
LOOK_S = 0.1
"""Longest delay, in seconds, until Ctrl-C is noticed."""
LEAST_S = 3.0
"""Least seconds for joining, even if the import took longer than planned."""
IN_RAY = "dljob-in-ray"
"""Begin of the names of threads that may hang in Ray. A process in which one is left must end by `os._exit`."""
NAMESPACE = "dljob"


def connect(
    address: str | None = None,
    code_dir: Path | None = None,
    *,
    within_s: float | None = None,
    imports_code: bool = True,
) -> str:
    """Join the Ray at `address`, at RAY_ADDRESS, or the one that this process has joined; return its address.

    `code_dir` is the import path of Ray's workers for tasks and actors that ranks create; used only when this joins.
    `imports_code`: whether they import user code; if not, not even Ray's own choice, this process's folder, is on it.
    `within_s` limits the time to join, and lets Ctrl-C interrupt it; without it, joining takes as long as Ray does.

    Raises:
        UnreachableError: There is no Ray, it does not answer, or it refuses the connection.
    """
    begin = time.monotonic()
    import ray

    # A process can join only one Ray.
    if ray.is_initialized():
        joined = str(ray.get_runtime_context().gcs_address)
        if address is None or address == joined:
            return joined
        raise UnreachableError(
            f"this process has joined the Ray at {joined}, not that at {address}", hint="call ray.shutdown() first"
        )
    ray_address = address or os.environ.get("RAY_ADDRESS") or ""
    if not ray_address:
        raise UnreachableError(
            "there is no Ray to run on: no address was given and RAY_ADDRESS is not set",
            hint="`dljob run FILE` brings a Ray of its own; on a cluster give address= (--address HOST:PORT)",
        )
    if "://" in ray_address:
        raise UnreachableError(
            f"{ray_address} is not the address of a GCS",
            hint="give HOST:PORT, usually port 6379, from inside the cluster",
        )
    # `ray.init` would try for a minute where nothing listens.
    _knock(ray_address)
    if within_s is None:
        return _join(ray_address, code_dir, imports_code=imports_code)
    seconds = max(LEAST_S, begin + within_s - time.monotonic())
    return _join_within(ray_address, code_dir, seconds, imports_code=imports_code)


def reachable(address: str | None) -> bool:
    """Whether `connect` has a Ray to try: an address is known, or this process has joined one."""
    ray = sys.modules.get("ray")
    return bool(address or os.environ.get("RAY_ADDRESS")) or (ray is not None and bool(ray.is_initialized()))


def listens(address: str) -> bool:
    """Whether anything listens at the address of a Ray."""
    try:
        _knock(address)
    except UnreachableError:
        return False
    return True


def _knock(address: str) -> None:
    """Raise UnreachableError if nothing listens at the address; Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UnreachableError(f"{address!r} is not HOST:PORT", hint="Ray's GCS usually has port 6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UnreachableError(f"no Ray answers at {address}: {error}", hint="does it run? `ray status`") from error


def _join_within(address: str, code_dir: Path | None, seconds: float, *, imports_code: bool) -> str:
    """Join in a thread, which is abandoned after so many seconds: `ray.init` may hang in C++."""
    ended: Future[str] = Future()

    def join() -> None:
        try:
            ended.set_result(_join(address, code_dir, imports_code=imports_code))
        except BaseException as error:  # noqa: BLE001 - raised where the thread is waited for
            ended.set_exception(error)

    # A daemon: a join that hangs for ever must not keep the process alive.
    threading.Thread(target=join, name=f"{IN_RAY}-join", daemon=True).start()
    end = time.monotonic() + seconds
    while not ended.done() and time.monotonic() < end:
        with suppress(TimeoutError):  # in steps: a signal delivered to a thread of Ray's interrupts no wait here
            ended.exception(LOOK_S)
    if not ended.done():
        raise UnreachableError(
            f"a process listens at {address}, but it cannot be joined as a Ray within {seconds:.1f} s: ray.init hangs",
            hint="is it the GCS (usually port 6379), at the address that its own nodes use? "
            f"`ray status --address {address}` asks it",
        )
    return ended.result()


def _join(address: str, code_dir: Path | None, *, imports_code: bool) -> str:
    import ray

    # PrimeMaster, and whatever ranks create in Ray, belong to this Ray job: its import path is theirs.
    paths = [str(code_dir.absolute())] if code_dir else []
    config = driver_config(paths) if imports_code else driver_config_without_code()
    try:
        with joining_quietly():
            ray.init(
                address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, job_config=config
            )
    except Exception as error:  # Ray raises RuntimeError, ConnectionError, AuthenticationError, ...
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        # Ray has several errors for a missing or wrong token: the word is in the text or in the name of each.
        token = "authent" in str(error).lower() or "authent" in type(error).__name__.lower()
        raise UnreachableError(
            f"the Ray at {address} refused the connection: {reason}",
            hint="set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH to its token file" if token else "see `ray status`",
        ) from error
    return address
