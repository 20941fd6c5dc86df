"""Files that are no plain manifests, and the command's own refusals."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest
from tests.unit.convert.test_ray_job import TEXT, job

from dljob.cli import main as command
from dljob.convert.manifest import ConvertedJob, OtherManifest, RefusedManifest, convert
from dljob.convert.report import converted_text, diff, lines
from dljob.errors import SpecError, UsageError
from dljob.spec.loading.load import load, load_all

SECRET = """\
apiVersion: v1
kind: Secret
metadata: {name: token}
# hidden remark
stringData: {token: hunter2}
"""
CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}  # kept\n"


def test_a_chart_is_refused_with_its_line() -> None:
    """It has to be rendered first."""
    with pytest.raises(UsageError, match=r"job\.yaml:2: a chart's template") as raised:
        convert("apiVersion: ray.io/v1\nimage: {{ .Values.image }}\n", "job.yaml")
    assert "helm template" in raised.value.hint


ALERT = """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: alerts}
spec: {groups: [{name: g, rules: [{annotations: {summary: "{{ $labels.instance }} is down, {{ .Value }}"}}]}]}
"""


def test_braces_of_alerts_beside_a_job_are_no_chart() -> None:
    """They are passed on; the same words in a job are a chart's."""
    pieces = convert(f"{TEXT}---\n{ALERT}", "job.yaml")
    assert "{{ $labels.instance }}" in converted_text(pieces)
    with pytest.raises(UsageError, match="a chart's template"):
        convert(f"{ALERT}---\n{TEXT}".replace("kind: RayJob", "kind: RayJob # {{ .Values.x }}"), "job.yaml")
    with pytest.raises(UsageError, match="a chart's template"):
        convert(f"{ALERT}---\n{{{{- if .Values.on }}}}\n{TEXT}", "job.yaml")


def test_forty_documents_become_forty_jobs() -> None:
    """With names of their own."""
    text = "---\n".join(TEXT.replace("name: sample", f"name: sample-{number}") for number in range(40))
    pieces = convert(text, "job.yaml")
    assert len(load_all(converted_text(pieces))) == 40
    assert [piece.line for piece in pieces if isinstance(piece, ConvertedJob)][:2] == [2, 2 + TEXT.count("\n") + 1]


def test_values_of_a_secret_are_in_no_output() -> None:
    """It is named; other objects are passed on as they are."""
    text = "---\n".join((SECRET, TEXT, CLAIM))
    pieces = convert(text, "job.yaml")
    shown = "\n".join([converted_text(pieces), *lines(pieces, "job.yaml"), *diff(text, pieces)])
    assert "hunter2" not in shown
    assert "hidden remark" not in shown
    assert "Secret token: not passed on" in shown
    assert CLAIM in converted_text(pieces)
    assert [type(piece) for piece in pieces] == [OtherManifest, ConvertedJob, OtherManifest]


@pytest.mark.parametrize("kind", ["SecretList", "secret"])
def test_other_writings_of_a_secret_are_secret_too(kind: str) -> None:
    """As the API server lists them, or misspelt."""
    text = f"{SECRET.replace('kind: Secret', f'kind: {kind}')}items: [{{stringData: {{token: hunter2}}}}]\n"
    pieces = convert(text, "job.yaml")
    assert "hunter2" not in "\n".join([converted_text(pieces), *lines(pieces, "job.yaml"), *diff(text, pieces)])


def test_anchors_are_resolved() -> None:
    """Each use is a field of its own, with the line of the anchor."""
    text = TEXT.replace("limits: {cpu: 2, memory: 4Gi}", "limits: &amount {cpu: 2, memory: 4Gi}").replace(
        "limits: {cpu: 8, nvidia.com/gpu: 4}", "limits: *amount"
    )
    assert [group.cpu for group in load(job(text).text).spec.node_groups] == ["2", "2"]


def test_an_architecture_also_stands_at_the_head() -> None:
    """The head has the same image, so it needs the same machines."""
    text = TEXT.replace(
        "          volumes: [", "          nodeSelector: {kubernetes.io/arch: arm64}\n          volumes: ["
    )
    made = job(text)
    assert load(made.text).spec.head.template["spec"]["nodeSelector"] == {"kubernetes.io/arch": "arm64"}
    assert any("kubernetes.io/arch: arm64" in remark for remark in made.remarks)


