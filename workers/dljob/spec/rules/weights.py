"""The rules about weights that dljob loads into servers, and the settings that it warns of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dljob.spec import cel
from dljob.spec.model import DLJobSpec, Role, Weights
from dljob.spec.rules.findings import Check, Finding, repeated
from dljob.spec.rules.serving import header_findings, port_findings
from dljob.spec.text.tree import Loc


def _weights(spec: DLJobSpec) -> Iterator[Finding]:
    for index, role in enumerate(spec.roles):
        if role.weights is None:
            continue
        loc: Loc = ("spec", "roles", index, "weights")
        for at, first, name in repeated(role.weights.channels):
            yield Finding((*loc, "channels", at), f"{name} is there already, at {first}", "name each channel once")
        yield from _hooks(role, role.weights, loc)


def _hooks(role: Role, weights: Weights, loc: Loc) -> Iterator[Finding]:
    load, verify = weights.load, weights.verify
    hooks: list[tuple[str, str, Mapping[str, object]]] = [
        ("load", cel.WEIGHTS_LOAD.message, {"httpPost": load.http_post, "exec": load.exec_, "method": load.method})
    ]
    if verify is not None:
        kinds = {"httpGet": verify.http_get, "exec": verify.exec_, "method": verify.method}
        hooks.append(("verify", cel.WEIGHTS_VERIFY.message, kinds))
    for key, message, kinds in hooks:
        kind_names = [name for name, value in kinds.items() if value is not None]
        if len(kind_names) != 1:
            yield Finding((*loc, key), f"{message}; here {' and '.join(kind_names) or 'none'}")
        elif kind_names == ["method"] and role.entrypoint.class_ is None:
            words = f"a method is for a class: {role.name} runs a module or command"
            reads = ((*loc, key), (*loc[:3], "entrypoint"))
            yield Finding((*loc, key, "method"), words, "take httpPost or exec", reads)
    if load.http_post is not None:
        yield from port_findings(role, load.http_post.port, (*loc, "load", "httpPost", "port"))
    if verify is not None and verify.http_get is not None:
        yield from port_findings(role, verify.http_get.port, (*loc, "verify", "httpGet", "port"))
        yield from header_findings(verify.http_get, (*loc, "verify", "httpGet"))


def weight_warnings(spec: DLJobSpec) -> Iterator[Finding]:
    """Yield settings that are valid, and with which minReady ranks cannot stay ready as versions are published."""
    for index, role in enumerate(spec.roles):
        weights = role.weights
        if weights is None or not weights.min_ready:
            continue
        loc: Loc = ("spec", "roles", index, "weights")
        few = role.min_replicas or role.replicas
        if not weights.max_lag:
            words = f"with maxLag 0 no rank of {role.name} is ready from each new version until it has loaded"
            yield Finding((*loc, "maxLag"), words, "maxLag: 1 lets them load in turn")
        elif few <= weights.min_ready:
            words = f"no rank of {role.name} may load before it is stale: minReady is {weights.min_ready}, of {few}"
            yield Finding((*loc, "minReady"), words, "have more replicas than minReady")


WEIGHT_RULES: tuple[Check, ...] = (_weights,)
