"""Images of a RayCluster's pods, where node groups have their own: a check in each pod before Ray starts there."""

from __future__ import annotations

from dljob.raycluster import pods
from dljob.raycluster.overlay import Object

LOOK = """\
import json, sys
def has(name):
    try:
        from importlib.metadata import version
        return version(name)
    except Exception:
        return ""
said = {"python": ".".join(map(str, sys.version_info[:3])), "ray": has("ray"), "dljob": has("dljob")}
with open(sys.argv[1], "w") as told:
    told.write(json.dumps(said))
minor = lambda version: version.split(".")[:2]
wanted = dict(each.split("=") for each in sys.argv[2:])
sys.exit(any(minor(said.get(name, "")) != minor(version) for name, version in wanted.items()))
"""
"""What a pod's image runs: its versions become the termination message, and exit code 1 keeps Ray from starting.

For any Python 3, so that an old one tells its version, and not that it cannot read this.
"""
TOLD = "/dev/termination-log"
"""Where Kubernetes reads a container's termination message."""
MATCH_LEVEL = "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"
"""How equal Ray wants the Python of its nodes to be; by default to the patch number. Source: ray 2.60, _private/utils.
"""


def with_image_checks(cluster: Object, ray: str, dljob: str) -> None:
    """Add the check to the head and to each group whose pods have another image than the head's; change in place.

    Args:
        cluster: The RayCluster's spec, templates included: a template may set an image, too.
        ray: The version of Ray that an image must have, up to the patch number; Ray itself refuses other ones.
        dljob: The version of dljob that it must have, likewise; empty: any.
    """
    head = cluster["headGroupSpec"]["template"]["spec"]
    others = [
        pod
        for pod in (group["template"]["spec"] for group in cluster["workerGroupSpecs"])
        if pod["containers"][0].get("image") != head["containers"][0].get("image")
    ]
    if not others:
        return
    # The head's only tells: what it lacks is the launcher's to report.
    _add_check(head, ())
    for pod in others:
        versions = {"ray": ray, "dljob": dljob}
        _add_check(pod, tuple(f"{name}={version}" for name, version in versions.items() if version))
        env: list[Object] = pod["containers"][0]["env"]
        if not any(entry["name"] == MATCH_LEVEL for entry in env):
            env.append({"name": MATCH_LEVEL, "value": "minor"})


def _add_check(pod: Object, required_versions: tuple[str, ...]) -> None:
    ray = pod["containers"][0]
    check: Object = {
        "name": pods.IMAGE_CHECK,
        "image": ray.get("image"),
        **{key: ray[key] for key in ("imagePullPolicy", "securityContext") if key in ray},
        "command": ["python", "-c", LOOK, TOLD, *required_versions],
        "env": [{"name": "PYTHONPATH", "value": pods.LIB}],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "volumeMounts": [{"name": "dljob", "mountPath": pods.ROOT}],
    }
    # Behind the container that brings dljob.
    pod["initContainers"] = [*pod.get("initContainers", ()), check]
