"""A plan as tables, as JSON, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from gpupipe.errors import ConfigError
from gpupipe.host.checks import at_least
from gpupipe.sources.remote.flight import MOST as MOST_IN_FLIGHT
from gpupipe.tools.figures import figures
from gpupipe.tools.planning.nodes import Epochs, Run

__all__ = ["Network", "Plan", "as_dict", "check_plot", "draw", "lines", "tables"]

GB = 1e9
SHARES = (0.25, 0.5, 0.75, 0.9)
SHOWN = 12  # epochs in the table


@dataclass(frozen=True)
class Network:
    """What a node has, and what storage costs. bandwidth: bits a second; latency: seconds to the first byte; img_per_s:
    what a rank trains or decodes; processes: of a node, that read; 0: not given. Raises ConfigError for negative ones.
    """

    bandwidth: float = 0.0
    latency: float = 0.0
    img_per_s: float = 0.0
    processes: int = 1
    price_per_gb: float = 0.0
    price_per_request: float = 0.0

    def __post_init__(self) -> None:
        at_least(self, "bandwidth latency img_per_s price_per_gb price_per_request", 0)
        at_least(self, "processes", 1)

    def seconds(self, fetched: NDArray[Any], requests: NDArray[Any]) -> NDArray[np.float64]:
        """How long a node takes to fetch so much at the least."""
        by_bytes = fetched * 8 / self.bandwidth if self.bandwidth else 0.0 * fetched
        return np.maximum(by_bytes, requests * self.latency / (self.processes * MOST_IN_FLIGHT))

    def cost(self, fetched: NDArray[Any], requests: NDArray[Any]) -> NDArray[np.float64]:
        """What it is charged with."""
        cost: NDArray[np.float64] = fetched / GB * self.price_per_gb + requests * self.price_per_request
        return cost


@dataclass(frozen=True)
class Plan:
    """What was found. nodes: those that were gone through, of `run.nodes`, and their figures (nodes, epochs).
    sizes, shares: the curve."""

    run: Run
    network: Network
    cache: int
    data: int
    nodes: Sequence[int]
    found: Sequence[Epochs]
    sizes: Sequence[int]
    shares: NDArray[np.float64]

    def of(self, name: str) -> NDArray[np.int64]:
        """A figure, (nodes, epochs)."""
        return np.array([getattr(one, name) for one in self.found])

    @property
    def scale(self) -> float:
        """From the nodes that were gone through to all."""
        return self.run.nodes / len(self.nodes)

    @property
    def hit_rates(self) -> NDArray[np.float64]:
        """By epoch, of samples."""
        rates: NDArray[np.float64] = self.of("hits").sum(0) / np.maximum(1, self.of("samples").sum(0))
        return rates

    @property
    def rates(self) -> NDArray[np.float64]:
        """Images a second that the slowest node's storage and cache can give, by epoch; infinite where nothing has to
        be fetched, or no bandwidth is given."""
        seconds = self.network.seconds(self.of("fetched"), self.of("requests"))
        with np.errstate(divide="ignore"):
            least: NDArray[np.float64] = (self.of("samples") / seconds).min(0)
        return least

    @property
    def wanted_rate(self) -> float:
        """Images a second that a node trains or decodes."""
        return self.network.img_per_s * self.run.per_node

    @property
    def verdict(self) -> str:
        """Whether storage or decoding holds up training, in how many epochs."""
        if not self.wanted_rate or not (self.network.bandwidth or self.network.latency):
            return "pass --bandwidth, --latency and --img-per-s to be told what holds up training"
        slow = self.rates < self.wanted_rate
        if not slow.any():
            least = f", which {self.rates.min():,.0f} img/s could be read for" if np.isfinite(self.rates).any() else ""
            return f"decoding or training holds it up, at {self.wanted_rate:,.0f} img/s a node, in all epochs{least}"
        return (
            f"storage holds up training in {slow.sum()} of {len(slow)} epochs: a node gets {self.rates.min():,.0f} to "
            f"{self.rates[slow].max():,.0f} img/s of the {self.wanted_rate:,.0f} that it could use"
        )


def as_dict(plan: Plan) -> dict[str, Any]:
    """Plain values: figures by node and epoch, exactly as they were counted."""
    run = plan.run
    return {
        "data": {"samples": len(run.order), "bytes": plan.data},
        "settings": {
            "nodes": run.nodes,
            "ranks_per_node": run.per_node,
            "batch_size": run.batches.batch_size,
            "epochs": run.epochs,
            "seed": run.seed,
            "order": run.order.fingerprint,
            "cache_bytes": plan.cache,
            "held_bytes": run.capacity,
            **vars(plan.network),
        },
        "nodes": [
            {"node": node, **{name: getattr(one, name).tolist() for name in Epochs._fields}}
            for node, one in zip(plan.nodes, plan.found, strict=True)
        ],
        "hit_rates": plan.hit_rates.tolist(),
        "img_per_s": [rate if np.isfinite(rate) else None for rate in plan.rates.tolist()],
        "cost": float(_costs(plan).sum()),
        "verdict": plan.verdict,
        "curve": [
            {"cache_bytes": size, "hit_bytes": share}
            for size, share in zip(plan.sizes, plan.shares.tolist(), strict=True)
        ],
    }


def lines(plan: Plan) -> list[str]:
    """What it says in sentences."""
    run = plan.run
    gone = "all nodes were gone through" if len(plan.nodes) == run.nodes else f"node {plan.nodes[0]} stands for all"
    fetched, wanted = (_size(plan.of(name).sum() * plan.scale) for name in ("fetched", "uncached"))
    cost = _costs(plan).sum()
    return [
        f"{len(run.order):,} samples, {_size(plan.data)} in a cache; {run.nodes} nodes of {run.per_node} ranks; {gone}",
        f"cache: {_size(plan.cache)} a node, {plan.cache / plan.data:.1%} of the data, of which "
        f"{_size(plan.cache - run.capacity)} is for what is under way",
        f"{run.epochs} epochs fetch {fetched} in {plan.of('requests').sum() * plan.scale:,.0f} requests"
        + (f" for {cost:,.2f}" if cost else "")
        + f"; without a cache {wanted}",
        plan.verdict,
    ]


def tables(plan: Plan) -> list[Table]:
    """Epoch by epoch, and sizes that other hit rates need."""
    priced, timed = plan.network.price_per_gb or plan.network.price_per_request, np.isfinite(plan.rates).any()
    headings = ["hits", "storage", "a node", "least", "most", "requests"]
    epochs = figures("epoch", *headings, *(["cost"] if priced else []), *(["img/s"] if timed else []))
    fetched, requests, costs = plan.of("fetched"), plan.of("requests"), _costs(plan)
    for epoch in _shown(plan.run.epochs):
        own = fetched[:, epoch]
        cells = [
            f"{plan.hit_rates[epoch]:.1%}",
            *map(_size, (own.sum() * plan.scale, own.mean(), own.min(), own.max())),
        ]
        cells += [f"{requests[:, epoch].sum() * plan.scale:,.0f}"]
        cells += [f"{costs[epoch]:,.2f}"] if priced else []
        cells += [f"{plan.rates[epoch]:,.0f}"] if timed else []
        epochs.add_row(str(epoch), *cells)
    needed = figures("bytes that are hits", "cache a node", "of the data")
    for share in SHARES:
        if plan.shares.max() >= share:
            size = float(np.interp(share, plan.shares, plan.sizes))
            needed.add_row(f"{share:.0%}", _size(size), f"{size / plan.data:.1%}")
    return [epochs, needed] if needed.row_count else [epochs]


def check_plot(path: Path) -> None:
    """Raise ConfigError for a file of a kind, or in a folder, that a plot can't be written to."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ConfigError(f"a plot can't be written as {path.name!r}; let its name end in .png, or {', '.join(kinds)}")
    if not path.parent.is_dir():
        raise ConfigError(f"a plot can't be written to {path}: there is no folder {path.parent}; make it first")


