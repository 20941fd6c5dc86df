"""Ray's dashboard of a job on Kubernetes: refusals and silence, in words."""

from __future__ import annotations

import pytest
from fake_kube import add_head, add_job

from dljob.api.kubernetes.handle import KubernetesJob
from dljob.errors import UnreachableError
from dljob.kube.errors import ApiError


def refuse(error: Exception) -> object:
    raise error


@pytest.mark.parametrize(
    ("error", "words"),
    [(ApiError(403, "Forbidden", "no"), "no"), (ApiError(503, "Unavailable", "gone"), "Ray's dashboard on pod")],
)
def test_a_dashboard_that_cannot_be_asked_is_told(kube, error, words):
    add_job(kube, "hello", phase="Running")
    add_head(kube)
    kube.head["version"] = lambda _query: refuse(error)
    with pytest.raises(UnreachableError, match=words):
        KubernetesJob.named("hello").dashboard("/api/version")
