"""The reference page of the spec, made from the same schema as the CRD."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec.crd import GROUP, KIND, VERSION, Schema, schema_of
from dljob.spec.model import DLJobManifest

_HEAD = f"""<!-- Made by `python -m dljob.spec.generate`; change the models, not this file. -->
# The spec of a {KIND}

Every field of `{GROUP}/{VERSION}`, kind `{KIND}`; anything else is refused. Fields in **bold** must be there.
`dljob validate FILE` holds a file against all of this and prints every problem as `file:line:column`.

The smallest job, two ranks of one script:

```yaml
apiVersion: {GROUP}/{VERSION}
kind: {KIND}
metadata: {{name: hello}}
spec:
  roles:
  - {{name: worker, replicas: 2, entrypoint: {{module: hello.py}}}}
```

**Quantities** are texts or whole numbers, never floats: CPU `"2"`, `"0.5"`, `"500m"`; memory `8Gi`, `512Mi`, `2G` or
bytes; devices `8`, or a share `"0.4"` of at most four digits. **Durations** are whole seconds: `...Seconds`.

One file serves a laptop and Kubernetes: `dljob run` leaves alone what only Kubernetes has (images, templates, claims,
queues), and other objects in the file, such as a ConfigMap with the code.

**Templates** (`head.template`, `nodeGroups[].template`, `rayClusterTemplate`) are laid over what the plan makes; see it
with `dljob plan -o manifest`. Mappings are merged key by key, and null takes a value away. Containers, volumes, `env`,
ports and pull secrets are merged by `name`, `volumeMounts` by `mountPath`, worker groups by `groupName`; `tolerations`
and `envFrom` add up; every other list is replaced, as is a probe, an item of `env`, a volume. Ray's container is
`ray-head` or `ray-worker`, others are sidecars. Refused is what the platform needs or a typed field says: the volumes
`dljob` and `dljob-...`, mounts below `/dljob` and `/etc/dljob`, `DLJOB_...`, `POD_NAME`, `RAY_AUTH_...`, the ports of
the head, what Ray counts by (`limits` of CPU, memory and devices of a machine, `requests` of the head), labels under
`dljob.io/`. `PYTHONPATH` gets the platform's folder at its end.

```yaml
nodeGroups:
- name: train
  cpu: "96"
  template:
    spec:
      nodeSelector: {{pool: h100}}
      tolerations: [{{key: nvidia.com/gpu, operator: Exists}}]
      containers:
      - name: ray-worker
        resources: {{limits: {{rdma/hca: 1}}}}
        securityContext: {{capabilities: {{add: [IPC_LOCK]}}}}
```
"""

_TAIL = """## What only the loader checks
The API server cannot check these; `dljob validate`, `plan`, `run` and `submit` do:

- `dependsOn` without cycles; a cycle is shown as `a -> b -> a`
- roles that share a host or a device: group counts equal or one divides the other, one node group, one kind of device
- the devices of one rank, and of one role group, fit on one host of a declared node group
- TPU, HPU and Neuron are given out whole, TPU by 1, 2, 4 or 8 chips; `visibility: Shared` is for GPU, NPU and HPU
- `comm.backend` nccl on GPU, hccl on NPU
- rules name roles that exist, `escalateTo` is above `action`, `backoff.initialSeconds` at most `maxSeconds`
- templates keep what the platform needs; their fields, to the depth of a container, are some that KubeRay 1.6.2 serves
- annotations of roles are known, right, and contradict no typed field
- `runtimeEnv` names fields of Ray's, its `working_dir` and `py_modules` are URIs
- claims are mounted at absolute paths, apart from each other and from the platform's
- `command[0]` is not empty; a `config` holds only what JSON can, in at most 262,144 characters
"""


def reference() -> str:
    """Return the page as Markdown."""
    return "\n".join([_HEAD, *sections("", schema_of(DLJobManifest), KIND), _TAIL])


def sections(path: str, node: Schema, name: str) -> Iterator[str]:
    """Yield a table for an object, then the tables of the objects in it, depth first; `name` is the outermost's."""
    required = set(node.get("required", ()))
    yield f"## {path.removeprefix('.') or name}\n"
    yield f"{node['description']}\n"
    yield "| field | type | default | meaning |\n| --- | --- | --- | --- |"
    below: list[tuple[str, Schema]] = []
    for key, field in node["properties"].items():
        bold = f"**`{key}`**" if key in required else f"`{key}`"
        default = (
            f"`{field['default']}`".replace("True", "true").replace("False", "false") if "default" in field else ""
        )
        yield f"| {bold} | {_type(field)} | {default} | {field['description'].replace('|', '&#124;')} |"
        inner, suffix = (field["items"], "[]") if field.get("type") == "array" else (field, "")
        if "properties" in inner:
            below.append((f"{path}.{key}{suffix}", inner))
    yield ""
    for rule in node.get("x-kubernetes-validations", ()):
        yield f"- {rule['message']}"
    yield ""
    for inner_path, inner in below:
        yield from sections(inner_path, inner, name)


def _type(field: Schema) -> str:
    """Return a type in words, with its bounds."""
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if "enum" in field:
        return "one of " + ", ".join(f"`{value}`".replace("False", "false") for value in field["enum"])
    if field["type"] == "array":
        return f"list of {field.get('minItems', 0)} to {field['maxItems']}: {_type(field['items'])}"
    if field["type"] == "object":
        return _mapping(field)
    if field["type"] == "integer":
        return f"whole number, {field['minimum']} to {field['maximum']}"
    return f"text, at most {field['maxLength']}" if field["type"] == "string" else "true or false"


def _mapping(field: Schema) -> str:
    if "properties" in field:
        return "object"
    if "additionalProperties" in field:
        return f"mapping of at most {field['maxProperties']}: {_type(field['additionalProperties'])}"
    return "free object"
