"""The manifests fit together: ports, labels, mounts, times, and the configuration that they carry."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.unit.deploy.manifests import DEPLOY, ROOT, configs, container, documents, only, pod
from upwell.edge.cli import DRAIN_S
from upwell.shared.config.addresses import parse_address
from upwell.shared.config.security import check_endpoint, check_exposure

SERVICE, AGENT = DEPLOY / "kubernetes" / "service.yaml", DEPLOY / "kubernetes" / "agent.yaml"
RUNTIME, ISVC = DEPLOY / "kserve" / "runtime.yaml", DEPLOY / "kserve" / "inference-service.yaml"
GUIDE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
every_workload = pytest.mark.parametrize("manifest", [SERVICE, AGENT], ids=["service", "agent"])


def port_of(address: str) -> int:
    return parse_address(address).port


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("k*/*.yaml")), ids=lambda path: path.name)
def test_objects_are_named_once_and_lie_in_one_namespace(path: Path) -> None:
    found = documents(path)
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(names)) == len(names) > 0
    spaces = {one["metadata"].get("namespace", "") for one in found if one["kind"] != "Namespace"}
    assert spaces == {one["metadata"]["name"] for one in found if one["kind"] == "Namespace"} or spaces == {""}


def test_the_service_is_configured_for_its_ports_and_protected() -> None:
    serve = configs(SERVICE)["cloud.yaml"].serve
    check_exposure([*serve.listen, *serve.listen_http], serve.security)
    assert not serve.insecure
    addresses = {"grpc": serve.listen[0], "https": serve.listen_http[0], "metrics": serve.metrics}
    assert ports(container(SERVICE)) == {name: port_of(one) for name, one in addresses.items()}


def test_the_agent_is_configured_for_its_ports() -> None:
    agent = configs(AGENT)["agent.yaml"].agent
    assert ports(container(AGENT)) == {"grpc": port_of(agent.listen[0]), "metrics": port_of(agent.metrics)}
    assert agent.insecure
    assert only(AGENT, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels(AGENT)


def ports(one: dict[str, Any]) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in one["ports"]}


def labels(manifest: Path) -> dict[str, str]:
    found = pod(manifest)["metadata"]["labels"]
    assert isinstance(found, dict)
    return found


@every_workload
def test_selectors_find_the_pods_and_ports_exist(manifest: Path) -> None:
    known = ports(container(manifest))
    for one in documents(manifest):
        spec = one.get("spec", {})
        if one["kind"] == "Service":
            assert spec["selector"] == labels(manifest)
            assert all(known[port["targetPort"]] == port["port"] for port in spec["ports"])
        elif one["kind"] in ("Deployment", "DaemonSet", "PodDisruptionBudget"):
            assert spec["selector"]["matchLabels"] == labels(manifest)
        elif one["kind"] == "NetworkPolicy":
            assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} == set(known)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container(manifest)[probe]["httpGet"]["port"] in known
    assert pod(manifest)["metadata"]["annotations"]["prometheus.io/port"] == str(known["metrics"])


def test_the_autoscaler_scales_the_deployment() -> None:
    target = only(SERVICE, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    deployment = only(SERVICE, "Deployment")
    assert target == {key: deployment[key] for key in ("apiVersion", "kind")} | {"name": deployment["metadata"]["name"]}
    assert "replicas" not in deployment["spec"]  # else each apply would undo what it did
    assert "cpu" in container(SERVICE)["resources"]["requests"]  # what utilization is a share of


@every_workload
def test_every_mount_has_its_volume_and_files_lie_in_mounts(manifest: Path) -> None:
    mounts = container(manifest)["volumeMounts"]
    volumes = {one["name"]: one for one in pod(manifest)["spec"]["volumes"]}
    assert {mount["name"] for mount in mounts} == set(volumes)
    places = {mount["name"]: PurePosixPath(mount["mountPath"]) for mount in mounts}
    assert not [1 for a in places.values() for b in places.values() if a != b and a.is_relative_to(b)]
    arguments = container(manifest)["args"]
    config = PurePosixPath(arguments[arguments.index("--config") + 1])
    assert config.parent == places["config"]
    assert config.name in only(manifest, "ConfigMap")["data"]
    assert volumes["config"]["configMap"]["name"] == only(manifest, "ConfigMap")["metadata"]["name"]
    writable = {name for name, volume in volumes.items() if "emptyDir" in volume or name == "state"}
    assert {mount["name"] for mount in mounts if not mount.get("readOnly")} == writable


def test_paths_in_the_configuration_lie_in_mounts() -> None:
    places = {mount["name"]: PurePosixPath(mount["mountPath"]) for mount in container(SERVICE)["volumeMounts"]}
    serve = configs(SERVICE)["cloud.yaml"].serve
    assert serve.models == Path(places["models"])
    assert {serve.tls.cert.parent, serve.tls.key.parent} == {Path(places["tls"])}
    assert serve.tokens.parent == Path(places["tokens"])
    places = {mount["name"]: PurePosixPath(mount["mountPath"]) for mount in container(AGENT)["volumeMounts"]}
    found = configs(AGENT)["agent.yaml"]
    assert found.agent.state_dir == Path(places["state"])
    assert {found.cloud.tls.ca.parent, found.cloud.token_file.parent} == {Path(places["secret"])}
    assert found.models["digits"].edge.bundle.parent == Path(places["models"])
    assert found.policy == Path("/policy.yaml")  # beside agent.yaml
    assert "policy.yaml" in only(AGENT, "ConfigMap")["data"]


def test_the_agent_calls_all_pods_of_the_service() -> None:
    cloud = configs(AGENT)["agent.yaml"].cloud
    address = check_endpoint(cloud.endpoint, cloud.security)
    headless = only(SERVICE, "Service", "upwell-pods")
    assert headless["spec"]["clusterIP"] == "None"
    meta = headless["metadata"]
    assert address.host == f"{meta['name']}.{meta['namespace']}.svc.cluster.local"
    assert address.name_server == ""  # dns:///, so all of them
    assert address.port == headless["spec"]["ports"][0]["port"]
    assert address.host in GUIDE  # where the certificate's names are said
    assert configs(SERVICE)["cloud.yaml"].serve.connection_age_s  # or it would never find a new pod


def test_they_are_given_time_to_drain() -> None:
    assert pod(SERVICE)["spec"]["terminationGracePeriodSeconds"] >= configs(SERVICE)["cloud.yaml"].serve.drain + 15
    assert pod(AGENT)["spec"]["terminationGracePeriodSeconds"] >= DRAIN_S + 15
    drain_s = configs(RUNTIME)["cloud.yaml"].serve.drain
    assert all(one["spec"]["predictor"]["terminationGracePeriodSeconds"] >= drain_s + 15 for one in documents(ISVC))


@every_workload
def test_pods_have_no_rights(manifest: Path) -> None:
    spec = pod(manifest)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert has_no_rights(container(manifest))
    assert has_no_rights(only(RUNTIME, "ServingRuntime")["spec"]["containers"][0])


def has_no_rights(one: dict[str, Any]) -> bool:
    context = one["securityContext"]
    return (
        context["allowPrivilegeEscalation"] is False
        and context["readOnlyRootFilesystem"] is True
        and context["capabilities"] == {"drop": ["ALL"]}
    )


@every_workload
def test_what_has_to_be_brought_along_is_in_the_guide(manifest: Path) -> None:
    volumes = pod(manifest)["spec"]["volumes"]
    named = [one["secret"]["secretName"] for one in volumes if "secret" in one]
    named += [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]
    named += [one["hostPath"]["path"] for one in volumes if "hostPath" in one]
    assert [name for name in named if name not in GUIDE] == []


def test_the_kserve_runtime_serves_what_inference_services_ask_for() -> None:
    runtime = only(RUNTIME, "ServingRuntime")
    serve = configs(RUNTIME)["cloud.yaml"].serve
    check_exposure([*serve.listen, *serve.listen_http], serve.security)
    assert serve.models == Path("/mnt/models")  # where KServe puts what storageUri names
    assert port_of(serve.listen_http[0]) == 8080  # KServe's default
    assert runtime["spec"]["annotations"]["prometheus.kserve.io/port"] == str(port_of(serve.metrics))
    assert {one["name"] for one in runtime["spec"]["containers"][0]["volumeMounts"]} == {
        one["name"] for one in runtime["spec"]["volumes"]
    }
    for one in documents(ISVC):
        model = one["spec"]["predictor"]["model"]
        assert model["runtime"] == runtime["metadata"]["name"]
        assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
        assert model["modelFormat"]["name"] in {x["name"] for x in runtime["spec"]["supportedModelFormats"]}
        is_grpc = model["protocolVersion"] == "grpc-v2"
        assert [(x["name"], x["containerPort"]) for x in model.get("ports", [])] == (
            [("h2c", port_of(serve.listen[0]))] if is_grpc else []
        )
        assert model.get("readinessProbe", {}).get("grpc", {}).get("port") == (9000 if is_grpc else None)
