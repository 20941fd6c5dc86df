"""Data of a job's page, as JSON: computed from the job's record. No I/O."""

from __future__ import annotations

from typing import Any

from dljob.report.job_folder import JobFolder

FORMAT = 1
"""Version of the data's format; the page of another version refuses it."""


def page_data(record: JobFolder) -> dict[str, Any]:
    """Compute what the page shows; docs/adr/0075-report-page.md has the format."""
    status = record.status
    job = ("name", "uid", "phase", "reason", "message", "startTime", "completionTime", "seconds", "restarts")
    return {
        "format": FORMAT,
        "job": {key: status.get(key) for key in job},
        "unrecorded": list(record.unrecorded),
        "ledger": status.get("ledger"),
        "events": record.events,
    }