@pytest.mark.parametrize(
    ("values", "head"),
    [("[arm64]", "arm64"), ("[arm64, amd64]", None), ("arm64", None)],
    ids=["one", "any of two", "no list"],
)
def test_an_architecture_by_affinity_also_stands_at_the_head(values: str, head: str | None) -> None:
    """Only where there is no choice."""
    expression = f"{{key: kubernetes.io/arch, operator: In, values: {values}}}"
    terms = f"nodeSelectorTerms: [{{matchExpressions: [{{key: zone, operator: Exists}}, {expression}]}}]"
    affinity = f"affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{{terms}}}}}}}"
    made = job(TEXT.replace("          volumes: [", f"          {affinity}\n          volumes: ["))
    assert f"kubernetes.io/arch: {head}" in made.text if head else "nodeSelector:" not in made.text


def test_items_of_a_list_are_documents() -> None:
    """As `kubectl get -o yaml` prints them."""
    items = "".join(f"- {part.strip()}\n".replace("\n", "\n  ").rstrip() + "\n" for part in (TEXT, CLAIM))
    pieces = convert(
        f"apiVersion: v1\nkind: List\nitems:\n{items.replace('- # Licence of the file', '- ')}", "job.yaml"
    )
    assert [piece.kind for piece in pieces] == ["RayJob", "PersistentVolumeClaim"]
    assert "kind: PersistentVolumeClaim" in converted_text(pieces)


@pytest.mark.parametrize("text", ["", "# nothing\n", "kind: RayJob\nkind: RayJob\n", "a: [\n"])
def test_what_is_no_manifest_is_refused(text: str) -> None:
    """Empty, a key twice, no YAML."""
    with pytest.raises((UsageError, SpecError)):
        convert(text, "job.yaml")


def test_a_document_without_a_kind_is_named() -> None:
    """Nobody can tell what it is."""
    (piece,) = convert("a: 1\n", "job.yaml")
    assert isinstance(piece, RefusedManifest)
    assert next(iter(lines([piece], "job.yaml"))).endswith("has no kind")


def test_a_kind_of_another_group_is_refused_with_the_group_that_has_it() -> None:
    """As no job it would be passed on, and nobody would run it."""
    (piece,) = convert("apiVersion: kubeflow.org/v2alpha1\nkind: TrainJob\nmetadata: {name: old}\n", "job.yaml")
    assert isinstance(piece, RefusedManifest)
    assert next(iter(lines([piece], "job.yaml"))).startswith(
        "job.yaml:1:1: TrainJob old: group kubeflow.org has no TrainJob that is known here"
    )
    assert piece.hint == "its group is trainer.kubeflow.org"


def test_a_converted_file_edited_by_hand_goes_through_unchanged() -> None:
    """With its typing errors, which `dljob validate` tells."""
    text = job(TEXT).text.replace("reserve: Quota", "reserv: Quota  # mine")
    (piece,) = pieces = convert(text, "dljob.yaml")
    assert isinstance(piece, OtherManifest)
    assert piece.reason == "a DLJob already: passed on as it is"
    assert text.strip() in converted_text(pieces)
    with pytest.raises(SpecError, match="did you mean reserve"):
        load(converted_text(pieces))


def test_a_file_edited_by_hand_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second conversion needs --force."""
    file, to = tmp_path / "job.yaml", tmp_path / "dljob.yaml"
    file.write_text(TEXT)
    words = ["convert", str(file), "-o", str(to)]
    assert command.run(words) == 0
    to.write_text(to.read_text() + "# edited\n")
    assert command.run(words) == 2
    assert "dljob.yaml exists" in capsys.readouterr().err
    assert to.read_text().endswith("# edited\n")
    assert command.run([*words, "--force"]) == 0
    assert not to.read_text().endswith("# edited\n")


def test_a_diff_shows_both_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of the source with what became of them, then the job; nothing is written."""
    file = tmp_path / "job.yaml"
    file.write_text(TEXT)
    assert command.run(["convert", str(file), "--diff", "-o", str(tmp_path / "to.yaml")]) == 0
    shown = capsys.readouterr().out
    assert "= spec.roles[0].entrypoint.command" in shown
    assert "! unknown field" in shown
    assert "--- DLJob sample" in shown
    assert not (tmp_path / "to.yaml").exists()


