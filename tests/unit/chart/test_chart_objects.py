"""What helm makes of the chart, without a cluster."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime, timedelta
from typing import Any

import pytest
import yaml
from chart_kit import CHART, VERSION, Helm, HelmError, load
from cryptography import x509

from dljob.raycluster.pod_security import PodPolicy
from dljob.raycluster.pods import RAY_PORTS
from dljob.spec.loading.load import load as load_job
from dljob_operator.main import options, parser

SWITCHED_OFF = {
    "webhook": {"enabled": False},
    "crds": {"install": False},
    "rbac": {"create": False, "aggregateToDefaultRoles": False},
    "serviceAccount": {"create": False, "name": "theirs"},
    "networkPolicy": {"enabled": False},
    "tokenKey": {"existingSecret": "ours"},
    "podDisruptionBudget": {"enabled": False},
}
SWITCHED_ON = {
    "metrics": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
    },
    "grafana": {"dashboards": {"enabled": True}},
    "networkPolicy": {"egress": {"enabled": True}},
}


def container(objects: dict[tuple[str, str], dict[str, Any]]) -> dict[str, Any]:
    return objects["Deployment", "dljob"]["spec"]["template"]["spec"]["containers"][0]


@pytest.mark.parametrize("values", [{}, SWITCHED_OFF, SWITCHED_ON], ids=["default", "off", "on"])
def test_helm_lint_finds_nothing_wrong(helm: Helm, values: dict[str, Any]) -> None:
    assert "0 chart(s) failed" in helm.lint(**values)


def test_all_optional_objects_can_be_switched_off(helm: Helm) -> None:
    assert set(helm.render(**SWITCHED_OFF)) == {
        ("Deployment", "dljob"),
        ("Service", "dljob-metrics"),
        ("Pod", "dljob-test"),
    }


def test_all_optional_objects_can_be_switched_on(helm: Helm) -> None:
    made = set(helm.render(**SWITCHED_ON)) - set(helm.render())
    rules = {path.stem for path in (CHART / "observability/rules").glob("*.yaml")}
    boards = {path.stem for path in (CHART / "observability/dashboards").glob("*.json")}
    assert made == {
        ("ServiceMonitor", "dljob"),
        ("PodMonitor", "dljob-jobs"),
        *(("PrometheusRule", f"dljob-{name}") for name in rules),
        *(("ConfigMap", f"dljob-{name}") for name in boards),
    }


@pytest.mark.parametrize(
    ("values", "base"),
    [({}, "docs/runbooks/"), ({"runbookUrl": "https://git.example/d/#x/"}, "https://git.example/d/#x/")],
)
def test_alerts_name_their_runbook_where_it_is_read(helm: Helm, values: dict[str, str], base: str) -> None:
    made = helm.render(metrics={"prometheusRule": {"enabled": True, **values}})["PrometheusRule", "dljob-dljob"]
    alerts = [rule for group in made["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    assert alerts
    assert all(rule["annotations"]["runbook_url"] == f"{base}{rule['alert']}.md" for rule in alerts)


def test_each_release_is_told_of_its_own_operator(helm: Helm) -> None:
    made = helm.render(metrics={"prometheusRule": {"enabled": True}})
    (rule,) = [
        rule
        for group in made["PrometheusRule", "dljob-dljob"]["spec"]["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "DLJobOperatorDown"
    ]
    service = made["Service", "dljob-metrics"]["metadata"]
    labels = f'namespace="{service["namespace"]}",job="{service["name"]}"'
    assert rule["expr"] == f"absent(dljob_operator_leader{{{labels}}} == 1)"


def test_the_chart_installs_two_replicas_with_leader_election(helm: Helm) -> None:
    objects = helm.render()
    spec = objects["Deployment", "dljob"]["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert objects["PodDisruptionBudget", "dljob"]["spec"]["maxUnavailable"] == 1
    spread = spec["template"]["spec"]["topologySpreadConstraints"]
    assert [one["topologyKey"] for one in spread] == ["kubernetes.io/hostname"]
    given = options(parser().parse_args([a for a in container(objects)["args"] if "token-key" not in a]))
    assert given.elect is not None
    assert (given.elect.name, given.elect.namespace) == ("dljob", "here")
    assert (given.elect.pace.duration, given.elect.pace.retry) == (8, 2.6)
    slow = helm.render(fullnameOverride="ours", leaderElection={"leaseDuration": "15s", "retryPeriod": "2.5s"})
    args = slow["Deployment", "ours"]["spec"]["template"]["spec"]["containers"][0]["args"]
    elect = options(parser().parse_args([a for a in args if "token-key" not in a])).elect
    assert elect is not None
    assert (elect.name, elect.pace.duration, elect.pace.retry) == ("ours", 15, 2.5)


def test_probes_ask_whether_a_new_start_helps_and_whether_it_could_act(helm: Helm) -> None:
    operator = container(helm.render())
    paths = {kind: operator[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}


def test_the_crd_is_unchanged_and_kept(helm: Helm) -> None:
    made = helm.render()["CustomResourceDefinition", "dljobs.dljob.io"]
    assert made["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert made["spec"] == load("files/dljob.io_dljobs.yaml")["spec"]
    gone = helm.render(crds={"keep": False})["CustomResourceDefinition", "dljobs.dljob.io"]
    assert "annotations" not in gone["metadata"]


def test_images_come_from_the_values_with_tag_and_digest(helm: Helm) -> None:
    objects = helm.render()
    assert container(objects)["image"] == f"dljob/operator:{VERSION}"
    assert {f"--image=dljob/runtime:{VERSION}", f"--init-image=dljob/operator:{VERSION}"} <= set(
        container(objects)["args"]
    )
    assert container(helm.render(image={"tag": "a"}))["image"] == "dljob/operator:a"
    digest = "sha256:" + "0" * 64
    jobs = {"image": "ray:{rayVersion}", "init": {"enabled": False}}
    objects = helm.render(image={"registry": "r.example/x/", "digest": digest}, jobs=jobs)
    assert container(objects)["image"] == f"r.example/x/dljob/operator@{digest}"
    assert {"--image=ray:{rayVersion}", "--init-image="} <= set(container(objects)["args"])


def test_the_operator_knows_its_flags(helm: Helm) -> None:
    objects = helm.render(rbac={"scope": "Namespaced"}, watchNamespaces=["a", "b"], log={"format": "plain"}, workers=3)
    given = parser().parse_args(container(objects)["args"])
    assert (given.namespace, given.workers, given.log_format) == (["a", "b"], 3, "plain")
    assert (given.image, given.init_image) == (f"dljob/runtime:{VERSION}", f"dljob/operator:{VERSION}")
    ports = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    assert ports == {"metrics": given.metrics_port, "health": given.health_port, "webhook": given.webhook_port}
    mounts = {mount["mountPath"] for mount in container(objects)["volumeMounts"]}
    assert {str(given.token_key_file.parent), str(given.webhook_certificate), "/tmp"} == mounts


def test_the_values_of_jobs_become_the_operators_pod_policy(helm: Helm) -> None:
    def policy(**jobs: Any) -> PodPolicy:
        args = container(helm.render(jobs=jobs))["args"]
        return options(parser().parse_args([arg for arg in args if "token-key" not in arg])).settings.pods

    args = container(helm.render(jobs={"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}))["args"]
    assert parser().parse_args(args).image_pull_secret == ["a", "b"]
    assert policy() == PodPolicy()
    assert policy(podSecurity="restricted", capabilities=[]) == PodPolicy("restricted", ())
    lists = {"capabilities": ["IPC_LOCK", "SYS_PTRACE"], "exemptNamespaces": ["system"], "serviceAccounts": ["train"]}
    assert policy(**lists) == PodPolicy("baseline", ("IPC_LOCK", "SYS_PTRACE"), ("system",), ("train",))


def test_the_namespaced_scope_makes_no_clusterrole_for_the_operator(helm: Helm) -> None:
    objects = helm.render(rbac={"scope": "Namespaced"}, watchNamespaces=["b", "a"], metrics=SWITCHED_ON["metrics"])
    assert {key for key in objects if "Role" in key[0]} == {
        ("Role", "a/dljob"),
        ("Role", "b/dljob"),
        ("RoleBinding", "a/dljob"),
        ("RoleBinding", "b/dljob"),
        ("Role", "dljob-leader"),
        ("RoleBinding", "dljob-leader"),
        ("ClusterRole", "dljob-here-view"),
        ("ClusterRole", "dljob-here-edit"),
    }
    subject = {"kind": "ServiceAccount", "name": "dljob", "namespace": "here"}
    assert objects["RoleBinding", "a/dljob"]["subjects"] == [subject]
    rights = [rule for rule in load("files/rights.yaml") if rule.get("only") == "Cluster"]
    everywhere = {resource for rule in rights for resource in rule["resources"]}
    assert everywhere == {"nodes", "namespaces", "clusterrolebindings"}
    assert not [rule for rule in objects["Role", "a/dljob"]["rules"] if everywhere & set(rule["resources"])]
    assert {"--namespace=a", "--namespace=b"} <= set(container(objects)["args"])
    assert objects["PodMonitor", "dljob-jobs"]["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_a_release_without_cluster_rights_makes_only_objects_of_namespaces(helm: Helm) -> None:
    page = (CHART / "README.md").read_text(encoding="utf-8")
    without = ("crds.install", "rbac.aggregateToDefaultRoles", "webhook.enabled")
    paragraph = page.partition("**For one team and its namespaces**")[2].partition("\n - **")[0]
    assert all(f"`{name}: false`" in paragraph for name in without)
    values: dict[str, Any] = {"rbac": {"scope": "Namespaced"}}
    for name in without:
        group, key = name.split(".")
        values[group] = {**values.get(group, {}), key: False}
    assert all("namespace" in item["metadata"] for item in helm.render(**values).values())


def test_the_namespaced_scope_without_names_serves_its_own(helm: Helm) -> None:
    objects = helm.render(rbac={"scope": "Namespaced"})
    assert ("Role", "dljob") in objects
    assert "--namespace=here" in container(objects)["args"]


def test_releases_of_one_name_in_two_namespaces_share_nothing_but_the_crd(helm: Helm) -> None:
    """Helm refuses what another release owns."""
    values = {"rbac": {"scope": "Namespaced"}}
    here, there = (helm.render(release_namespace=space, **values) for space in ("here", "there"))
    of_all = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "ValidatingWebhookConfiguration"}
    assert {key for key in here if key in there and key[0] in of_all} == {
        ("CustomResourceDefinition", "dljobs.dljob.io")
    }
    assert ("ClusterRole", "dljob-there-edit") in there


def test_the_token_key_is_new_where_no_cluster_is_asked(helm: Helm) -> None:
    first, second = (helm.render()["Secret", "dljob-token-key"] for _ in range(2))
    assert len(first["data"]["key"]) > 43
    assert first["data"] != second["data"]
    assert first["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    objects = helm.render(tokenKey={"existingSecret": "ours", "key": "k"})
    assert "--token-key-file=/etc/dljob/token-key/k" in container(objects)["args"]
    volumes = objects["Deployment", "dljob"]["spec"]["template"]["spec"]["volumes"]
    assert {volume["secret"]["secretName"] for volume in volumes if "secret" in volume} == {"ours", "dljob-webhook"}


WEBHOOK = ("ValidatingWebhookConfiguration", "dljob-webhook")


def test_the_webhook_judges_specs_alone_and_stops_nobody_when_it_is_away(helm: Helm) -> None:
    (hook,) = helm.render()[WEBHOOK]["webhooks"]
    assert (hook["failurePolicy"], hook["sideEffects"], hook["timeoutSeconds"]) == ("Ignore", "None", 5)
    (rule,) = hook["rules"]
    assert (rule["operations"], rule["resources"]) == (["CREATE", "UPDATE"], ["dljobs"])
    assert "generation" in hook["matchConditions"][0]["expression"]
    assert hook["namespaceSelector"] == load("values.yaml")["namespaceSelector"]
    served = helm.render(rbac={"scope": "Namespaced"}, watchNamespaces=["b", "a"])
    (hook,) = served["ValidatingWebhookConfiguration", "dljob-webhook-here"]["webhooks"]
    (names,) = hook["namespaceSelector"]["matchExpressions"]
    assert names == {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}


def test_the_certificate_is_for_the_service_and_signed_by_the_bundle(helm: Helm) -> None:
    objects = helm.render(webhook={"certificateDays": 90})
    made = {key: base64.b64decode(text) for key, text in objects["Secret", "dljob-webhook"]["data"].items()}
    certificate, ca = (x509.load_pem_x509_certificate(made[key]) for key in ("tls.crt", "ca.crt"))
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    client = objects[WEBHOOK]["webhooks"][0]["clientConfig"]
    host = f"{client['service']['name']}.{client['service']['namespace']}.svc"
    assert host in names.get_values_for_type(x509.DNSName)
    assert base64.b64decode(client["caBundle"]) == made["ca.crt"]
    deployment = objects["Deployment", "dljob"]
    told = datetime.fromisoformat(deployment["metadata"]["annotations"]["dljob.io/webhook-certificate-expires"])
    assert abs(told - certificate.not_valid_after_utc) < timedelta(minutes=1)
    marks = deployment["spec"]["template"]["metadata"]["annotations"]
    assert marks == {"dljob.io/webhook-certificate-checksum": hashlib.sha256(made["tls.crt"]).hexdigest()}


def test_an_existing_certificate_secret_is_used_instead_of_our_own(helm: Helm) -> None:
    webhook = {"existingSecret": "ours", "caBundle": "Q0E="}
    objects = helm.render(webhook=webhook, podAnnotations={"a": "b"})
    assert ("Secret", "dljob-webhook") not in objects
    assert objects[WEBHOOK]["webhooks"][0]["clientConfig"]["caBundle"] == "Q0E="
    deployment = objects["Deployment", "dljob"]
    assert deployment["metadata"]["annotations"] == {"dljob.io/webhook-secret": "ours"}
    assert deployment["spec"]["template"]["metadata"]["annotations"] == {"a": "b"}
    injected = helm.render(webhook={"existingSecret": "ours", "annotations": {"cert-manager.io/inject-ca-from": "a/b"}})
    assert injected[WEBHOOK]["metadata"]["annotations"] == {"cert-manager.io/inject-ca-from": "a/b"}
    assert "caBundle" not in injected[WEBHOOK]["webhooks"][0]["clientConfig"]


def test_the_networkpolicy_opens_metrics_and_the_webhook_and_no_other_port(helm: Helm) -> None:
    def opened(**values: Any) -> list[tuple[int, bool]]:
        rules = helm.render(**values)["NetworkPolicy", "dljob"]["spec"]["ingress"]
        return [(port["port"], "from" in rule) for rule in rules for port in rule["ports"]]

    assert opened() == [(8080, False), (9443, False)]
    assert opened(networkPolicy={"metricsFrom": [{"podSelector": {}}]}) == [(8080, True), (9443, False)]
    assert opened(webhook={"enabled": False}) == [(8080, False)]


def test_the_pod_of_helm_test_reaches_the_metrics_wherever_they_are_read_from(helm: Helm) -> None:
    placed = {"nodeSelector": {"pool": "system"}, "tolerations": [{"key": "system", "operator": "Exists"}]}
    objects = helm.render(networkPolicy={"metricsFrom": [{"namespaceSelector": {}}]}, **placed)
    pod = objects["Pod", "dljob-test"]
    peers = objects["NetworkPolicy", "dljob"]["spec"]["ingress"][0]["from"]
    assert peers == [{"namespaceSelector": {}}, {"podSelector": {"matchLabels": pod["metadata"]["labels"]}}]
    assert {key: pod["spec"][key] for key in placed} == placed


def test_egress_reaches_ray_and_the_gateway(helm: Helm) -> None:
    policy = helm.render(**SWITCHED_ON)["NetworkPolicy", "dljob"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for rule in policy["egress"] for port in rule["ports"]} == {
        53, 443, 6443, dict(RAY_PORTS)["dashboard"], 8266,
    }  # fmt: skip
    assert "egress" not in helm.render()["NetworkPolicy", "dljob"]["spec"]


SELECTED = {
    "matchLabels": {"team": "ml"},
    "matchExpressions": [
        {"key": "a/b", "operator": "Exists"},
        {"key": "c", "operator": "DoesNotExist"},
        {"key": "d", "operator": "In", "values": ["1", "2"]},
    ],
}


def test_the_selector_of_namespaces_reaches_the_operator_its_webhook_and_the_policy(helm: Helm) -> None:
    objects = helm.render(namespaceSelector=SELECTED)
    (container,) = objects["Deployment", "dljob"]["spec"]["template"]["spec"]["containers"]
    assert "--namespace-selector=team=ml,a/b,!c,d in (1,2)" in container["args"]
    (webhook,) = objects["ValidatingWebhookConfiguration", "dljob-webhook"]["webhooks"]
    assert webhook["namespaceSelector"] == SELECTED
    (validation,) = objects["ValidatingAdmissionPolicy", "dljob-namespaces"]["spec"]["validations"]
    parts = ['"team" in @ && @["team"] == "ml"', '"a/b" in @', '"d" in @ && @["d"] in ["1","2"]']
    team, there, among = (f"({part.replace('@', 'variables.labels')})" for part in parts)
    assert validation["expression"] == f'{team} && {there} && !("c" in variables.labels) && {among}'


@pytest.mark.parametrize(
    "values",
    [
        {"rbac": {"scope": "Namespaced"}, "watchNamespaces": ["a"]},
        {"namespaceSelector": {"matchExpressions": []}},
    ],
)
def test_without_a_selector_no_policy_limits_the_operator(helm: Helm, values: dict[str, Any]) -> None:
    objects = helm.render(**values)
    assert not [key for key in objects if key[0].startswith("ValidatingAdmission")]
    (container,) = objects["Deployment", "dljob"]["spec"]["template"]["spec"]["containers"]
    assert not [flag for flag in container["args"] if flag.startswith("--namespace-selector")]


def test_the_policy_is_about_all_that_the_operator_may_write(helm: Helm) -> None:
    policy = helm.render()["ValidatingAdmissionPolicy", "dljob-namespaces"]["spec"]
    verbs = {"CREATE": {"create"}, "UPDATE": {"patch", "update"}, "DELETE": {"delete"}}
    covered = {
        (group, resource, verb)
        for rule in policy["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for operation in rule["operations"]
        for verb in verbs[operation]
    }
    written = {
        (group, resource, verb)
        for rule in helm.render()["ClusterRole", "dljob"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in set(rule["verbs"]) - {"get", "list", "watch"}
    }
    assert written <= covered


def test_volumes_and_environment_of_others_come_beside_the_operators_own(helm: Helm) -> None:
    volume, mount = {"name": "ca", "configMap": {"name": "ca"}}, {"name": "ca", "mountPath": "/etc/ssl/certs"}
    source = {"secretRef": {"name": "proxy"}}
    plain = helm.render()["Deployment", "dljob"]["spec"]["template"]["spec"]
    given = helm.render(extraVolumes=[volume], extraVolumeMounts=[mount], envFrom=[source])
    pod = given["Deployment", "dljob"]["spec"]["template"]["spec"]
    assert pod["volumes"] == [*plain["volumes"], volume]
    assert pod["containers"][0]["volumeMounts"] == [*plain["containers"][0]["volumeMounts"], mount]
    assert (pod["containers"][0]["envFrom"], "envFrom" in plain["containers"][0]) == ([source], False)


@pytest.mark.parametrize("most", [0, 1, "50%"])
def test_a_disruption_budget_is_a_number_or_a_share(helm: Helm, most: int | str) -> None:
    budget = helm.render(podDisruptionBudget={"maxUnavailable": most})["PodDisruptionBudget", "dljob"]
    assert budget["spec"]["maxUnavailable"] == most


def test_scheduling_values_reach_the_operators_pods(helm: Helm) -> None:
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    placed = {
        "priorityClassName": "high",
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": affinity,
    }
    spec = helm.render(**placed, topologySpreadConstraints=[spread])["Deployment", "dljob"]["spec"]
    pod = spec["template"]["spec"]
    assert {key: pod[key] for key in placed} == placed
    assert pod["topologySpreadConstraints"] == [spread | {"labelSelector": spec["selector"]}]


def test_common_labels_are_on_every_object(helm: Helm) -> None:
    objects = helm.render(commonLabels={"team": "ml"}, **SWITCHED_ON)
    without = {key for key, item in objects.items() if item["metadata"].get("labels", {}).get("team") != "ml"}
    assert without == {("Pod", "dljob-test")}
    selector = objects["Service", "dljob-metrics"]["spec"]["selector"]
    assert selector.items() <= objects["Deployment", "dljob"]["spec"]["template"]["metadata"]["labels"].items()
    assert not selector.items() <= objects["Pod", "dljob-test"]["metadata"]["labels"].items()


def test_a_label_of_the_pods_stands_over_one_of_all_objects(helm: Helm) -> None:
    objects = helm.render(commonLabels={"team": "ml", "tier": "a"}, podLabels={"team": "ops"})
    spec = objects["Deployment", "dljob"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert (labels["team"], labels["tier"]) == ("ops", "a")
    assert spec["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"leaderElection": {"retryPeriod": "6s"}}, "leaderElection.retryPeriod=6s is more than a third of"),
        ({"leaderElection": {"leaseDuration": "7s", "retryPeriod": "2.5s"}}, "retryPeriod=2.5s"),
        ({"metrics": {"port": 8081}}, "health.port and metrics.port are both 8081"),
        ({"webhook": {"port": 8080}}, "metrics.port and webhook.port are both 8080"),
        ({"webhook": {"existingSecret": "ours"}}, "webhook.existingSecret needs webhook.caBundle"),
        ({"webhook": {"certificateDays": 0}}, "certificateDays"),
        ({"jobs": {"podSecurity": "Baseline"}}, "podSecurity"),
        ({"jobs": {"capabilities": ["sys_admin"]}}, "capabilities"),
        ({"jobs": {"serviceAccounts": [""]}}, "serviceAccounts"),
        (
            {"image": {"registry": "https://registry.example.org/team"}},
            "a registry is a host and a path, without https://",
        ),
        ({"image": {"registry": "registry.example.org/team:v1"}}, "or a tag behind it"),
        ({"jobs": {"image": "docker://ray:1"}}, "an image is named without https:// or docker://"),
        ({"jobs": {"init": {"image": "https://r.example/dljob"}}}, "an image is named without https:// or docker://"),
        (
            {"extraVolumeMounts": [{"name": "ca", "mountPath": "/x"}], "extraVolumes": [{"name": "c", "emptyDir": {}}]},
            "extraVolumeMounts mounts ca, which is none of extraVolumes: c",
        ),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, values: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmError) as caught:
        helm.render(**values)
    assert words in str(caught.value)


def test_the_job_of_the_notes_is_a_job() -> None:
    notes = (CHART / "templates/NOTES.txt").read_text(encoding="utf-8")
    text = notes.split("<<YAML\n", 1)[1].split("  YAML\n", 1)[0]
    assert yaml.safe_load(text)["metadata"]["name"] == "hello"
    load_job(text)
