"""Loader.stats() in Prometheus and OpenTelemetry: each key or why not, what is scraped beside an epoch, and ends."""

from __future__ import annotations

import gc
import itertools
import re
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from images import encode, picture
from servers.faults import FaultServer
from tars import write_samples

import gpupipe
from gpupipe.integrations.metrics import LEFT_OUT, METRICS
from gpupipe.integrations.opentelemetry import StatsInstruments
from gpupipe.integrations.prometheus import StatsCollector

prometheus_client = pytest.importorskip("prometheus_client", reason="needs the extra `metrics`")
openmetrics = pytest.importorskip("prometheus_client.openmetrics.exposition")
parser = pytest.importorskip("prometheus_client.parser")
sdk = pytest.importorskip("opentelemetry.sdk.metrics", reason="needs the extra `test`")
export = pytest.importorskip("opentelemetry.sdk.metrics.export")

ENGINES = [("torch", 0), ("torch", 2), ("dali", 1)]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"

Numbers = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def loader(data: Any, engine: str = "torch", workers: int = 0, **options: Any) -> gpupipe.Loader:
    recipe = gpupipe.imagenet_eval(32)
    return gpupipe.Loader(data, recipe, 4, engine=engine, num_workers=workers, device="cpu", **options)


def expected(name: str, rank: int, stats: dict[str, float]) -> Numbers:
    """What `stats()` means for both, by the metric's stat and the labels, by hand."""
    found: Numbers = {}
    for key, value in stats.items():
        stat, slash, source = key.partition("/")
        labels = {"loader": name, "rank": str(rank)} | ({"source": source} if slash else {})
        if key not in LEFT_OUT:
            found[stat + slash, tuple(sorted(labels.items()))] = value * (1e6 if key.endswith("_mb") else 1)
    return found


