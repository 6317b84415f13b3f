"""`gpupipe plan`: what a run will fetch from storage, before it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path

from gpupipe.tools.cli.options import (
    DATA,
    Subparsers,
    add_command,
    add_fields,
    byte_size,
    data_of,
    fields_of,
    option,
    require,
)

__all__ = ["add_parser", "run"]

DESCRIPTION = """Goes through a run on paper, by the arithmetic that the loaders themselves use, and says exactly how
many bytes each node fetches from storage in each epoch and in how many requests, how much its cache has, what size of
cache other hit rates need, what that costs, and whether storage or decoding will hold up training. DATA lies in a
storage, or on this machine in the place of what will. Samples are shuffled, as by Loader(..., shuffle=True); what
Mosaic, DetectionMixUp and CopyPaste read besides is not counted."""


def add_parser(subparsers: Subparsers) -> None:
    help = "say what a run will fetch from storage"
    parser = add_command(subparsers, "plan", run, help, description=DESCRIPTION)
    parser.add_argument("data", nargs="+", **DATA)
    add_fields(parser)
    option(parser, "--nodes", 1, "N", "machines, each with a cache of its own")
    option(parser, "--ranks-per-node", 1, "N", "training processes on each")
    option(parser, "--batch-size", 128, "N", "samples a step and rank")
    option(parser, "--epochs", 10, "N", "to go through")
    option(parser, "--workers", 8, "N", "of each rank")
    option(parser, "--seed", 0, "N", "of the loader")
    parser.add_argument("--drop-last", action="store_true", help="as the loader's")
    parser.add_argument("--cache", type=byte_size, default=0, metavar="SIZE", help="of a node, as 1.6T (default: none)")
    blocks = "deal shards to nodes anew every K epochs (gpupipe.NodeBlocks)"
    parser.add_argument("--node-blocks", type=int, metavar="K", help=blocks)
    speed = "bits a second from storage to a node, as 10G"
    parser.add_argument("--bandwidth", type=byte_size, default=0, metavar="RATE", help=speed)
    parser.add_argument("--latency", type=_seconds, default=0.0, metavar="T", help="to the first byte, as 30ms")
    option(parser, "--img-per-s", 0.0, "N", "that a rank decodes or trains")
    option(parser, "--price-per-gb", 0.0, "X", "of egress, 1e9 bytes")
    option(parser, "--price-per-request", 0.0, "X", "of one GET")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them, too")


def run(args: argparse.Namespace) -> int:
    """Plan, print."""
    from rich.console import Console

    from gpupipe.sources import open_source
    from gpupipe.tools.planning import report
    from gpupipe.tools.planning.planned import Asked, planned

    if args.plot is not None:
        require("matplotlib")
        report.check_plot(args.plot)  # a wrong name is better known before the work than after
    asked = Asked(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Asked)})
    processes = args.ranks_per_node * max(1, args.workers)
    prices = args.price_per_gb, args.price_per_request
    network = report.Network(args.bandwidth, args.latency, args.img_per_s, processes, *prices)
    plan = planned(open_source(data_of(args), fields=fields_of(args)), asked, network)
    if args.json:
        print(json.dumps(report.as_dict(plan)))
    else:
        print("\n".join(report.lines(plan)))
        for table in report.tables(plan):
            Console().print(table)
    if args.plot is not None:
        report.draw(plan, args.plot)
    return 0


def _seconds(text: str) -> float:
    """Seconds of "30ms" or "0.03s". Raises ArgumentTypeError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write it as 30ms or 0.03s")
    return float(match[1]) / (1000 if match[2] == "ms" else 1)
