"""Rows of a query as samples: SQLite, and a PostgreSQL server that the test starts and stops."""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy
from tars import jpeg

import gpupipe
from gpupipe import Array, Bytes, Image, Query, Scalar, Text
from gpupipe.batch import MISSING
from gpupipe.errors import ConfigError, DataError, SampleError, StateError
from gpupipe.sources import check_source, open_source

TEXT = "SELECT image, label FROM images ORDER BY id"
SECRET = "tr0ub4dor"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """Six rows; the order of ids is not that of insertion."""
    path = tmp_path / "images.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE images (id INTEGER PRIMARY KEY, image BLOB, path TEXT, label, score REAL)")
        for number in (3, 1, 5, 0, 2, 4):
            row = (number, jpeg(number), f"{number}.jpg", "ab"[number % 2], None if number == 4 else number / 4)
            connection.execute("INSERT INTO images VALUES (?, ?, ?, ?, ?)", row)
            (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
        connection.commit()
    return path


def url(database: Path) -> str:
    return f"sqlite:///{database}"


def change(database: Path, statement: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(statement)
        connection.commit()


def test_rows_are_samples(database: Path) -> None:
    fields = {
        "image": Image(),
        "same": Bytes("image"),
        "name": Text("path"),
        "class": Scalar("label"),
        "score": Scalar(),
    }
    source = open_source(Query(url(database), "SELECT * FROM images ORDER BY id"), fields=fields)
    check_source(source)
    made = source.fetch(np.arange(6))
    assert [data.tobytes() for data in made["image"].data] == made["same"] == [jpeg(number) for number in range(6)]
    assert made["name"] == [f"{number}.jpg" for number in range(6)]
    assert made["class"].tolist() == [0, 1] * 3
    assert made["score"] == [0, 0.25, 0.5, 0.75, MISSING, 1.25]
    assert source.location(3) == f"query of sqlite {database} row 3"


def test_paths_are_below_the_root(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"image": Image("path"), "label": Scalar()}
    text = "SELECT path, label FROM images WHERE id > 2 ORDER BY id"
    source = open_source(Query(url(database), text, root=database.parent), fields=fields)
    monkeypatch.chdir(database.parent)
    other = open_source(Query(url(database), text), fields=fields)
    for one in (source, other):
        assert one[0][0].tobytes() == jpeg(3)
        assert one.key(0) == "3.jpg"
        assert (one.classes, one.fingerprint) == (["a", "b"], source.fingerprint)
    with pytest.raises(DataError, match="no folder at /nowhere"):
        open_source(Query(url(database), text, root="/nowhere"), fields=fields)


def test_parameters_go_to_the_driver(database: Path) -> None:
    """And are never a part of the text."""
    odd = "a' OR 1=1 --"
    change(database, "UPDATE images SET label = 'a'' OR 1=1 --' WHERE id = 4")
    text = "SELECT image, label FROM images WHERE label = {} ORDER BY id"
    for place, parameters in (("?", [odd]), (":label", {"label": odd})):
        assert len(open_source(Query(url(database), text.format(place), parameters))) == 1


def test_a_connection_of_ones_own(database: Path) -> None:
    by_url = open_source(Query(url(database), TEXT))
    with closing(sqlite3.connect(database)) as connection:
        source = open_source(Query(connection, TEXT))
        connection.execute("SELECT 1")  # which is still open
    assert source.fingerprint == by_url.fingerprint
    assert source.location(2) == "query by sqlite3 row 2"
    assert pickle.loads(pickle.dumps(source))[2][0].tobytes() == jpeg(2)


@pytest.mark.parametrize("connection", [object(), "engine"])
def test_what_is_no_connection(connection: Any) -> None:
    if connection == "engine":
        connection = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(ConfigError, match=r"connection is (object|Engine): .*engine\.raw_connection\(\)"):
        open_source(Query(connection, TEXT))


def test_an_engine_s_connection(database: Path) -> None:
    engine = sqlalchemy.create_engine(url(database))
    with closing(engine.raw_connection()) as connection:
        assert len(open_source(Query(connection, TEXT))) == 6
    engine.dispose()


def test_one_that_gives_arrow_tables() -> None:
    """As ADBC's do, and DuckDB's."""

    class Cursor:
        def execute(self, *asked: Any) -> None:
            self.asked = asked

        def fetch_arrow_table(self) -> pa.Table:
            assert self.asked == (TEXT, [7])
            return pa.table({"image": [jpeg(0), jpeg(1)], "label": [3, 4]})

        def close(self) -> None:
            pass

    class Connection:
        cursor = Cursor

    source = open_source(Query(Connection(), TEXT, [7]))
    assert source.targets.tolist() == [3, 4]
    assert source[1][0].tobytes() == jpeg(1)


def test_it_is_run_once_and_again_when_it_is_opened_again(database: Path) -> None:
    source = open_source(Query(url(database), TEXT))
    again = open_source(Query(url(database), TEXT))
    assert (again.fingerprint, again.index_path) == (source.fingerprint, source.index_path)  # type: ignore[attr-defined]
    options = {"engine": "torch", "num_workers": 0, "device": "cpu"}
    with gpupipe.Loader(source, gpupipe.imagenet_eval(16), 2, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        change(database, "UPDATE images SET label = 'b' WHERE id = 4")
        assert [labels.tolist() for _, labels in iterator] == [[0, 1], [0, 1]]  # the rows as they were
    changed = open_source(Query(url(database), TEXT))
    assert changed.fingerprint != source.fingerprint
    with (
        gpupipe.Loader(changed, gpupipe.imagenet_eval(16), 2, **options) as loader,
        pytest.raises(StateError, match=source.fingerprint),
    ):
        loader.load_state_dict(state)


def test_more_rows_than_are_fetched_at_a_time(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part's columns may be all null, or integers where later ones are not."""
    monkeypatch.setattr("gpupipe.sources.tables.query.ROWS", 2)
    change(database, "UPDATE images SET score = NULL WHERE id < 2")
    change(database, "UPDATE images SET label = id * 2")
    fields = {"image": Image(), "score": Scalar(), "label": Scalar()}
    source = open_source(Query(url(database), "SELECT image, score, label FROM images ORDER BY id"), fields=fields)
    assert source.column("score") == [MISSING, MISSING, 0.5, 0.75, MISSING, 1.25]
    assert source.targets.tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM images",
        "SELECT * FROM (SELECT * FROM images ORDER BY id)",
        "SELECT *, row_number() OVER (PARTITION BY (label) ORDER BY id) FROM images",
        "SELECT * FROM images -- ORDER BY id",
        "SELECT * FROM images /* ORDER\nBY id */",
        "SELECT 'ORDER BY' AS \"order by\", 'it''s ORDER BY' FROM images",
        "SELECT * FROM border BYTES",
    ],
)
def test_without_an_order_it_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"has no ORDER BY, .* primary key"):
        Query("sqlite://", text)


@pytest.mark.parametrize("text", ["select 1 order by 1", "SELECT (1) FROM (SELECT 2)\nORDER\n  BY id -- (all", TEXT])
def test_with_one_it_is_not(text: str) -> None:
    Query("sqlite://", text)


WRONG = {
    "no table": (
        "SELECT image FROM gone ORDER BY id",
        DataError,
        "OperationalError: no such table: gone; nothing was",
    ),
    "no rows": ("SELECT image, label FROM images WHERE id > 9 ORDER BY id", DataError, "has no rows"),
    "no column": ("SELECT id, label AS image FROM images ORDER BY id", ConfigError, r"the columns id, image"),
    "two columns": ("SELECT image, image, label FROM images ORDER BY id", ConfigError, "gives 2 columns 'image'"),
    "mixed types": (
        "SELECT image, CASE id WHEN 3 THEN 'x' ELSE id END AS label FROM images ORDER BY id",
        DataError,
        "column 'label' has values of several types",
    ),
    "no query": ("UPDATE images SET label = 1 RETURNING 2 ORDER BY 1", DataError, "query of sqlite .* failed"),
    "twice what no field is in": (
        "SELECT id, id, image, label FROM images WHERE 0 ORDER BY id",
        DataError,
        "has no rows",
    ),
    "no SELECT": ("DELETE FROM images WHERE label = 'ORDER' /* */ AND 0 = 1 -- \n ; --", ConfigError, "no ORDER BY"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(database: Path, name: str) -> None:
    text, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        open_source(Query(url(database), text))


def test_a_missing_file_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"no file at {tmp_path}/gone.db.*check the path"):
        open_source(Query(url(tmp_path / "gone.db"), TEXT))
    assert not (tmp_path / "gone.db").exists()


def test_a_database_by_its_path_is_a_query(database: Path) -> None:
    with pytest.raises(ConfigError, match=r"a database: pass gpupipe\.Query\('sqlite:///FILE'"):
        open_source(str(database))


def test_a_damaged_image_is_a_row(database: Path) -> None:
    change(database, "UPDATE images SET image = x'ffd8ff' WHERE id = 2")
    change(database, "UPDATE images SET image = NULL WHERE id = 3")
    source = open_source(Query(url(database), TEXT))
    options = {"engine": "torch", "num_workers": 0, "device": "cpu", "on_error": "skip"}
    with gpupipe.Loader(source, gpupipe.imagenet_eval(16), 6, **options) as loader:
        list(loader)
        assert sorted(error.index for error in loader.bad_samples) == [2, 3]
        assert all(f"row {error.index}" in error.location for error in loader.bad_samples)


def test_a_database_that_goes_away(database: Path) -> None:
    connection = sqlite3.connect(database)
    connection.close()
    with pytest.raises(
        DataError, match=r"query by sqlite3 failed: ProgrammingError: .*closed database.*check the data"
    ):
        open_source(Query(connection, TEXT))
    source = open_source(Query(url(database), TEXT))
    database.unlink()
    assert source[5][0].tobytes() == jpeg(5)
    with pytest.raises(DataError, match=r"no file at .*SQLite would make"):
        open_source(Query(url(database), TEXT))


def passwords(tmp_path: Path) -> Iterator[Query]:
    yield Query(f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/images?connect_timeout=1", TEXT)
    yield Query(f"postgresql+psycopg://127.0.0.1:1/images?password={SECRET}&user=me&connect_timeout=1", TEXT)
    yield Query(f"nothing+more://me:{SECRET}@host/images", TEXT)
    yield Query(f"nonsense {SECRET}", TEXT)
    yield Query(f"sqlite:///{tmp_path}/none/a.db?passphrase={SECRET}", TEXT, [SECRET])


def test_the_password_is_never_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for query in passwords(tmp_path):
        with pytest.raises((DataError, ConfigError)) as raised:
            open_source(query)
        error: BaseException | None = raised.value
        while error is not None:  # with all that a traceback prints
            assert SECRET not in str(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        assert SECRET not in repr(query)
    assert SECRET not in caplog.text


def binaries() -> Path | None:
    """Of PostgreSQL, which Debian has in no folder of the path."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    found += [Path(path).parent for path in [shutil.which("initdb")] if path]
    return found[0] if found else None


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    """A server of PostgreSQL with a password, by a socket in a folder of its own: that, and its process."""
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL: apt-get install postgresql")
    import tempfile

    user = {"user": "nobody", "group": "nogroup"} if os.getuid() == 0 else {}  # it refuses to run as root
    with tempfile.TemporaryDirectory() as folder:  # its path must be short, for the socket
        place = Path(folder)
        (place / "password").write_text(SECRET)
        for path in (place, place / "password"):
            os.chmod(path, 0o755)
            if user:
                shutil.chown(path, **user)
        options = ["--auth=scram-sha-256", "--username=me", f"--pwfile={place}/password", "--no-sync"]
        subprocess.run(
            [found / "initdb", "-D", place / "data", *options], check=True, capture_output=True, cwd=place, **user
        )
        settings = [f"unix_socket_directories={place}", "listen_addresses=", "fsync=off"]
        command = [found / "postgres", "-D", place / "data", *(part for one in settings for part in ("-c", one))]
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, stdout=log, cwd=place, **user)
        try:
            _wait(found, place)
            yield place, process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def _wait(found: Path, place: Path) -> None:
    subprocess.run(
        ["timeout", "60", "sh", "-c", f"until {found}/pg_isready -q -h {place} -d postgres -U me; do sleep 0.05; done"],
        check=True,
    )


def test_postgresql(server: tuple[Path, int], caplog: pytest.LogCaptureFixture) -> None:
    psycopg = pytest.importorskip("psycopg")
    caplog.set_level(logging.DEBUG)
    place, pid = server
    connection = psycopg.connect(host=str(place), user="me", password=SECRET, dbname="postgres", autocommit=True)
    connection.execute(
        "CREATE TABLE images (id int, image bytea, label text, boxes real[], price numeric, at timestamp)"
    )
    with connection.cursor() as cursor:
        rows = [(n, jpeg(n), "cat" if n % 2 else "dog", [n / 2, 2.5], n / 4) for n in (3, 1, 0, 2)]
        cursor.executemany("INSERT INTO images VALUES (%s, %s, %s, %s, %s, now())", rows)
    fields = {"image": Image(), "label": Scalar(), "vector": Array("boxes"), "price": Scalar()}
    text = "SELECT * FROM images WHERE id < %s ORDER BY id"
    address = f"postgresql+psycopg://me:{SECRET}@/postgres?host={place}"
    sources = [open_source(Query(by, text, [3]), fields=fields) for by in (address, connection)]
    for source in sources:
        check_source(source)
        made = source.fetch(np.arange(3))
        assert [data.tobytes() for data in made["image"].data] == [jpeg(n) for n in range(3)]
        assert made["label"].tolist() == [1, 0, 1]
        assert source.classes == ["cat", "dog"]
        assert [array.tolist() for array in made["vector"]] == [[n / 2, 2.5] for n in range(3)]
        assert made["price"].tolist() == [0, 0.25, 0.5]
    assert sources[0].fingerprint == sources[1].fingerprint
    wrong = address.replace(SECRET, SECRET + "x")
    with pytest.raises(DataError, match="password authentication failed") as raised:
        open_source(Query(wrong, text, [3]), fields=fields)
    assert SECRET not in str(raised.value)
    os.kill(pid, signal.SIGINT)  # the server ends, and with it all connections
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    for by in (address, connection):
        with pytest.raises(DataError, match=r"failed: \w+: .*check the database, then open it again"):
            open_source(Query(by, text, [3]), fields=fields)
    connection.close()
    assert sources[0][2]["image"].tobytes() == jpeg(2)
    assert SECRET not in caplog.text


def test_a_row_that_can_not_be_had_is_named(database: Path) -> None:
    change(database, "UPDATE images SET path = 'gone.jpg' WHERE id = 1")
    query = Query(url(database), "SELECT path AS image, label FROM images ORDER BY id", root=database.parent)
    with pytest.raises(SampleError, match=r"row 1 \(gone\.jpg\)\): .*gone\.jpg can't be read: No such file"):
        open_source(query)[1]
