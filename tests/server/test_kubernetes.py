"""The manifests for Kubernetes: names, probes, drain and rights are those of the server and its image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from sottovoce.server.api import Auth, RouteTable
from sottovoce.server.app import APIS
from tests.server.servers import LOCKED, SlowModel, serving
from tests.server.test_command import options_of

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "kubernetes" / "sottovoce.yaml"
MANIFESTS: dict[str, Any] = {
    document["kind"]: document for document in yaml.safe_load_all(FILE.read_text(encoding="utf-8"))
}
POD: dict[str, Any] = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]
ENVIRONMENT = {variable["name"]: variable["value"] for variable in CONTAINER["env"]}
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_every_document_has_what_the_cluster_asks_for() -> None:
    versions = {kind: manifest["apiVersion"] for kind, manifest in MANIFESTS.items()}
    assert versions == {"PersistentVolumeClaim": "v1", "Deployment": "apps/v1", "Service": "v1"}
    for manifest in MANIFESTS.values():
        assert manifest["metadata"]["name"] == "sottovoce"
    labels = MANIFESTS["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert MANIFESTS["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert MANIFESTS["Service"]["spec"]["selector"] == labels


def test_names_lead_to_each_other() -> None:
    assert MANIFESTS["Service"]["spec"]["ports"][0]["targetPort"] == CONTAINER["ports"][0]["name"]
    assert f"EXPOSE {CONTAINER['ports'][0]['containerPort']}" in DOCKERFILE
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    places = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert set(volumes) == set(places)
    claim = volumes["models"]["persistentVolumeClaim"]["claimName"]
    assert claim == MANIFESTS["PersistentVolumeClaim"]["metadata"]["name"]
    for variable in ("SOTTOVOCE_SERVE_KEYS", "SOTTOVOCE_SERVE_JOBS_DIR"):
        assert any(ENVIRONMENT[variable].startswith(f"{place}/") for place in places.values())
    assert f"HF_HOME={places['models']}" in DOCKERFILE


def test_the_environment_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    given = options_of([])
    assert {name.removeprefix("SOTTOVOCE_SERVE_").lower() for name in ENVIRONMENT} <= set(given)
    assert given["jobs_dir"] == ENVIRONMENT["SOTTOVOCE_SERVE_JOBS_DIR"]
    assert given["shutdown_timeout"] == float(ENVIRONMENT["SOTTOVOCE_SERVE_SHUTDOWN_TIMEOUT"])


def test_probes_are_answered_without_a_key_by_any_name() -> None:
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    assert [probe["path"] for probe in probes] == ["/ready", "/ready", "/health"]
    with serving(SlowModel(), access=LOCKED) as server:
        for probe in probes:
            assert RouteTable(APIS).find(probe["path"], "GET").auth is Auth.PROBE
            headers = {"host": "10.0.0.1:8000"}
            assert httpx.get(server.url + probe["path"], headers=headers).status_code == 200


def test_there_is_time_for_everybody_to_finish() -> None:
    pause_s = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    probe = CONTAINER["readinessProbe"]
    shutdown_s = float(ENVIRONMENT["SOTTOVOCE_SERVE_SHUTDOWN_TIMEOUT"])
    assert POD["terminationGracePeriodSeconds"] >= pause_s + shutdown_s + 5
    assert probe["periodSeconds"] * probe["failureThreshold"] <= shutdown_s
    assert MANIFESTS["Deployment"]["spec"]["strategy"]["type"] == "Recreate", (
        "a folder of jobs is of one server"
    )
    assert MANIFESTS["Deployment"]["spec"]["replicas"] == 1


def test_it_has_no_privileges() -> None:
    assert POD["securityContext"]["runAsNonRoot"]
    assert f"USER {POD['securityContext']['runAsUser']}" in DOCKERFILE
    assert not POD["automountServiceAccountToken"]
    security = CONTAINER["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"]["drop"] == ["ALL"]


def test_the_chart_gives_these_manifests_and_what_else_its_values_say() -> None:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    chart = ROOT / "deploy" / "helm"
    result = helm.lint(chart, strict=True)
    assert [item for item in result["messages"] if "icon" not in item["error"]] == result["errors"] == []

    def rendered(values: dict[str, Any], name: str = "sottovoce") -> dict[str, Any]:
        with helm.Chart.load(chart) as loaded:
            texts = loaded.render(values, name=name).values()
        return {created["kind"]: created for text in texts for created in yaml.safe_load_all(text) if created}

    assert rendered({}) == MANIFESTS
    other = rendered({"keysSecret": "", "drainSeconds": 15, "image": {"tag": "cuda"}}, name="ours")
    pod = other["Deployment"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "sottovoce:cuda"
    assert "keys" not in {volume["name"] for volume in pod["volumes"]}
    assert "SOTTOVOCE_SERVE_KEYS" not in {item["name"] for item in pod["containers"][0]["env"]}
    assert pod["terminationGracePeriodSeconds"] == 15 + 30 + 10
    assert (
        pod["volumes"][0]["persistentVolumeClaim"]["claimName"]
        == other["Service"]["metadata"]["name"]
        == "ours"
    )