def scraped(text: str) -> Numbers:
    stats = {metric.prometheus_name: metric.stat for metric in METRICS}
    return {
        (stats[sample.name], tuple(sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("gpupipe_")
    }


def collected(reader: Any) -> Numbers:
    stats = {metric.name: metric.stat for metric in METRICS}
    data = reader.get_metrics_data()
    return {
        (stats[metric.name], tuple(sorted(point.attributes.items()))): point.value
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


class Endpoint:
    """prometheus_client's own server, on a port that is free."""

    def __init__(self, loaders: dict[str, gpupipe.Loader]) -> None:
        registry = prometheus_client.CollectorRegistry(auto_describe=True)
        self.collector = StatsCollector(loaders)
        registry.register(self.collector)
        self.server, self.thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)

    def text(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.server.server_port}/metrics", timeout=30) as answer:
            assert answer.status == 200
            return answer.read().decode()

    def numbers(self) -> Numbers:
        return scraped(self.text())


@pytest.fixture
def serve() -> Iterator[Callable[..., Endpoint]]:
    """serve(train=loader, ...) has them scraped until the test ends."""
    endpoints: list[Endpoint] = []

    def start(**loaders: gpupipe.Loader) -> Endpoint:
        endpoints.append(Endpoint(loaders))
        return endpoints[-1]

    yield start
    for endpoint in endpoints:
        endpoint.server.shutdown()
        endpoint.server.server_close()
        endpoint.thread.join()


# The table


def test_every_key_is_a_metric_or_left_out(
    folder: Path, fault_server: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of both engines, a mixture, a storage with a cache, and a GPU: none is missing, and no metric has no key."""
    (tmp_path / "data").mkdir()
    write_samples(tmp_path / "data" / "0.tar", 0, 8)
    fault_server.put_folder(tmp_path / "data")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1, 2))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1)
    remote = gpupipe.open_source(f"{fault_server.url}/0.tar", cache=gpupipe.Cache(tmp_path / "cache", "10M"))
    mixture = gpupipe.Mixture({"here": (folder, 1), "there": (remote, 1)})
    keys: set[str] = set()
    for engine, workers in ENGINES[1:]:
        with loader(mixture, engine, workers) as made, monkeypatch.context() as patch:
            next(iter(made))
            patch.setattr(type(made), "device", torch.device("cuda", 0))
            keys |= set(made.stats())
    stats = {key.partition("/")[0] + "/" * ("/" in key) for key in keys}
    exported = [metric.stat for metric in METRICS]
    assert sorted([*exported, *LEFT_OUT]) == sorted(stats)


def test_the_reasons_for_leaving_out_name_metrics_that_are_there() -> None:
    names = {name for reason in LEFT_OUT.values() for name in re.findall(r"gpupipe_\w+", reason)}
    assert names <= {metric.prometheus_name for metric in METRICS}
    assert all("gpupipe_" in reason for reason in LEFT_OUT.values())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.stat)
def test_names_are_as_both_projects_want_them(metric: Any) -> None:
    assert re.fullmatch(r"gpupipe(\.[a-z][a-z_]*)+", metric.name)  # OpenTelemetry's: no unit, no "total" in it
    assert not re.search(r"total|seconds|bytes", metric.name)
    assert re.fullmatch(r"s|By|\{[a-z]+\}", metric.unit)
    unit = {"s": "_seconds", "By": "_bytes"}.get(metric.unit, "")
    assert metric.prometheus_name == metric.name.replace(".", "_") + unit + "_total" * (metric.kind == "counter")
    assert metric.help.endswith(".")
    seconds = metric.stat.endswith("_s")
    assert (metric.unit == "s") == seconds
    assert (metric.unit == "By") == ("bytes" in metric.stat or metric.stat.endswith("_mb"))


def test_counters_are_what_stats_calls_counters() -> None:
    """By its docstring: what stands below "Counters" and before "Rates", but the share."""
    text = gpupipe.Loader.stats.__doc__ or ""
    below = text.partition("Counters,")[2].partition("Rates,")[0]
    named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)*(?:/NAME)?(?=[,:])", below))
    stats = {metric.stat.replace("/", "/NAME"): metric.kind for metric in METRICS}
    for stat, kind in stats.items():
        assert (stat in named) == (kind == "counter"), stat


# Prometheus


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_a_scrape_in_an_epoch_is_what_stats_says(
    engine: str, workers: int, folder: Path, serve: Callable[..., Endpoint]
) -> None:
    with loader(folder, engine, workers, rank=1, world_size=2) as train, loader(folder) as val:
        endpoint = serve(train=train, val=val)
        for step, _ in enumerate(train, start=1):
            numbers = endpoint.numbers()
            wanted = expected("train", 1, train.stats()) | expected("val", 0, val.stats())
            depth = ("queue_depth", (("loader", "train"), ("rank", "1")))  # workers go on meanwhile
            assert numbers.pop(depth, None) is not None or engine == "dali"
            wanted.pop(depth, None)
            assert numbers == pytest.approx(wanted)
            assert numbers["batches", (("loader", "train"), ("rank", "1"))] == step
    assert "queue_depth" not in {stat for stat, _ in endpoint.numbers()}
    assert ("images", (("loader", "val"), ("rank", "0"))) in endpoint.numbers()  # it is closed, no more


def test_types_units_and_help_are_exposed(folder: Path) -> None:
    with loader(folder) as train:
        registry = prometheus_client.CollectorRegistry(auto_describe=True)
        registry.register(StatsCollector({"train": train}))
        families = {family.name: family for family in registry.collect()}
        text = openmetrics.generate_latest(registry).decode()
    assert (families["gpupipe_wait_seconds"].type, families["gpupipe_wait_seconds"].unit) == ("counter", "seconds")
    assert (families["gpupipe_queue_depth"].type, families["gpupipe_queue_depth"].unit) == ("gauge", "")
    assert "# UNIT gpupipe_read_bytes bytes\n" in text
    helps = {metric.help for metric in METRICS}
    assert {family.documentation for family in families.values()} <= helps


def test_the_sources_of_a_mixture_are_told_apart(folder: Path, tmp_path: Path, serve: Callable[..., Endpoint]) -> None:
    name = 'odd "na\\me"\n'
    shards = write_samples(tmp_path / "0.tar", 0, 8)
    data = gpupipe.Mixture({"photos": (folder, 1), name: (shards, 1)})
    with loader(data) as train:
        endpoint = serve(train=train)
        list(train)
        numbers, wanted = endpoint.numbers(), expected("train", 0, train.stats())
    numbers.pop(("queue_depth", (("loader", "train"), ("rank", "0"))))
    wanted.pop(("queue_depth", (("loader", "train"), ("rank", "0"))))
    assert numbers == pytest.approx(wanted)
    assert ("images/", (("loader", "train"), ("rank", "0"), ("source", name))) in numbers


def test_bad_samples_and_a_gpus_memory_are_in_the_metrics_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Endpoint]
) -> None:
    (tmp_path / "a").mkdir()
    for number in range(4):
        (tmp_path / "a" / f"{number}.jpg").write_bytes(encode(picture(40, 50, number)) if number else b"no image")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100_000_000, 140_000_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2_000_000_000)
    with loader(tmp_path, on_error="skip") as train:
        endpoint = serve(train=train)
        list(train)
        list(train)
        monkeypatch.setattr(type(train), "device", torch.device("cuda", 0))
        text = endpoint.text()
    labels = '{loader="train",rank="0"}'
    assert f"\ngpupipe_bad_samples_total{labels} 1.0\n" in text
    assert f"\ngpupipe_replaced_rows_total{labels} 2.0\n" in text
    assert f"\ngpupipe_gpu_memory_used_bytes{labels} 1.399e+11\n" in text
    assert f"\ngpupipe_gpu_memory_torch_bytes{labels} 2e+09\n" in text


def test_a_loader_is_not_kept_alive(folder: Path, serve: Callable[..., Endpoint]) -> None:
    train, val = loader(folder, workers=2), loader(folder)
    endpoint = serve(train=train, val=val)
    list(train)
    assert {labels[0] for _, labels in endpoint.numbers()} == {("loader", "train"), ("loader", "val")}
    del train
    gc.collect()
    assert {labels[0] for _, labels in endpoint.numbers()} == {("loader", "val")}
    del val
    gc.collect()
    assert endpoint.numbers() == {}
    again = loader(folder)
    endpoint.collector.add("train", again)
    assert endpoint.numbers()["batches", (("loader", "train"), ("rank", "0"))] == 0


def test_scrapes_beside_epochs_that_begin_and_end(folder: Path, tmp_path: Path) -> None:
    """No scrape fails, and no counter ever falls, whatever the loader is at."""
    shards = write_samples(tmp_path / "0.tar", 0, 8)
    with loader(gpupipe.Mixture({"a": (folder, 1), "b": (shards, 1)}), workers=2, shuffle=True) as train:
        registry = prometheus_client.CollectorRegistry(auto_describe=True)
        registry.register(StatsCollector({"train": train}))
        rounds: list[Numbers] = []
        errors: list[BaseException] = []
        over = threading.Event()

        def scrape() -> None:
            try:
                while not over.is_set():
                    rounds.append(scraped(prometheus_client.generate_latest(registry).decode()))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=scrape)
        thread.start()
        for epoch in range(4):
            for step, _ in enumerate(train):
                if step == 3 and epoch == 1:
                    break
            train.set_epoch(epoch + 1)
        over.set()
        thread.join()
    assert not errors
    assert len(rounds) > 4
    counters = {metric.stat for metric in METRICS if metric.kind == "counter"}
    for before, after in itertools.pairwise(rounds):
        assert all(after[key] >= value for key, value in before.items() if key[0] in counters)
    assert rounds[-1]["batches", (("loader", "train"), ("rank", "0"))] > 0


def test_two_collectors_of_one_registry_are_refused(folder: Path) -> None:
    registry = prometheus_client.CollectorRegistry(auto_describe=True)
    registry.register(StatsCollector({}))  # by what it describes: no loader has a number yet
    with pytest.raises(ValueError, match="gpupipe_batches"):
        registry.register(StatsCollector({}))


# OpenTelemetry


@pytest.mark.parametrize(("engine", "workers"), ENGINES)
def test_opentelemetry_collects_what_stats_says(engine: str, workers: int, folder: Path) -> None:
    reader = export.InMemoryMetricReader()
    meter = sdk.MeterProvider([reader]).get_meter("gpupipe")
    with loader(folder, engine, workers, rank=1, world_size=2) as train, loader(folder) as val:
        instruments = StatsInstruments({"train": train}, meter)
        instruments.add("val", val)
        for _ in train:
            numbers, wanted = collected(reader), expected("train", 1, train.stats()) | expected("val", 0, val.stats())
            depth = ("queue_depth", (("loader", "train"), ("rank", "1")))
            assert numbers.pop(depth, None) is not None or engine == "dali"
            wanted.pop(depth, None)
            assert numbers == pytest.approx(wanted)
    assert collected(reader)["images", (("loader", "train"), ("rank", "1"))] > 0
    del train, val
    gc.collect()
    assert collected(reader) == {}


def test_instruments_have_kind_unit_and_description(folder: Path) -> None:
    reader = export.InMemoryMetricReader()
    with loader(folder) as train:
        instruments = StatsInstruments({"train": train}, sdk.MeterProvider([reader]).get_meter("gpupipe"))
        list(train)
        (resource,) = reader.get_metrics_data().resource_metrics
    del instruments
    found = {metric.name: metric for metric in resource.scope_metrics[0].metrics}
    for metric in METRICS:
        if metric.name in found:
            made = found[metric.name]
            assert (made.unit, made.description) == (metric.unit, metric.help)
            assert isinstance(made.data, export.Sum if metric.kind == "counter" else export.Gauge)
    assert found["gpupipe.wait"].data.is_monotonic
    assert {"gpupipe.images", "gpupipe.queue.depth"} <= set(found)


# What is refused


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [
        (StatsCollector, "prometheus_client.core", "prometheus_client"),
        (StatsInstruments, "opentelemetry.metrics", "opentelemetry"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    kind: Any, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(gpupipe.ConfigError, match=rf"this needs {package}, .*pip install 'gpupipe\[metrics\]'"):
        kind({})


def test_what_is_no_loader_is_refused(folder: Path) -> None:
    with pytest.raises(gpupipe.ConfigError, match="'train' is a DataLoader, which counts nothing"):
        StatsCollector({"train": torch.utils.data.DataLoader([1])})  # type: ignore[dict-item]
    with loader(folder) as made, pytest.raises(gpupipe.ConfigError, match="the name '' of a loader"):
        StatsCollector({"": made})


# The page


def test_the_page_lists_every_metric_once() -> None:
    text = PAGE.read_text()
    row = r"^\| `(gpupipe_\w+)` \| `([\w.]+)` \| (\w+) \| (\w+) \| `([\w/]+)` \| ([^|]+) \|$"
    units = {"s": "seconds", "By": "bytes"}
    assert re.findall(row, text, re.MULTILINE) == [
        (
            *(one.prometheus_name, one.name, one.kind),
            units.get(one.unit, one.unit.strip("{}").replace("batch", "batche") + "s"),
            one.stat.replace("/", "/NAME"),
            one.help,
        )
        for one in METRICS
    ]
    assert dict(re.findall(r"^\| `(\w+)` \| (a query .*) \|$", text, re.MULTILINE)) == LEFT_OUT