def draw(plan: Plan, path: Path) -> Path:
    """Two plots: bytes from storage by epoch, and hits over sizes of the cache. Returns `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    fetched = plan.of("fetched") / GB
    left.fill_between(range(plan.run.epochs), fetched.min(0), fetched.max(0), alpha=0.3, color="#76b900")
    left.plot(fetched.mean(0), color="#76b900", marker="." if plan.run.epochs < 30 else None)
    left.set(
        xlabel="epoch", ylabel="GB from storage, a node", ylim=(0, None), title="mean, least and most of the nodes"
    )
    right.plot(np.array(plan.sizes) / GB, 100 * plan.shares, color="#76b900", marker=".")
    right.axvline(plan.cache / GB, color="#9aa0a6", linestyle="--")
    right.set(xlabel="cache a node, GB", ylabel="bytes that are hits, %", ylim=(0, 102), title="in the whole run")
    figure.savefig(path, dpi=100)
    return path


def _costs(plan: Plan) -> NDArray[np.float64]:
    """Of all nodes, by epoch."""
    return plan.network.cost(plan.of("fetched").sum(0), plan.of("requests").sum(0)) * plan.scale


def _size(count: float) -> str:
    """ "1.6 TB", of 1e12 bytes."""
    power = min(4, max(0, (len(str(int(count))) - 1) // 3))
    return f"{count / 1000**power:.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"


def _shown(epochs: int) -> list[int]:
    """All epochs, or the first ones and some of the rest."""
    if epochs <= SHOWN:
        return [*range(epochs)]
    first = SHOWN // 2
    return [*range(first), *sorted({*np.linspace(first, epochs - 1, SHOWN - first).astype(int).tolist()})]
