"""Where the right to read comes from: what obstore finds by itself, and what only the vendor's own library does."""

from __future__ import annotations

import importlib
import json
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpupipe.sources.remote.faults import Fault, Kind

__all__ = ["CLASSES", "provider_of", "remedy_of"]

CLASSES = {
    "s3": "S3Store",
    "s3a": "S3Store",
    "gs": "GCSStore",
    "az": "AzureStore",
    "abfs": "AzureStore",
    "abfss": "AzureStore",
}

# What to do where something may not be read.
AMAZON = (
    "check that AWS_PROFILE (profiles need boto3), AWS_ACCESS_KEY_ID or the machine's role may read it, and "
    "AWS_ENDPOINT_URL; a public bucket needs AWS_SKIP_SIGNATURE=true, one whose requester pays "
    "AWS_REQUEST_PAYER=requester"
)
GOOGLE = (
    "check that GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login` or the machine's account may "
    "read it; a public bucket needs GOOGLE_SKIP_SIGNATURE=true"
)
AZURE = (
    "set AZURE_STORAGE_ACCOUNT_NAME, and check that AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or the "
    "machine's identity may read it; a public container needs AZURE_SKIP_SIGNATURE=true"
)
WEB = "a presigned URL may have ended: make a new one; a password stands in https://NAME:PASSWORD@host/..."
REMEDIES = {"S3Store": AMAZON, "GCSStore": GOOGLE, "AzureStore": AZURE}

# Asked anew when less than 5 minutes are left, by obstore; botocore's own have 10 or more left.
LIFE = timedelta(minutes=10)

GOOGLE_NATIVE = ("service_account", "authorized_user")
PREFIXES = ("AZURE", "AZURE_STORAGE", "AZURE_STORAGE_ACCOUNT")
AZURE_NATIVE = "KEY SAS_TOKEN SAS_KEY TOKEN CLIENT_SECRET ACCESS_KEY MASTER_KEY FEDERATED_TOKEN_FILE USE_EMULATOR"


def provider_of(kind: str) -> Any:
    """What gives credentials, and gives them anew before they end; None where obstore finds them by itself: in the
    environment, in the machine's role."""
    if kind.startswith("s3"):
        return _amazon()
    return _google() if kind == "gs" else _azure()


def remedy_of(kind: str) -> str:
    """What to do where a storage of this scheme may not be read."""
    if kind in ("http", "https"):
        return WEB
    return REMEDIES.get(CLASSES.get(kind, ""), "check what fsspec needs for it")


def _set(name: str) -> bool:
    return bool(os.environ.get(name))


def _amazon() -> Any:
    """Profiles, single sign-on, roles that are assumed: all that boto3 finds, where it is installed."""
    if _set("AWS_SKIP_SIGNATURE") or (_set("AWS_ACCESS_KEY_ID") and not _set("AWS_PROFILE")):
        return None
    with suppress(ImportError):
        auth = importlib.import_module("obstore.auth.boto3")
        try:
            return auth.Boto3CredentialProvider(ttl=LIFE)
        except Exception as error:  # a profile that is not there, a role that may not be assumed
            raise Fault(Kind.DENIED, f"no credentials were found ({type(error).__name__})") from None
    return None


def _google() -> Any:
    """Federated and impersonated identities, which obstore does not read."""
    if _set("GOOGLE_SKIP_SIGNATURE") or _set("GOOGLE_BEARER_TOKEN"):
        return None
    usual = Path.home() / ".config/gcloud/application_default_credentials.json"
    path = Path(os.environ.get("GOOGLE_APPLICATION_CREDENTIALS") or usual)
    with suppress(OSError, ValueError, ImportError):
        if json.loads(path.read_bytes()).get("type") not in GOOGLE_NATIVE:
            return importlib.import_module("obstore.auth.google").GoogleCredentialProvider()
    return None


def _azure() -> Any:
    """What azure-identity finds, where nothing is said in the environment."""
    if _set("AZURE_SKIP_SIGNATURE") or any(
        _set(f"{start}_{name}") for name in AZURE_NATIVE.split() for start in PREFIXES
    ):
        return None
    with suppress(ImportError):
        return importlib.import_module("obstore.auth.azure").AzureCredentialProvider()
    return None