def test_the_lines_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A RayJob as the page has it."""
    page = (Path(__file__).parents[3] / "docs" / "howto" / "convert.md").read_text()
    block = page.split("```sh\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("rayjob.yaml").write_text(TEXT)
    said = [shlex.split(line, comments=True)[1:] for line in block.splitlines()]
    assert [command.run(words) for words in said] == [0, 0, 0]


def test_a_rendered_chart_comes_through_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`helm template CHART | dljob convert - -o dljob.yaml`, as the page has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    assert command.run(["convert", "-", "-o", "dljob.yaml"]) == 0
    assert "name: sample" in Path("dljob.yaml").read_text()
    assert "stdin:" in capsys.readouterr().err
    assert command.run(["convert", "--frobnicate", "x.yaml"]) == 2


def test_a_refused_job_is_an_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rest of the file is written."""
    file = tmp_path / "job.yaml"
    file.write_text(f"{TEXT}---\napiVersion: kubeflow.org/v1\nkind: MPIJob\nmetadata: {{name: old}}\n")
    assert command.run(["convert", str(file)]) == 2
    out, err = capsys.readouterr()
    assert "name: sample" in out
    assert "MPIJob old: cannot be converted" in err


MODES = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: modes, labels: {on: "1"}}
spec:
  runPolicy: {suspend: yes, ttlSecondsAfterFinished: 0100}
  pytorchReplicaSpecs:
    Worker:
      replicas: 02
      template:
        spec:
          hostNetwork: off
          containers:
          - name: pytorch
            image: example/train:1
            command: [torchrun, /app/train.py]
            securityContext: {runAsUser: 0X1F}
            livenessProbe: {exec: {command: ["true"]}, periodSeconds: 012}
            env: [{name: CODE, value: "0400"}]
            resources: {limits: {cpu: 1}}
          initContainers: [{name: first, image: a, volumeMounts: [{name: key, mountPath: /k, readOnly: yes}]}]
          volumes:
          - {name: key, secret: {secretName: ssh, defaultMode: 0400}}
          - {name: sh, configMap: {name: scripts, defaultMode: 0o755, items: [{key: a, path: a, mode: 0644}]}}
          - {name: both, projected: {defaultMode: -01, sources: [{secret: {name: s, items: [{key: a, mode: 420}]}}]}}
