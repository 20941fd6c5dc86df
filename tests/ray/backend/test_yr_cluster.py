"""The suite of all backends on an openYuanrong cluster: where YR_SERVER_ADDRESS names one. We have had none."""

from __future__ import annotations

import os

import pytest

if not os.environ.get("YR_SERVER_ADDRESS"):
    pytest.skip(
        "no openYuanrong cluster: set YR_SERVER_ADDRESS, and DATASYSTEM_HOST and DATASYSTEM_PORT of this node's "
        "datasystem; its scheduler is on no package registry",
        allow_module_level=True,
    )

from backend_contract import BackendContract, without

from dljob.runtime.yr.backend import YrBackend
from dljob.spec.capabilities import Capability

pytestmark = pytest.mark.yr_cluster


class TestCluster(BackendContract):
    """Workers of the cluster need dljob, and `tests/kits` on their path."""

    locals().update(without(Capability.SEVERAL_NODES, Capability.DEVICES))

    @pytest.fixture
    def backend(self) -> YrBackend:
        return YrBackend({})
