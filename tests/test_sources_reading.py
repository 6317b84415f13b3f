"""Reading parts of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpupipe.sources.reading import read_at


def test_parts_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    descriptor = os.open(tmp_path / "a", os.O_RDONLY)
    try:
        assert read_at(descriptor, 3, 4).tobytes() == b"3456"
        assert read_at(descriptor, 8, 4).tobytes() == b"89"
        assert read_at(descriptor, 20, 4).tobytes() == b""
        assert read_at(descriptor, 3, 4, b"head").tobytes() == b"head3456"
        for offset in (-1, -2):  # of which the system takes the first for the place where a read stopped last
            with pytest.raises(OSError, match=f"offset {offset}"):
                read_at(descriptor, offset, 4)
    finally:
        os.close(descriptor)
