"""Choice of the resources that a job's file leaves to `resources.auto`, told on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dljob.api import registry
from dljob.cli import output

if TYPE_CHECKING:
    from dljob.spec.model import DLJobManifest

JOBS = 20
"""Most earlier jobs that are read, the newest ones."""


def with_resources(manifest: DLJobManifest) -> DLJobManifest:
    """Return the job with its resources chosen from the records of the newest ended jobs of its name here."""
    if all(role.resources.auto is None for role in manifest.spec.roles):
        return manifest
    from dljob.report.advice import chosen_resources, past_jobs

    ended = [record for record in registry.records() if record.name == manifest.metadata.name and record.over]
    folders = [record.folder for record in sorted(ended, key=lambda one: one.started)[-JOBS:]]
    made, chosen = chosen_resources.choose(manifest, past_jobs.lightly_measured(folders))
    for one in chosen:
        output.say(f"roles.{one.role}.{chosen_resources.told(one)}")
    return made
