"""`dljob open`: a job's page that follows it, in a browser."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from dljob.cli import output
from dljob.cli.target import HERE, JobTarget

if TYPE_CHECKING:
    from dljob.api.kubernetes.handle import KubernetesJob
    from dljob.api.shown_job import Overview, ShownJob
    from dljob.report.live.server import PageServer
    from dljob.report.live.sources import LiveSource


def open(  # noqa: A001 - the name of the command
    job: str,
    /,
    *,
    place: JobTarget = HERE,
    ray: Annotated[bool, Parameter(negative="")] = False,
    browser: bool = True,
) -> None:
    """Open a job's page in the browser, and keep it up to date until Ctrl-C.

    The link is good once; Enter prints another one, for another browser. Only this machine can reach it: over ssh,
    forward its port, with the same number at both ends.

    Args:
        job: name, uid, or the first digits of a uid.
        place: this machine, or a cluster.
        ray: open Ray's dashboard instead, where the job's Ray has one; Ray's token stays in this command.
        browser: open the link; without it, or without a browser, it is only printed.
    """
    with place.job("open", job) as handle:
        # Ctrl-C is how it ends.
        try:
            if ray:
                asyncio.run(_serve_ray(_dashboard(handle), browser=browser))
            else:
                with tempfile.TemporaryDirectory(prefix="dljob-open-") as folder:
                    asyncio.run(_serve(_source(handle, job, Path(folder)), browser=browser))
        except KeyboardInterrupt:
            output.say("the page is closed")


def _source(job: ShownJob, name: str, folder: Path) -> LiveSource:
    """Return what follows a job; `folder` is for copies."""
    from dljob.api.handle import JobHandle
    from dljob.api.local import views
    from dljob.cli import diagnosis
    from dljob.report.live.sources import AskedSource, FolderSource

    def explain(overview: Overview) -> Sequence[str]:
        return diagnosis.diagnose(overview, name, job.flags).lines

    # A job on a Ray elsewhere may have its folder on another machine: then only its answers are up to date.
    if isinstance(job, JobHandle) and (job.record.runner or job.record.over):
        record = job.record
        return FolderSource(record.folder, record.uid, lambda: views.overview(record, views.filed(record)), explain)
    if not isinstance(job, JobHandle):
        from dljob.report.live.cluster_source import ClusterSource

        return ClusterSource(cast("KubernetesJob", job), folder, explain)
    return AskedSource(job, explain)


async def _serve(source: LiveSource, *, browser: bool) -> None:
    from dljob.report.live.document import LiveDocument
    from dljob.report.live.feed import JobFeed, in_thread
    from dljob.report.live.page_app import PageApp
    from dljob.report.live.server import PageServer

    document = LiveDocument(secrets.token_hex(4))
    # The first look before the link: a job that cannot be reached is an error of the command, not of a page.
    await in_thread(lambda: source.look(document))
    feed = JobFeed(source, document)
    following = asyncio.create_task(feed.run())
    following.add_done_callback(_tell_end)
    try:
        await _until_interrupted(PageServer(PageApp(feed)), browser=browser)
    finally:
        following.cancel()


def _tell_end(following: asyncio.Task[None]) -> None:
    if following.cancelled():
        return
    if error := following.exception():
        output.say(f"error: the page is no longer kept up to date: {type(error).__name__}: {error}")
    else:
        output.say("the job is over; the page stays until Ctrl-C")


async def _serve_ray(ask: Callable[[str], tuple[int, bytes]], *, browser: bool) -> None:
    from dljob.report.live.feed import in_thread
    from dljob.report.live.ray_app import RayApp
    from dljob.report.live.server import PageServer

    # Asked before the link: a head that is away is an error of the command, not of a page.
    await in_thread(lambda: ask("/api/version"))
    await _until_interrupted(PageServer(RayApp(ask)), browser=browser)


def _dashboard(job: ShownJob) -> Callable[[str], tuple[int, bytes]]:
    from dljob.api.handle import JobHandle

    if isinstance(job, JobHandle):
        from dljob.api.local.dashboard import dashboard_of

        return dashboard_of(job.record)
    return cast("KubernetesJob", job).dashboard


async def _until_interrupted(server: PageServer, *, browser: bool) -> None:
    from dljob.report.live.feed import in_thread

    await server.start()
    with tempfile.TemporaryDirectory(prefix="dljob-open-") as folder:
        if browser and await in_thread(lambda: _shown(server.link(), Path(folder))):
            # A browser in a sandbox, such as a snap, has a /tmp of its own: it starts, and finds no file.
            output.say("the page opens in the browser; if it does not, open this link:")
        output.data(server.link())
        output.say("Enter prints a link for another browser, Ctrl-C ends the page")
        _on_enter(server)
        try:
            await asyncio.Event().wait()
        finally:
            await server.close()


def _shown(link: str, folder: Path) -> bool:
    """Start a graphical browser with a link, if there is one; return whether it started.

    By a file that only this user can read: the arguments of a process, with the code in them, could be read by all.
    """
    import webbrowser

    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    file = folder / "open.html"
    file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={link}"><title>dljob</title>')
    file.chmod(0o600)
    try:
        return webbrowser.open(file.as_uri())
    except webbrowser.Error:
        return False


def _on_enter(server: PageServer) -> None:
    """Print a new link for each line on the terminal."""
    if not sys.stdin or not sys.stdin.isatty():
        return
    loop = asyncio.get_running_loop()

    def typed() -> None:
        if sys.stdin.readline():
            output.data(server.link())
        else:  # the terminal is gone
            loop.remove_reader(sys.stdin)

    loop.add_reader(sys.stdin, typed)
