"""A profile as text, JSON and a picture of its timeline."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpupipe.tools.figures import write_json
from gpupipe.tools.profiling.rounds import PRECISE, Profile, Stretch
from gpupipe.tools.profiling.timeline import draw
from gpupipe.tools.profiling.verdict import Bottleneck

__all__ = ["lines", "write_all"]


def lines(profile: Profile, verdict: Bottleneck) -> list[str]:
    """What was measured, and what it means."""
    settings = profile.settings
    on = f"{profile.engine} engine, {settings.workers} workers, batch {settings.batch_size}, {settings.size} px"
    made = [
        f"training on {profile.device}, {on}; {len(profile.real)} rounds of {settings.steps} steps, median (min - max)",
        f"  real loader     {_rates(profile.real)} img/s",
        f"  perfect loader  {_rates(profile.perfect)} img/s",
        f"  {_gain(profile)}",
        f"  {_precision(profile)}",
        f"  the model waited {_spread([part.waited for part in profile.real], '.1%')} of the time",
        "milliseconds a batch",
    ]
    made += [f"  {name:<8}{seconds * 1000:10.1f}  {who}" for name, seconds, who in _stages(profile)]
    return [*made, f"bottleneck: {verdict.stage}: {verdict.reason}", f"what to do: {verdict.advice}"]


def _gain(profile: Profile) -> str:
    """What a perfect loader is worth: never less than nothing, as what looks like a loss is noise."""
    low, high, confidence = profile.known
    interval = f"{low:.2f} to {high:.2f} times as fast with {confidence:.0%} confidence"
    if low > 1:
        return f"with a perfect loader training would be {profile.speedup:.2f} times as fast ({interval})"
    if high < 1:
        return (
            f"with a perfect loader training was no faster: it was {1 - high:.0%} to {1 - low:.0%} slower, which no "
            "loader is the cause of, so the difference is within the noise of this machine"
        )
    return f"what a perfect loader would gain is within the noise ({interval})"


def _precision(profile: Profile) -> str:
    """Why there were no more rounds."""
    width = f"this is known to within {profile.known.width:.0%}"
    if profile.precise:
        return f"{width}: well enough, so no more rounds were made"
    return f"{width}: the {profile.minutes:g} minutes were over before it was {PRECISE:.0%} (--minutes)"


def _stages(profile: Profile) -> list[tuple[str, float, str]]:
    """Name, seconds a batch, and who spends them."""
    inside = profile.settings.workers == 0
    engine = "of the time waited" if inside else f"of one of {profile.settings.workers} workers"
    rows = [("read", engine), ("decode", engine), ("wait", "consumer"), ("finish", "consumer")]
    if profile.engine == "dali":
        rows[0] = ("read", "consumer, for DALI")
        rows[1] = ("decode", "consumer waiting for DALI")
    stages = [(name, profile.per_batch(name), who) for name, who in rows]  # type: ignore[arg-type]
    real = statistics.median(_step(part) for part in profile.real) / profile.settings.steps
    perfect = statistics.median(_step(part) for part in profile.perfect) / profile.settings.steps
    return [*stages, ("model", real, f"{perfect * 1000:.1f} with the perfect loader")]


def _step(part: Stretch) -> float:
    """Seconds in which the device did not wait."""
    return part.seconds * (1 - part.waited)


def _rates(parts: Sequence[Stretch]) -> str:
    rates = [part.rate for part in parts]
    return _spread(rates, ",.0f" if min(rates) >= 100 else ".1f")


def _spread(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} - {max(values):{form}})"


def write_all(profile: Profile, verdict: Bottleneck, facts: dict[str, Any], output: Path) -> list[Path]:
    """Write profile.json and timeline.png into the folder `output`; returns their paths."""
    output.mkdir(parents=True, exist_ok=True)
    content = {"environment": facts, "verdict": asdict(verdict)} | as_dict(profile)
    draw(profile, verdict, output / "timeline.png")
    return [write_json(output / "profile.json", content), output / "timeline.png"]


def as_dict(profile: Profile) -> dict[str, Any]:
    """Plain values; the spans of all rounds, in seconds from the start of each."""
    return {
        "settings": asdict(profile.settings) | {"minutes": profile.minutes},
        "engine": profile.engine,
        "device": profile.device,
        "speedups": profile.speedups,
        "speedup": {"median": profile.speedup, **profile.known._asdict()},
        "stages_s_per_batch": {name: seconds for name, seconds, _ in _stages(profile)},
        "real": [_part(part) for part in profile.real],
        "perfect": [_part(part) for part in profile.perfect],
    }


def _part(part: Stretch) -> dict[str, Any]:
    def after(seconds: float) -> float:
        return round(seconds - part.start, 6)

    return {
        "img_per_s": part.rate,
        "seconds": part.seconds,
        "waited": part.waited,
        "waits": [(after(start), after(end)) for start, end in part.waits],
        "spans": [(span.stage, span.who, after(span.start), after(span.end)) for span in part.spans],
    }
