"""Texts, bytes and files into manifests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic_core import ErrorDetails

from dljob.errors import ExitCode, Problem, SpecError, UsageError
from dljob.spec.loading.load import dump, load, load_all, load_file, load_file_all, parse
from dljob.spec.loading.validate import check
from dljob.spec.model import DLJobManifest
from dljob.spec.text import tree
from dljob.spec.text.words import describe, kind_of

SAMPLES = sorted((Path(__file__).parents[3] / "golden" / "samples").glob("*.yaml"))

ROLE = {"name": "a", "entrypoint": {"class": "app.A"}}


def job(**spec: object) -> dict[str, object]:
    return {
        "apiVersion": "dljob.io/v1alpha1",
        "kind": "DLJob",
        "metadata": {"name": "j"},
        "spec": {"roles": [ROLE], **spec},
    }


def problems(error: pytest.ExceptionInfo[SpecError]) -> list[str]:
    return [str(problem) for problem in error.value.problems]


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_samples_load_and_survive_a_dump(path: Path) -> None:
    manifest = load_file(path)
    assert manifest.metadata.name == path.stem
    assert load(dump(manifest)) == manifest
    check(manifest)


def test_all_documents_of_a_file_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text("---\n" + "---\n".join(sample.read_text() for sample in SAMPLES) + "---\n# the end\n")
    assert [manifest.metadata.name for manifest in load_file_all(path)] == [sample.stem for sample in SAMPLES]
    with pytest.raises(SpecError) as caught:
        load_file(path)
    assert "holds 4 jobs, grpo-ascend, hello, ppo-llama8b, sft-elastic; one is wanted" in str(caught.value)
    assert caught.value.problems[0].line == 22, "the place of the second job"


BESIDE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: code}
data:
  hello.py: |
    print("hello")
"""


def test_other_objects_in_the_file_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    text = dump(parse(job()))
    for documents in ([BESIDE, text], [text, BESIDE], [BESIDE, text, "apiVersion: v1\nkind: Secret\na: {1: 2}\n"]):
        path.write_text("---\n".join(documents))
        assert load_file(path) == parse(job())
        assert load_file_all(path) == [parse(job())]
    path.write_text("---\n".join([text, BESIDE, text.replace("name: j", "name: k"), BESIDE]))
    assert [manifest.metadata.name for manifest in load_file_all(path)] == ["j", "k"]
    with pytest.raises(SpecError, match="holds 2 jobs, j, k; one is wanted"):
        load_file(path)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (BESIDE, "kind: must be DLJob, not"),
        (BESIDE.replace("ConfigMap", "DLjob"), "did you mean DLJob"),
        (BESIDE.replace("v1", "dljob.io/v1"), "apiVersion: must be dljob.io/v1alpha1"),
        (BESIDE.replace("kind: ConfigMap", ""), "kind: is missing"),
        (BESIDE.replace("kind: ConfigMap", "kind: 5"), "kind: must be DLJob, not 5"),
        ("- a\n", "a DLJob is a mapping of"),
    ],
)
def test_a_document_that_may_be_meant_as_a_job_is_not_skipped(other: str, words: str) -> None:
    beside = "" if other == BESIDE else f"\n---\n{dump(parse(job()))}"
    with pytest.raises(SpecError, match=words):
        load(other + beside)


@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_json_files_are_loaded_too(indent: int | str | None) -> None:
    text = json.dumps(job(config={"face": "\N{GRINNING FACE}", "path": "a/b", "n": 1e3}), indent=indent)
    config = load(text.replace("a/b", "a\\/b")).spec.config
    assert config == {"face": "\N{GRINNING FACE}", "path": "a/b", "n": 1000.0}