"""


def test_octal_numbers_and_switches_mean_what_they_mean_to_kubectl() -> None:
    """It reads YAML 1.1: modes and other whole numbers, `yes` and `off`, keys; a quoted text stays."""
    for text in (
        MODES,
        f"kind: List\nitems:\n- {MODES.strip()}\n".replace("\n", "\n  ").replace("\n  items:\n  ", "\nitems:\n"),
    ):
        (piece,) = convert(text, "job.yaml")
        assert isinstance(piece, ConvertedJob)
        assert not piece.problems
        spec = load(piece.text).spec
        pod = spec.node_groups[0].template["spec"]
        key, scripts, both = (volume for volume in pod["volumes"])
        assert key["secret"]["defaultMode"] == 0o400
        assert scripts["configMap"] == {
            "name": "scripts",
            "defaultMode": 0o755,
            "items": [{"key": "a", "path": "a", "mode": 0o644}],
        }
        assert (both["projected"]["defaultMode"], both["projected"]["sources"][0]["secret"]["items"][0]["mode"]) == (
            -1,
            420,
        )
        assert (spec.suspend, spec.ttl_seconds_after_finished, spec.node_groups[0].replicas) == (True, 64, 2)
        assert (pod["hostNetwork"], pod["containers"][0]["securityContext"]) == (False, {"runAsUser": 31})
        assert pod["initContainers"][0]["volumeMounts"][0]["readOnly"] is True
        assert spec.roles[0].liveness_probe is not None
        assert spec.roles[0].liveness_probe.period_seconds == 10
        assert [(one.name, one.value) for one in spec.roles[0].env] == [("CODE", "0400")]
        assert 'true: "1"' in piece.text or '"true": "1"' in piece.text


def test_what_is_passed_on_keeps_its_modes() -> None:
    """As they are written, and from a List as kubectl reads them."""
    own = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\nmode: 0755\n"
    assert "mode: 0755\n" in converted_text(convert(f"{own}---\n{TEXT}", "job.yaml"))
    item = own.strip().replace("\n", "\n  ")
    assert "mode: 493\n" in converted_text(convert(f"apiVersion: v1\nkind: List\nitems:\n- {item}\n", "job.yaml"))


TORCH_JOB = "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: a}\nspec:\n"
JOB_SET = "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nmetadata: {name: a}\nspec:\n"
RAY_JOB = "apiVersion: ray.io/v1\nkind: RayJob\nmetadata: {name: a}\nspec:\n  entrypoint: python /a.py\n"
TRAIN_JOB = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: a}\nspec:\n"
RUNTIME = "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainingRuntime\nmetadata: {name: r}\nspec:\n"
ELASTIC_JOB = "apiVersion: elastic.iml.github.io/v1alpha1\nkind: ElasticJob\nmetadata: {name: a}\nspec:\n"


@pytest.mark.parametrize(
    ("text", "report"),
    [
        (
            f"{TORCH_JOB}  pytorchReplicaSpecs:\n    Worker:\n      template: {{spec: InOrder}}\n",
            "7:18: PyTorchJob a: spec.pytorchReplicaSpecs.Worker.template.spec: must be a mapping, not a text",
        ),
        (
            f"{TORCH_JOB}  pytorchReplicaSpecs:\n    Worker: {{template: InOrder}}\n",
            "6:14: PyTorchJob a: spec.pytorchReplicaSpecs.Worker.template: must be a mapping, not a text",
        ),
        (
            f"{TORCH_JOB}  pytorchReplicaSpecs: [{{template: {{}}}}]\n",
            "5:3: PyTorchJob a: spec.pytorchReplicaSpecs: must be a mapping, not a list",
        ),
        (
            f"{JOB_SET}  replicatedJobs: 7\n",
            "5:3: JobSet a: spec.replicatedJobs: must be a list, not a number",
        ),
        (
            f"{JOB_SET}  replicatedJobs: [{{name: b, template: {{spec: [7]}}}}]\n",
            "5:41: JobSet a: spec.replicatedJobs[0].template.spec: must be a mapping, not a list",
        ),
        (f"{JOB_SET}  replicatedJobs: null\n", "5:3: JobSet a: spec.replicatedJobs: has no jobs"),
        (
            f"{RAY_JOB}  rayClusterSpec: {{headGroupSpec: [1]}}\n",
            "6:20: RayJob a: spec.rayClusterSpec.headGroupSpec: must be a mapping, not a list",
        ),
        (
            f"{TRAIN_JOB}  runtimeRef: {{name: torch-distributed}}\n  trainer: {{env: 7}}\n",
            (
                "6:13: TrainJob a: spec.trainer.env: with its runtime, "
                "spec.replicatedJobs[0].template.spec.template.spec.containers[0].env: must be a list, not a number"
            ),
        ),
        (
            f"{TRAIN_JOB}  runtimeRef: {{name: r}}\n---\n{RUNTIME}  template: {{spec: {{replicatedJobs: InOrder}}}}\n",
            "5:3: TrainJob a: spec.runtimeRef: with its runtime, spec.replicatedJobs: must be a list, not a text",
        ),
        (
            f"{ELASTIC_JOB}  replicaSpecs: {{worker: true}}\n",
            "5:18: ElasticJob a: spec.replicaSpecs.worker: must be a mapping, not a switch",
        ),
    ],
)
def test_a_value_of_another_type_than_a_mapping_or_a_list_is_refused_at_its_place(text: str, report: str) -> None:
    piece = convert(text, "job.yaml")[0]
    assert isinstance(piece, RefusedManifest)
    assert next(iter(lines([piece], "job.yaml"))) == f"job.yaml:{report}"
