"""Names and places inside the pods of a job's RayCluster: one table for the manifest, the launcher and the operator."""

from __future__ import annotations

GATEWAY_PORT = 8266
"""Where the gateway on the head listens; the container port is called `dljob`."""
GATEWAY_PORT_NAME = "dljob"
RAY_PORTS = (("gcs-server", 6379), ("client", 10001), ("dashboard", 8265), ("metrics", 8080))
"""KubeRay's own ports of the head: it drops its defaults when a container declares any (1.6.2), so all are declared."""

ROOT = "/dljob"
"""An emptyDir in every pod, filled by the init container; the job's folder, logs and user code live under it."""
LIB = f"{ROOT}/lib"
"""dljob and what it needs beyond Ray's own dependencies, brought by the init container; last on PYTHONPATH."""
CODE = f"{ROOT}/code"
"""User code, from `spec.code`; working directory and first on the path of user code."""
HOME = f"{ROOT}/home"
"""`DLJOB_HOME` of every Ray container."""
GCS = f"{ROOT}/gcs"
"""What Ray's head knows, on a volume that outlives it (gcsFaultTolerance with RocksDB)."""
CODE_SOURCE = "/etc/dljob/code"
"""Where the init container finds the ConfigMap of user code."""
ARCHIVE = "dljob-code.zip"
"""A key of that ConfigMap that holds a folder: unpacked into CODE; every other key is a file of CODE."""
SPEC_DIR = "/etc/dljob/spec"
SPEC_FILE = f"{SPEC_DIR}/spec.json"
"""The DLJob as JSON, from the immutable ConfigMap of the attempt; on the head."""
CARRIED_FILE = f"{SPEC_DIR}/carried.json"
"""What the last attempt handed on, beside the spec; not there in a first attempt."""
PACKAGES = "gcs://"
"""Before the name of what Ray's Job API keeps: the spec, where no volume of ours is (rayClusterRef)."""
HOME_THERE = "/tmp/ray/dljob"  # noqa: S108 - Ray itself writes there
"""`DLJOB_HOME` of pods that set none, which are not ours."""
SPEC_KEY = "spec.json"
CARRIED_KEY = "carried.json"
TOKEN_KEY = "auth_token"  # noqa: S105 - the key's name, which KubeRay fixes
"""The key of the token's Secret; KubeRay gives it to containers as RAY_AUTH_TOKEN."""
INIT_CONTAINER = "dljob-init"
HEAD_CONTAINER = "ray-head"
WORKER_CONTAINER = "ray-worker"
