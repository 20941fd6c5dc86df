"""Names and paths inside the pods of a job's RayCluster, shared by rendering, launcher and operator."""

from __future__ import annotations

GATEWAY_PORT = 8266
"""Port of the gateway on the head; the container port has the name `dljob`."""
GATEWAY_PORT_NAME = "dljob"
RAY_PORTS = (("gcs-server", 6379), ("client", 10001), ("dashboard", 8265), ("metrics", 8080))
"""Ray's ports on the head. KubeRay (1.6.2) drops its defaults when a container declares any, so all are declared."""

ROOT = "/dljob"
"""An emptyDir in every pod, filled by the init container; holds the job's folder, logs and user code."""
LIB = f"{ROOT}/lib"
"""dljob and its requirements beyond Ray's own, copied by the init container; last on PYTHONPATH."""
CODE = f"{ROOT}/code"
"""User code from `spec.code`: working directory, and first on the path of user code."""
HOME = f"{ROOT}/home"
"""`DLJOB_HOME` of every Ray container."""
GCS = f"{ROOT}/gcs"
"""Ray's tables on a volume that outlives the head (gcsFaultTolerance with RocksDB)."""
CODE_SOURCE = "/etc/dljob/code"
"""Mount of the ConfigMap with user code in the init container."""
ARCHIVE = "dljob-code.zip"
"""Key of that ConfigMap with a packed folder, unpacked into CODE; every other key is a file of CODE."""
SPEC_DIR = "/etc/dljob/spec"
SPEC_FILE = f"{SPEC_DIR}/spec.json"
"""The DLJob as JSON on the head, from the immutable ConfigMap of the attempt."""
CARRIED_FILE = f"{SPEC_DIR}/carried.json"
"""State of the previous attempt, beside the spec; missing in a first attempt."""
PACKAGES = "gcs://"
"""Prefix of packages in Ray's store: the spec is there when dljob renders no volume (rayClusterRef)."""
HOME_IN_POD = "/tmp/ray/dljob"  # noqa: S108 - Ray itself writes there
"""`DLJOB_HOME` in pods that dljob did not render, if they set none."""
SPEC_KEY = "spec.json"
CARRIED_KEY = "carried.json"
TOKEN_KEY = "auth_token"  # noqa: S105 - the key's name, which KubeRay fixes
"""Key of the token's Secret; KubeRay passes it to containers as RAY_AUTH_TOKEN."""
INIT_CONTAINER = "dljob-init"
AWAIT_HEAD = "--await-head"
"""Argument of the init container of a worker, before the port of the head's GCS."""
IMAGE_CHECK = "dljob-image"
"""Init container in the image of a pod, where a job has several images: it tells the versions in it."""
HEAD_CONTAINER = "ray-head"
WORKER_CONTAINER = "ray-worker"
