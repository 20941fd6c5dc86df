"""The reference page of the spec, made from the same schema as the CRD."""

from __future__ import annotations

from collections.abc import Iterator

from dljob.spec.crd import GROUP, KIND, VERSION, Schema, schema_of
from dljob.spec.model import DLJobManifest

_HEAD = f"""<!-- Made by `python -m dljob.spec.generate`; change the models, not this file. -->
# The spec of a {KIND}

All fields of `{GROUP}/{VERSION}`, kind `{KIND}`; others are refused. Fields in **bold** are required.
`dljob validate FILE` checks a file against these rules and prints every problem at `file:line:column`.

The smallest job, two ranks of one script:

```yaml
apiVersion: {GROUP}/{VERSION}
kind: {KIND}
metadata: {{name: hello}}
spec:
  roles:
  - {{name: worker, replicas: 2, entrypoint: {{module: hello.py}}}}
```

**Imports**: a module given as a path, and each Python that a module or command of an Actor role starts, has its own
folder first on its import path, as after `python scripts/train.py`, and the working directory last, behind the standard
library and what is installed; it is first for a class and for a module as `python -m` takes it. `PYTHONPATH` in the
role's `env` comes before all installed modules, also where it names the working directory.

**Quantities** are texts or whole numbers, never floats: CPU `"2"`, `"0.5"`, `"500m"`; memory `8Gi`, `512Mi`, `2G` or
bytes; devices `8`, or a share `"0.4"` of at most four digits. **Durations** are whole seconds: `...Seconds`.

One file serves a laptop and Kubernetes: `dljob run` ignores fields that only Kubernetes has (images, templates, claims,
queues), and other objects in the file, such as a ConfigMap with the code.

**Templates** (`head.template`, `nodeGroups[].template`, `rayClusterTemplate`) are merged over the rendered objects;
`dljob plan -o manifest` shows the result. Mappings are merged key by key, and null removes a value. Containers,
volumes, `env`, ports and pull secrets are merged by `name`, `volumeMounts` by `mountPath`, worker groups by
`groupName`; `tolerations` and `envFrom` are appended; every other list is replaced, and so are a probe, an item of
`env`, a volume. Ray's container is `ray-head` or `ray-worker`; other containers are sidecars. A template is refused
where it sets something that dljob needs or that has a typed field: the volumes `dljob` and `dljob-...`, mounts below
`/dljob` and `/etc/dljob`, the variables `DLJOB_...`, `POD_NAME` and `RAY_AUTH_...`, the ports of the head, the amounts
that Ray counts by (`limits` of CPU, memory and devices of a machine, `requests` of the head), and labels under
`dljob.io/`. dljob appends its own folder to `PYTHONPATH`.

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

_TAIL = """## Rules that only the loader checks
The API server cannot check these rules; `dljob validate`, `plan`, `run` and `submit` do, and so does the operator:

- `dependsOn` without cycles; a cycle is shown as `a -> b -> a`
- roles that `restartPolicy.with` names do not wait for each other to complete, and its own role's level is not Job
- roles that share a host or a device: group counts equal or one divides the other, one node group, one kind of device
- the devices of one rank, and those of one role group, fit on one host of a declared node group
- TPU, HPU and Neuron devices are assigned whole, TPU in 1, 2, 4 or 8 chips; `visibility: Shared` is for GPU, NPU, HPU
- `comm.backend` nccl on GPU, hccl on NPU
- rules name roles that exist, `escalateTo` is above `action`, `backoff.initialSeconds` at most `maxSeconds`
- templates keep what dljob needs; their fields, to the depth of a container, exist in KubeRay 1.6.2
- annotations of roles are known and valid, and contradict no typed field
- `runtimeEnv` has only fields that Ray knows; its `working_dir` and `py_modules` are URIs
- claims are mounted at absolute paths, apart from each other and from dljob's own
- `command[0]` is not empty; a `config` holds only values that JSON has, in at most 262,144 characters
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
        # Booleans in YAML's spelling, not in Python's.
        default = (
            f"`{field['default']}`".replace("True", "true").replace("False", "false") if "default" in field else ""
        )
        # A bar would end the cell of the table.
        yield f"| {bold} | {_type(field)} | {default} | {field['description'].replace('|', '&#124;')} |"
        inner, suffix = (field["items"], "[]") if field.get("type") == "array" else (field, "")
        # After this table, so that no table is cut in two by an inner one.
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
    # First, since such a node has no type.
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