def test_yaml_reads_what_people_write() -> None:
    manifest = load(
        """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: j, labels: {team: &team rl}}
spec:
  config: {hex: 0x1F, octal: 0o17, big: 1_000, date: 2026-01-02, text: !!str 5, none: ~, "on": "yes", team: *team}
  env: &env
  - {name: A, value: '1'}
  roles:
  - &role
    name: a
    env: *env
    entrypoint: {class: app.A}
    resources: {cpu: 2, memory: 1048576, custom: {licence: 1}}
    accelerator: {count: 2}
  - <<: *role
    name: b
  - <<: [{replicas: 2}, *role, {replicas: 3}]
    name: c
"""
    )
    spec = manifest.spec
    assert spec.config == {
        "hex": 31,
        "octal": 15,
        "big": 1000,
        "date": "2026-01-02",
        "text": "5",
        "none": None,
        "on": "yes",
        "team": "rl",
    }
    assert [(r.name, r.replicas, r.env[0].value) for r in spec.roles] == [("a", 1, "1"), ("b", 1, "1"), ("c", 2, "1")]
    resources = spec.roles[0].resources
    assert (resources.cpu, resources.memory, resources.custom) == ("2", "1048576", {"licence": "1"})
    assert spec.roles[2].accelerator
    assert spec.roles[2].accelerator.count == "2"


def test_yaml_1_1_may_be_asked_for() -> None:
    text = dump(parse(job())).replace("name: j", "name: j\n  labels: {a: 'x'}")
    manifest = load(f"%YAML 1.1\n---\n{text}  config: {{a: yes, b: off}}\n")
    assert manifest.spec.config == {"a": True, "b": False}


def test_a_byte_order_mark_does_not_count() -> None:
    assert load(b"\xef\xbb\xbf" + dump(parse(job())).encode()).metadata.name == "j"


def test_a_text_longer_than_its_bound_is_refused() -> None:
    with pytest.raises(
        SpecError, match=f"^<spec>:1:1: is {tree.MAX_CHARACTERS + 1} characters long, at most {tree.MAX_CHARACTERS}"
    ):
        load("#" * (tree.MAX_CHARACTERS + 1))
    with pytest.raises(SpecError, match="is empty"):
        load("#" * tree.MAX_CHARACTERS)


def test_a_config_larger_than_its_bound_is_refused() -> None:
    with pytest.raises(SpecError, match="characters as JSON, at most 262144"):
        load(json.dumps(job(config={"a": "x" * 262_144})))


def test_a_config_holds_no_number_that_kubernetes_would_round() -> None:
    assert load(json.dumps(job(config={"a": [2**63 - 1, -(2**63), True]}))).spec.config["a"][0] == 2**63 - 1
    for number in (2**63, -(2**63) - 1):
        with pytest.raises(SpecError, match="whole number of more than 64 bits"):
            load(json.dumps(job(config={"a": [{"b": number}]})))


