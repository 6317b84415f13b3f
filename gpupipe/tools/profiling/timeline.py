"""The picture of a profile: a lane for everyone who works on batches, and one for the model."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import TYPE_CHECKING

from gpupipe.tools.profiling.rounds import Profile, Stretch
from gpupipe.tools.profiling.verdict import Bottleneck

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "lanes"]

STEPS_SHOWN = 12
COLORS = {"read": "#e69f00", "decode": "#0072b2", "finish": "#009e73", "wait": "#d9d9d9", "step": "#cc79a7"}

Block = tuple[str, float, float]
"""A stage, its start in seconds, and how long it took."""


def lanes(part: Stretch) -> dict[str, list[Block]]:
    """Who worked on what, from the bottom lane to the top one; times count from the start of the part.

    The model's lane has its waits and, between them, its steps.
    """
    found: dict[str, list[Block]] = {}
    for span in part.spans:
        own = span.who == "consumer" and span.stage in ("wait", "finish")
        lane = span.who if own or span.who != "consumer" else "consumer's engine"
        found.setdefault(lane, []).append((span.stage, span.start - part.start, span.end - span.start))
    made = {name: found[name] for name in sorted(found, key=_place)}
    return {"model": _model(part)} | made


def _place(lane: str) -> tuple[bool, int]:
    """The consumer first, then its engine or the workers by number."""
    number = re.search(r"\d+", lane)
    return lane != "consumer", int(number[0]) if number else 0


def _model(part: Stretch) -> list[Block]:
    starts = [*(start for start, _ in part.waits[1:]), part.end]
    waits = [("wait", start - part.start, end - start) for start, end in part.waits]
    steps = [("step", end - part.start, later - end) for (_, end), later in zip(part.waits, starts, strict=True)]
    return list(itertools.chain.from_iterable(zip(waits, steps, strict=True)))


def draw(profile: Profile, verdict: Bottleneck, path: Path) -> None:
    """The last steps of the last round with the real loader, as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    part = profile.real[-1]
    shown = lanes(part)
    figure = Figure(figsize=(12, 1.8 + 0.42 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, blocks in enumerate(shown.values()):
        for stage, start, seconds in blocks:
            axes.broken_barh(
                [(start, seconds)], (row - 0.4, 0.8), color=COLORS[stage], edgecolor="white", linewidth=0.5
            )
    axes.set_yticks(range(len(shown)), list(shown))
    axes.set_xlim(part.waits[-min(STEPS_SHOWN, len(part.waits))][0] - part.start, part.seconds)
    axes.set_xlabel(f"seconds since the round began; its last {min(STEPS_SHOWN, len(part.waits))} steps")
    axes.set_title(f"bottleneck: {verdict.stage}: {verdict.reason}", fontsize=9)
    _legend(axes)
    figure.savefig(path, dpi=120)


def _legend(axes: Axes) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=color, label=stage) for stage, color in COLORS.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(handles), frameon=False)
