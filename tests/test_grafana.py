"""The dashboard and its services: what they ask for is what is exported, and files and ports fit each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpupipe.integrations.metrics import METRICS

DOCKER = Path(__file__).resolve().parents[1] / "docker"
GRAFANA = DOCKER / "grafana"
BOARD: dict[str, Any] = json.loads((GRAFANA / "dashboards" / "gpupipe.json").read_text())
OF_THE_CLIENT = "process_resident_memory_bytes"  # prometheus_client's own registry has it on Linux
VARIABLES = {variable["name"]: variable for variable in BOARD["templating"]["list"]}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    queries = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*queries, *(one["definition"] for one in VARIABLES.values() if one["type"] == "query")]


def names(expression: str) -> set[str]:
    """The metrics that a PromQL expression reads: what is left without matchers, ranges, groupings and functions."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]|\b(by|without|on|ignoring) \([^)]*\)', "", expression)
    bare = re.sub(r", \w+\)$", ")", bare) if expression.startswith("label_values(") else bare
    return set(re.findall(r"\b[a-z_][a-z0-9_]*\b(?! ?\()", bare)) - {"sum", "max"}


def labels(expression: str) -> set[str]:
    """The labels that it matches or groups by."""
    found = set(re.findall(r"(\w+)\s*(?:=~|=|!=)", expression))
    for grouping in re.findall(r"\bby \(([^)]*)\)", expression):
        found |= set(grouping.split(", "))
    return found


def exported(name: str) -> Any:
    return next((metric for metric in METRICS if metric.prometheus_name == name), None)


def test_the_parser_finds_names() -> None:
    text = 'sum by (job, rank) (rate(a_total{b=~"$c"}[$__rate_interval])) / (d_total + max (e_bytes{f="g"}))'
    assert names(text) == {"a_total", "d_total", "e_bytes"}
    assert labels(text) == {"b", "f", "job", "rank"}
    assert names('label_values(h_total{job=~"$job"}, rank)') == {"h_total"}


@pytest.mark.parametrize("expression", expressions())
def test_queries_ask_for_what_is_exported(expression: str) -> None:
    assert names(expression)
    for name in names(expression) - {OF_THE_CLIENT}:
        metric = exported(name)
        assert metric is not None, name
        assert labels(expression) <= {"job", "instance", *metric.labels}, name
        counted = re.search(rf"rate\({name}\{{", expression)
        assert (metric.kind == "counter") or not counted, f"{name} is a gauge"
    assert set(re.findall(r"\$(\w+)", expression)) <= {*VARIABLES, "__rate_interval"}


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set.union(*map(names, expressions()))
    assert {metric.prometheus_name for metric in METRICS} - shown == set()


def test_legends_name_labels_that_the_series_have() -> None:
    for panel in panels():
        for target in panel["targets"]:
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert used <= labels(target["expr"]) | {"instance"}, panel["title"]


def test_panels_lie_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids)) == len(BOARD["panels"])
    assert all(panel["description"] and panel["fieldConfig"]["defaults"]["unit"] for panel in panels())


def test_the_client_tells_the_memory_of_its_process() -> None:
    client = pytest.importorskip("prometheus_client", reason="needs the extra `metrics`")
    assert f"\n{OF_THE_CLIENT} " in client.generate_latest(client.REGISTRY).decode()


# Services


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    return found


def mounted(service: str) -> dict[str, Path]:
    """Path in the container -> what lies there of the repository."""
    parts = [volume.split(":") for volume in services()[service]["volumes"]]
    return {inside: DOCKER / here for here, inside, *_ in parts if here.startswith(".")}


def test_the_profile_starts_both_and_nothing_else_does() -> None:
    profiles = {name: service.get("profiles") for name, service in services().items()}
    assert profiles == {"gpupipe": None, "prometheus": ["metrics"], "grafana": ["metrics"]}
    for name in ("prometheus", "grafana"):
        assert re.search(r":v?\d+\.\d+\.\d+$", services()[name]["image"]), "a version, not latest"
        assert all(port.startswith("127.0.0.1:") for port in services()[name]["ports"])


def test_prometheus_reads_the_targets_beside_its_settings() -> None:
    inside = mounted("prometheus")
    (flag,) = [word for word in services()["prometheus"]["command"] if word.startswith("--config.file=")]
    file = Path(flag.partition("=")[2])
    settings = yaml.safe_load((inside[str(file.parent)] / file.name).read_text())
    (job,) = settings["scrape_configs"]
    (listed,) = job["file_sd_configs"]
    (targets,) = [yaml.safe_load((inside[str(file.parent)] / name).read_text()) for name in listed["files"]]
    (group,) = targets
    (target,) = group["targets"]
    host, _, port = target.partition(":")
    assert f"{host}:host-gateway" in services()["prometheus"]["extra_hosts"]
    page = (DOCKER.parent / "docs" / "metrics.md").read_text()
    assert f'"METRICS_PORT", {port})' in page  # where the page's training answers
    source = yaml.safe_load((inside_of("grafana", "provisioning") / "datasources" / "prometheus.yml").read_text())
    (source,) = source["datasources"]
    assert source["url"].removeprefix("http://").partition(":")[0] in services()
    assert source["jsonData"]["timeInterval"] == settings["global"]["scrape_interval"]


def inside_of(service: str, name: str) -> Path:
    (found,) = [path for path in mounted(service).values() if path.name == name]
    return found


def test_grafana_finds_the_dashboard() -> None:
    provider = yaml.safe_load((inside_of("grafana", "provisioning") / "dashboards" / "gpupipe.yml").read_text())
    (provider,) = provider["providers"]
    folder = mounted("grafana")[provider["options"]["path"]]
    home = Path(services()["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert folder / home.name == GRAFANA / "dashboards" / "gpupipe.json"
    assert (folder / home.name).is_file()
