"""What the findings of `gpupipe doctor` come to: whether the machine is ready, and the next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpupipe.tools.cli.doctor import Finding

__all__ = ["next_step", "verdict"]

START = "gpupipe new DATA -o train.py"


def verdict(findings: Sequence[Finding]) -> str:
    """ "ready: ..." where nothing failed, else "not ready: ..." with the names of what did."""
    failed, warned = ([one.name for one in findings if one.status == status] for status in ("fail", "warn"))
    if failed:
        return f"not ready: {len(failed)} of {len(findings)} checks failed: {', '.join(failed)}"
    if warned:
        return f"ready: {len(findings)} checks, none failed; look at: {', '.join(warned)}"
    return f"ready: {len(findings)} checks passed"


def next_step(findings: Sequence[Finding]) -> str:
    """The remedy of the first finding that has one, failures before warnings; else how to begin."""
    remedies = [one.remedy for status in ("fail", "warn", "ok") for one in findings if one.status == status]
    return next(filter(None, remedies), START)
