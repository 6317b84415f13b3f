"""What processes that are dead have left, and what runs that are over have held."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from gpupipe.sources.remote.cache.files import Blocks
from gpupipe.sources.remote.cache.keys import named
from gpupipe.sources.remote.cache.leases import alive
from gpupipe.sources.remote.cache.ledger import AT_ONCE, Facts, Ledger
from gpupipe.sources.remote.cache.settings import on_disk

__all__ = ["bury"]


def bury(ledger: Ledger) -> None:
    """Remove the one, and let go of the other. A run is over when none of its processes is alive."""
    folder = ledger.path.parent / "leases"
    with ledger.writing() as facts:
        for (lease,) in ledger.select("SELECT DISTINCT lease FROM claims").fetchall():
            if not alive(folder, lease):
                _remove_left(ledger, facts, lease)
        names = set(os.listdir(folder))
        living = {name for name in names if alive(folder, name)}
        runs = json.dumps([name.partition("-")[0] for name in living])
        ledger.execute("UPDATE runs SET ended = 1 WHERE name NOT IN (SELECT value FROM json_each(?))", runs)
        ended = set(ledger.select("SELECT slot, name FROM runs WHERE ended"))
    for name in names - living:
        with suppress(OSError):
            (folder / name).unlink()
    if ended:
        _let_go(ledger, ended)


def _remove_left(ledger: Ledger, facts: Facts, lease: str) -> None:
    files = Blocks(ledger.path.parent)
    for block, size, data_set in ledger.select("SELECT id, size, data_set FROM claims WHERE lease = ?", lease):
        name = named(data_set, block, size)
        files.remove(name)
        files.remove(f"{name}.{lease}")
        facts.add(-on_disk(size), -on_disk(size))
    ledger.execute("DELETE FROM claims WHERE lease = ?", lease)


def _let_go(ledger: Ledger, ended: set[tuple[int, str]]) -> None:
    """Of all blocks that these runs hold, some thousand in a transaction. Others may be at it, too: a slot that a later
    run has by now is left alone."""
    last = -1
    while True:
        with ledger.writing():
            slots = {slot for slot, _ in ended & set(ledger.select("SELECT slot, name FROM runs WHERE ended"))}
            bits = sum(1 << slot for slot in slots)
            held = "SELECT id FROM blocks WHERE id > ? AND holders & ? ORDER BY id LIMIT ?"
            ids = [block for (block,) in ledger.select(held, last, bits, AT_ONCE)]
            if not ids:
                for slot in slots:
                    ledger.execute("DELETE FROM runs WHERE slot = ?", slot)
                return
            free = "UPDATE blocks SET holders = holders & ~? WHERE id BETWEEN ? AND ?"
            ledger.execute(free, bits, ids[0], ids[-1])
            last = ids[-1]
