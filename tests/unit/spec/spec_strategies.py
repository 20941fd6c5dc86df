"""Jobs for laws about the spec: right ones, and right ones with anything put into any place."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
EXACT = st.floats(-(2.0**53), 2.0**53)
"""Go writes larger floats without an exponent, so they come back from a server as whole numbers beside them."""
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS | EXACT
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
CONFIGS = st.dictionaries(TEXTS, TREES, max_size=3)
ENVS = st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True), PLAIN_TEXTS, max_size=3).map(
    lambda env: [{"name": name, "value": value} for name, value in env.items()]
)
ENTRYPOINTS = st.one_of(
    st.just({"class": "app.A"}),
    st.builds(lambda text: {"module": f"x{text}"}, PLAIN_TEXTS),
    st.lists(PLAIN_TEXTS, max_size=3).map(lambda rest: {"command": ["run", *rest]}),
)


@st.composite
def manifests(draw: st.DrawFn) -> dict[str, Any]:
    """A valid job, as YAML would hold it."""
    names = draw(
        st.lists(NAMES.filter(lambda n: n not in ("job", "master", "node")), min_size=1, max_size=4, unique=True)
    )
    size = draw(st.integers(1, 4))
    roles = [
        {
            "name": name,
            "entrypoint": draw(ENTRYPOINTS),
            "args": draw(st.lists(PLAIN_TEXTS, max_size=2)),
            "env": draw(ENVS),
            "config": draw(CONFIGS),
            "replicas": size * draw(st.sampled_from([1, 2, 4])),
            "replicasPerGroup": size,
            "resources": draw(
                st.sampled_from([{}, {"cpu": "500m"}, {"cpu": 2, "memory": "8Gi", "custom": {"x": "0.5"}}])
            ),
            "dependsOn": [{"role": other} for other in names[:index]],
            **draw(
                st.sampled_from([{}, {"accelerator": {"count": "0.25"}}, {"accelerator": {"type": "NPU", "count": 2}}])
            ),
            **draw(st.sampled_from([{}, {"type": "Elastic", "comm": {"backend": "gloo", "preCheck": False}}])),
        }
        for index, name in enumerate(names)
    ]
    levels = st.sampled_from(["Host", "Separate"])
    collocations = [{"name": "c", "roles": names, "level": draw(levels)}] if len(names) > 1 else []
    more = {
        "imagePullSecrets": [{"name": "pull"}],
        "envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}],
        "code": {"configMap": "code"},
        "checkpoint": {
            "path": "/ckpt",
            "claimName": "ckpt",
            "saveOnExit": False,
            "peerCopy": False,
            "gracePeriodSeconds": 9,
            "everySteps": 9,
            "cutDeadlineSeconds": 9,
        },
        "scheduling": {"queueName": "gold", "labels": {"volcano.sh/queue-name": "q"}},
        "networkPolicy": {"enabled": True},
        "head": {"cpu": 2, "template": {"spec": {"nodeSelector": {"pool": "cpu"}}}},
        "rayClusterTemplate": {"metadata": {"labels": {"team": "rl"}}},
        "master": {"cpu": "250m", "journal": {"path": "/journal"}},
        "gcsFaultTolerance": {"backend": "RocksDB", "claimName": "gcs"},
        "ttlSecondsAfterFinished": draw(st.integers(0, 9)),
        "runtimeEnv": {"env_vars": {"A": "1"}},
    }
    chosen = {key: more[key] for key in draw(st.sets(st.sampled_from(sorted(more)), max_size=4))}
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": draw(NAMES), "labels": draw(st.dictionaries(NAMES, NAMES, max_size=2))},
        "spec": {"roles": roles, "config": draw(CONFIGS), "env": draw(ENVS), "collocations": collocations, **chosen},
    }


@st.composite
def spoilt(draw: st.DrawFn) -> dict[str, Any]:
    """A valid job with anything put in place of anything."""
    data = draw(manifests())
    node: Any = data
    for _ in range(draw(st.integers(0, 4))):
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = draw(st.sampled_from(keys)) if keys else None
        if key is None or not isinstance(node[key], dict | list):
            break
        node = node[key]
    keys = [*node, "odd"] if isinstance(node, dict) else list(range(len(node)))
    if keys:
        node[draw(st.sampled_from(keys))] = draw(TREES)
    return data