def test_a_file_is_read_up_to_the_bound_only(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.write("\N{GRINNING FACE}".encode() * 8 + b"x")
        stream.truncate(2**33)  # sparse: 8 GiB on no disk
    with pytest.raises(SpecError, match="is longer than 2097152 bytes"):
        load_file(path)
    path.write_bytes(b"#" * 2097152)
    with pytest.raises(SpecError, match="is 2097152 characters long, at most 524288"):
        load_file(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nowhere\.yaml: No such file or directory") as caught:
        load_file(tmp_path / "nowhere.yaml")
    assert caught.value.exit_code == ExitCode.USAGE
    with pytest.raises(UsageError, match="Is a directory"):
        load_file(tmp_path)


def test_a_failure_of_the_yaml_parser_is_told() -> None:
    with pytest.raises(SpecError, match="<spec>:1:1: not YAML: "):
        load('a: "\\UFFFFFFFF"')


def test_python_data_needs_no_file() -> None:
    manifest = parse(job(env=({"name": "A", "value": "1"},), config={"tuple": (1, 2)}))
    assert manifest.spec.env[0].value == "1"
    assert manifest.spec.config == {"tuple": [1, 2]}


def test_python_data_that_json_cannot_hold_is_refused_all_at_once() -> None:
    deep: list[object] = []
    for _ in range(70):
        deep = [deep]
    with pytest.raises(SpecError) as caught:
        parse(job(config={1: "a", "b": {1}, "c": float("nan"), "d": "\ud800", "e": deep}, image=7))
    assert problems(caught) == [
        "spec.config: the key 1 is not a text (write '1')",
        "spec.config.b: holds {1}, which JSON cannot (use texts, numbers, lists and mappings)",
        "spec.config.c: holds nan, which JSON cannot (use texts, numbers, lists and mappings)",
        "spec.config.d: holds half of a surrogate pair (write the whole character)",
        "spec.config: is nested deeper than 64 levels",
        'spec.image: must be a text, not 7 (write "7")',
    ]
    with pytest.raises(SpecError, match="holds the byte 0xf1, which is no UTF-8"):
        parse(job(image="\udcf1.py"))
    with pytest.raises(SpecError) as caught:
        parse(job(image=float("nan")))
    assert problems(caught) == ["spec.image: holds nan, which JSON cannot (use texts, numbers, lists and mappings)"]


@pytest.mark.parametrize(
    ("image", "hint"),
    [
        ("https://registry.example/team/train:1", "leave out https://: write registry.example/team/train:1"),
        ("docker://train:1", "leave out docker://: write train:1"),
        ("oci://Train", ""),
        ("registry.example/Team/Train:1", ""),
        ("train:1@sha256:abc", ""),
        ("train:-1", ""),
        ("train:", ""),
        ("team//train", ""),
        ("träin", ""),
    ],
)
def test_an_image_that_no_registry_can_have_is_refused(image, hint):
    with pytest.raises(SpecError) as caught:
        parse(job(image=image))
    (problem,) = caught.value.problems
    assert (problem.path, problem.hint) == ("spec.image", hint)
    assert "is not the name of an image" in problem.message


@pytest.mark.parametrize(
    "image",
    [
        "train",
        "Registry.example:5000/a/b__c-d.e:V1_2.x",
        f"[::1]:5000/a@sha256:{'0f' * 32}",
        f"a---b:1@sha256:{'A' * 64}",
        f"a:{'x' * 128}",
    ],
)
def test_an_image_as_registries_name_it_is_valid(image):
    assert parse(job(image=image)).spec.image == image


def test_good_data_with_one_bad_key_is_refused() -> None:
    with pytest.raises(SpecError, match="the key 1 is not a text"):
        parse(job(config={1: "a"}))


def test_a_wrong_name_of_a_job_hides_no_rule_between_fields() -> None:
    roles = [{**ROLE, "nodeGroup": "gone"}, {**ROLE, "replicas": 3, "replicasPerGroup": 2}]
    with pytest.raises(SpecError) as caught:
        parse({**job(roles=roles), "metadata": {"name": "Bad_Name", "labels": {"a": 5}}})
    assert {problem.path for problem in caught.value.problems} == {
        "metadata.name",
        "metadata.labels.a",
        "spec.roles[0].nodeGroup",
        "spec.roles[1].name",
        "spec.roles[1].replicasPerGroup",
    }


def test_a_wrong_kind_is_told_once() -> None:
    with pytest.raises(SpecError) as caught:
        parse({key: value for key, value in job().items() if key != "apiVersion"} | {"kind": "DLjob"})
    assert problems(caught) == [
        "apiVersion: is missing (write apiVersion: dljob.io/v1alpha1)",
        'kind: must be DLJob, not "DLjob" (did you mean DLJob?)',
    ]


def test_a_wrong_item_of_a_list_hides_no_rule_on_the_others() -> None:
    env = [{"name": "1A"}, {"name": "B", "value": 5}, {"name": "C"}, {"name": "C"}]
    role = {"name": "a", "env": env, "entrypoint": {"class": 5}, "dependsOn": [{"role": "gone"}]}
    with pytest.raises(SpecError) as caught:
        parse(job(roles=[role, {"name": "b", "driver": 1}]))
    assert {problem.path for problem in caught.value.problems} == {
        "spec.roles[0].env[0].name",
        "spec.roles[0].env[1].value",
        "spec.roles[0].env[3].name",
        "spec.roles[0].entrypoint.class",
        "spec.roles[0].dependsOn[0].role",
        "spec.roles[1].driver",
        "spec.roles[1].entrypoint",
    }


def test_a_wrong_item_that_others_refer_to_makes_no_finding_about_them() -> None:
    with pytest.raises(SpecError) as caught:
        parse(job(roles=[{**ROLE, "nodeGroup": "g"}], nodeGroups=[{"name": "g", "image": "a b"}, {"cpu": 1}]))
    assert {problem.path for problem in caught.value.problems} == {
        "spec.nodeGroups[0].image",
        "spec.nodeGroups[1].name",
    }


def test_a_list_of_too_many_wrong_items_is_one_finding() -> None:
    with pytest.raises(SpecError) as caught:
        parse(job(roles=[{"name": f"Bad_{i}"} for i in range(40)], image=5))
    assert problems(caught) == [
        "spec.roles: has 40 items, at most 32",
        'spec.image: must be a text, not 5 (write "5")',
    ]


@pytest.mark.parametrize(
    ("spec", "paths"),
    [
        (
            "roles: [{entrypoint: {module: y.py}}, {name: a, entrypoint: {module: x.py}, env: [{name: A}, {name: A}]}]",
            ["roles[0].name", "roles[1].env[1].name"],
        ),
        ("roles: [hello]\n  rayVersion: 2.1.0", ["roles[0]", "rayVersion"]),
        (
            "nodeGroups: [{name: G_1}]\n  roles: [{name: a, dependsOn: [{role: z}], entrypoint: {module: x.py}}]",
            ["nodeGroups[0].name", "roles[0].dependsOn[0].role"],
        ),
        (
            "roles: [{name: a, ports: [{name: X_}], entrypoint: {module: x.py}, replicas: 3, replicasPerGroup: 2}]",
            ["roles[0].ports[0].name", "roles[0].replicasPerGroup"],
        ),
        (
            "roles: [{entrypoint: {module: x.py}, replicas: 3, replicasPerGroup: 2}]",
            ["roles[0].name", "roles[0].replicasPerGroup"],
        ),
        (
            "roles: [{name: a, entrypoint: {module: x.py}}]\n  collocations: [{roles: [a, z], level: Host}]",
            ["collocations[0].name", "collocations[0].roles[1]"],
        ),
        (
            "roles: [{name: a, entrypoint: {module: x.py}}]\n  collocations: [{name: c, roles: [a, z], level: Hst}]",
            ["collocations[0].roles[1]", "collocations[0].level"],
        ),
        (
            (
                "roles: [{name: a, entrypoint: {module: x.py}}]\n"
                "  faultTolerance: {rules: [7, {name: r, roles: [z], action: Bad, escalateTo: Fail}]}"
            ),
            [f"faultTolerance.rules[{place}" for place in ("0]", "1].roles[0]", "1].action", "1].escalateTo")],
        ),
        (
            "roles: [{name: a, entrypoint: {module: x.py}, dependsOn: [{role: z, condition: Bad}]}]",
            ["roles[0].dependsOn[0].role", "roles[0].dependsOn[0].condition"],
        ),
        ("roles: hello\n  rayVersion: 2.1.0", ["roles", "rayVersion"]),
    ],
)
def test_an_item_that_cannot_be_read_leaves_the_others_checked(spec: str, paths: list[str]) -> None:
    """In the same round, so that nobody corrects a file twice."""
    text = f"apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {{name: j}}\nspec:\n  {spec}\n"
    with pytest.raises(SpecError) as caught:
        load(text)
    assert [problem.path.removeprefix("spec.") for problem in caught.value.problems] == paths


@pytest.mark.parametrize(
    "spec",
    [
        "nodeGroups: [{name: 7}]\n  roles: [{name: a, nodeGroup: g, entrypoint: {module: x.py}}]",
        "roles: [{entrypoint: {module: x.py}}, {name: a, dependsOn: [{role: b}], entrypoint: {module: x.py}}]",
        "roles: [{entrypoint: {module: x.py}}, {name: a, restartPolicy: {with: [b]}, entrypoint: {module: x.py}}]",
        "roles: [{name: 3, entrypoint: {module: x.py}}, {name: a, driver: false, entrypoint: {module: x.py}}]",
        (
            "nodeGroups: [{name: g, accelerator: {type: Gpu}}]\n"
            "  roles: [{name: a, nodeGroup: g, accelerator: {count: '0.5'}, entrypoint: {module: x.py}}]"
        ),
        (
            "roles: [{name: a, entrypoint: {module: x.py}}, {name: b, entrypoint: {module: x.py}}]\n"
            "  collocations: [{name: c, roles: [a, b], level: 7}]"
        ),
        (
            "roles: [{name: a, entrypoint: {module: x.py}}, {name: b, entrypoint: {module: x.py}}]\n"
            "  collocations: [{roles: [a, b], level: Host}, {name: c, roles: [b, a], level: Host}]"
        ),
        (
            "roles: [{name: a, entrypoint: {module: x.py}, type: Elastic, minReplicas: {}, replicas: 2}]\n"
            "  nodeGroups: [{name: g, replicas: 2, minReplicas: 1}]"
        ),
        (
            "roles: [{name: a, entrypoint: {module: x.py}, tf: {task: x}}, {name: b, driver: false, tf: {task: ps}, "
            "entrypoint: {module: x.py}}, {name: c, tf: {task: chief}, entrypoint: {module: x.py}}]"
        ),
        "checkpoint: {path: 7, claimName: c}\n  roles: [{name: a, entrypoint: {module: x.py}}]",
        "roles: [{name: a, ports: [{port: 80}], readinessProbe: {tcpSocket: {port: web}}, entrypoint: {module: x.py}}]",
    ],
)
def test_what_may_refer_to_an_item_that_cannot_be_read_is_no_problem(spec: str) -> None:
    """A name that is not there may be its own."""
    with pytest.raises(SpecError) as caught:
        load(f"apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {{name: j}}\nspec:\n  {spec}\n")
    (problem,) = caught.value.problems
    assert problem.path.endswith(("name", "type", "level", "minReplicas", "task", "path"))


def test_a_rest_that_is_still_wrong_is_checked_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dljob.spec.loading.validate.is_required", lambda loc: False)
    with pytest.raises(SpecError) as caught:
        parse(job(roles=[{**ROLE, "name": "Bad_Name"}, {**ROLE, "nodeGroup": "gone"}]))
    assert [problem.path for problem in caught.value.problems] == ["spec.roles[0].name"]


@pytest.mark.parametrize("unknown", [("name", "env"), ("name", "roles", "spec", 0)])
def test_a_field_of_no_known_type_is_replaced_with_what_is_around_it(
    unknown: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dljob.spec.loading.validate.kind_of", lambda loc: None if loc[-1] in unknown else kind_of(loc))
    with pytest.raises(SpecError) as caught:
        parse(job(roles=[{**ROLE, "name": 7, "replicas": "two"}], rayVersion="2.1.0"))
    told = {problem.path for problem in caught.value.problems}
    assert told - {"spec.rayVersion"} == {"spec.roles[0].name", "spec.roles[0].replicas"}
    assert ("spec.rayVersion" in told) == ("spec" not in unknown)


def test_check_holds_models_against_the_rules() -> None:
    manifest = parse(job())
    role = manifest.spec.roles[0].model_copy(update={"name": "job"})
    spec = manifest.spec.model_copy(update={"roles": (role,)})
    with pytest.raises(SpecError) as caught:
        check(DLJobManifest(metadata=manifest.metadata, spec=spec))
    assert caught.value.problems == (
        Problem(
            "spec.roles[0].name",
            "reserved name: commands use job for something else",
            hint="call the role job-role, for example",
        ),
    )


def test_free_objects_of_models_hold_json_only() -> None:
    role = parse(job()).spec.roles[0]
    for config, words in (({"a": (1,)}, "keys that are strings"), ({"a": {1}}, "set is not JSON serializable")):
        with pytest.raises(ValueError, match=words):
            type(role)(name="a", entrypoint=role.entrypoint, config=config)


def test_an_unknown_message_of_pydantic_is_passed_on() -> None:
    error: ErrorDetails = {"type": "brand_new", "loc": ("spec",), "msg": "Input should be newer", "input": 1}
    assert describe(error, ("spec",)) == ("Input should be newer", "")


def test_a_list_with_too_many_items_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.env: has 257 items, at most 256"):
        parse(job(env=[{"name": f"A{i}"} for i in range(257)]))


@pytest.mark.parametrize(
    ("nice", "words"),
    [
        (20, "must be at most 19, not 20"),
        (-21, "must be at least -20, not -21"),
        ("high", 'must be a whole number, not "high"'),
    ],
)
def test_a_niceness_that_no_process_has_is_refused(nice: object, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(job(roles=[{**ROLE, "nice": nice}]))
    assert problems(refused) == [f"spec.roles[0].nice: {words}"]


@pytest.mark.parametrize("nice", [-20, 0, 19])
def test_a_niceness_that_a_process_may_have_is_taken(nice: int) -> None:
    assert parse(job(roles=[{**ROLE, "nice": nice}])).spec.roles[0].nice == nice


def test_the_first_wait_may_be_the_longest() -> None:
    manifest = parse(job(faultTolerance={"backoff": {"initialSeconds": 5, "maxSeconds": 5}}))
    assert manifest.spec.fault_tolerance.backoff.max_seconds == 5


def test_models_are_frozen_and_refuse_what_they_do_not_know() -> None:
    role = parse(job()).spec.roles[0]
    with pytest.raises(ValueError, match="frozen"):
        role.replicas = 2
    with pytest.raises(ValueError, match="Extra inputs"):
        type(role)(name="a", entrypoint=role.entrypoint, replica=2)  # pyright: ignore[reportCallIssue]


def test_wrong_names_and_shapes_are_told_with_the_right_ones():
    text = """
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: x}
spec:
  nodeGroups:
  - {name: g, resources: {cpu: "4"}}
  roles:
  - {name: a, replicas: yes, driver: yes, entrypoint: t.py, accelerator: 2, args: [on]}
  - {name: b, gpus: 2, entrypoint: {module: t.py}, dependsOn: [workr]}
"""
    with pytest.raises(SpecError) as refused:
        load(text)
    hints = {problem.path.removeprefix("spec."): problem.hint for problem in refused.value.problems}
    assert hints == {
        "nodeGroups[0].resources": "write cpu and memory here; resources is a field of spec.roles[]",
        "roles[0].replicas": "write a whole number",
        "roles[0].driver": "write true",
        "roles[0].entrypoint": (
            "write entrypoint: {class: pkg.module.Name}, {module: train.py} or {command: [program, argument]}"
        ),
        "roles[0].accelerator": "its fields are type, count, visibility, numaBinding, memoryLimit",
        "roles[0].args[0]": 'write "on"',
        "roles[1].gpus": "write accelerator: {type: GPU, count: 1}",
        "roles[1].dependsOn[0]": "write {role: workr}",
    }


JOBS = "".join(f"---\n{json.dumps(job() | {'metadata': {'name': f'j{n}'}})}\n" for n in range(3))


def test_a_file_of_too_many_documents_is_read_up_to_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_DOCUMENTS", 3)
    assert len(load_all(JOBS)) == 3
    with pytest.raises(SpecError) as error:
        load_all(JOBS + "--- {}\n")
    assert problems(error) == ["<spec>:7:5: holds more than 3 documents (put its parts into files of their own)"]


@pytest.mark.parametrize("values", ["a, " * 100, "{a: b}, " * 34, "&a 1, " + "*a, " * 100, "1]\n---\n[" * 60])
def test_a_file_of_too_many_values_is_refused_before_it_is_read(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MAX_NODES", 100)
    with pytest.raises(SpecError, match="holds more than 100 keys and values"):
        load_all(f"[{values}]")


@pytest.mark.parametrize(
    ("spec", "place"),
    [
        ({"env": [{"name": "A", "value": "s" * 40_000}]}, "spec.env[0].value: is 40000 characters long, at most 32768"),
        ({"env": [{"name": "A" * 300, "value": "s"}]}, "spec.env[0].name: is 300 characters long, at most 256"),
        (
            {"roles": [ROLE | {"env": [{"name": "A", "value": "s" * 32_769}]}]},
            "spec.roles[0].env[0].value: is 32769 characters long, at most 32768",
        ),
        ({"roles": [ROLE | {"name": "a" * 99}]}, "spec.roles[0].name: is 99 characters long, at most 24"),
    ],
)
def test_a_text_that_is_too_long_is_measured_though_it_is_hidden(spec: dict[str, object], place: str) -> None:
    with pytest.raises(SpecError) as error:
        parse(job(**spec))
    assert problems(error) == [place]
