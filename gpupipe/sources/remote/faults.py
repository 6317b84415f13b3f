"""What can be wrong with one request to a storage, told from what the client's library raised.

Its texts hold URLs with queries, and bodies with keys and signatures: nothing of them is shown but a status and a code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

__all__ = ["LISTING", "MISSING", "NETWORK", "Fault", "Kind", "fault_of", "fault_of_status", "panics_told"]


class Kind(Enum):
    """What follows from a fault."""

    MISSING = "missing"
    DENIED = "denied"
    EXPIRED = "expired"  # the credentials: they are looked up once more
    REPLACED = "replaced"
    WHOLE = "whole"  # an answer to a range that is not that range
    BUSY = "busy"  # it asks for patience
    CROWDED = "crowded"  # this process has no room for one more
    BROKEN = "broken"  # no whole answer came
    SLOW = "slow"  # none within the time
    WRONG = "wrong"  # in the settings, or in the server: to try again would not help


AGAIN = (Kind.BUSY, Kind.CROWDED, Kind.BROKEN, Kind.SLOW)


@dataclass(eq=False)
class Fault(Exception):
    """One request has failed; `text` is what happened, without secrets."""

    kind: Kind
    text: str
    remedy: str = ""

    @property
    def again(self) -> bool:
        """Whether another try may help."""
        return self.kind in AGAIN


STATUS = re.compile(r"status code: (\d{3})")
CODE = re.compile(r"<Code>([A-Za-z0-9_.]{1,60})</Code>")
EXPIRED = [
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "TokenRefreshRequired",
    "InvalidAuthenticationInfo",
]

REGION = "its bucket is in another region: set AWS_REGION to that one, or AWS_ENDPOINT_URL to the server's address"
MISSING = "check its name, the bucket and the endpoint, and whether it was removed"
LISTING = "web servers do not list folders: name the objects, as 'https://host/train-{00..99}.tar', or pass a manifest"
NETWORK = "check the address and the network"

# By what the library's text has in it, in this order: of no status.
TEXTS: tuple[tuple[str, Kind, str, str], ...] = (
    ("BadScheme", Kind.WRONG, "it redirects to something else than the web", "which is not followed: check the URL"),
    ("TooManyRedirects", Kind.WRONG, "it redirects in a circle", "check its address"),
    ("error following redirect", Kind.WRONG, "it redirects to what can't be followed", "check its address"),
    ("Received redirect without LOCATION", Kind.WRONG, "it redirects without saying where", REGION),
    ("non-partial response", Kind.WHOLE, "", ""),
    ("Range request not supported", Kind.WHOLE, "", ""),
    ("Invalid last modified", Kind.WRONG, "the server tells a time that is none", ""),
    ("Content-Range header not present", Kind.WRONG, "the server answers a range without saying which", NETWORK),
    ("invalid peer certificate", Kind.WRONG, "its certificate is not trusted", "check the address and the clock"),
    ("InvalidCertificate", Kind.WRONG, "its certificate is not trusted", "check the address and the clock"),
    ("builder error", Kind.WRONG, "its address can't be asked", "check the URL; http:// needs an http:// endpoint"),
    ("Too many open files", Kind.CROWDED, "this process may open no more files", "raise its limit: `ulimit -n`"),
    ("169.254.", Kind.DENIED, "no credentials were found", ""),  # the machine's role was asked, in vain
    ("metadata.google.internal", Kind.DENIED, "no credentials were found", ""),
    ("PROPFIND response", Kind.WRONG, "its answer is none that can be read", ""),
    ("credential", Kind.DENIED, "no credentials were found", ""),
    ("TimedOut", Kind.SLOW, "no whole answer came in time", NETWORK),
    ("timed out", Kind.SLOW, "no whole answer came in time", NETWORK),
    ("dns error", Kind.BROKEN, "its host's name is not known", NETWORK),
    ("ConnectionRefused", Kind.BROKEN, "nothing answers at its address", NETWORK),
    ("ConnectError", Kind.BROKEN, "no connection could be made", NETWORK),
    ("ConnectionReset", Kind.BROKEN, "the connection was reset", NETWORK),
)


@contextmanager
def panics_told(remedy: str) -> Iterator[None]:
    """Where the library, which is none of Python's, gives up all control, as of settings that can't be, raise Fault."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # which is no Exception
            raise
        raise Fault(Kind.WRONG, "its storage can't be asked with these settings", remedy) from None


def fault_of(error: Exception) -> Fault:
    """The fault that an exception of obstore tells of."""
    text = str(error)
    found = STATUS.search(text)
    if found is not None:
        code = CODE.search(text)
        return fault_of_status(int(found[1]), code[1] if code else "")
    unexpected = re.search(r"Requested (\d+)\.\.(\d+), got (\d+)\.\.(\d+)", text)
    if unexpected is not None:
        return Fault(Kind.REPLACED, f"the storage has only bytes {unexpected[3]} to {unexpected[4]} of it")
    name = re.search(r'Path "(.*?)"', text)
    if name is not None:
        return Fault(Kind.WRONG, f"the name {name[1]!a} in it can't be asked for", "rename it")
    for part, kind, what, remedy in TEXTS:
        if part in text or part in type(error).__name__:
            return Fault(kind, what, remedy)
    if isinstance(error, ValueError | TypeError):  # of what was asked, before anything was sent
        return Fault(Kind.WRONG, "its name can't be asked for", "rename it")
    return Fault(Kind.BROKEN, "the answer broke off, or none came", NETWORK)


def fault_of_status(status: int, code: str) -> Fault:
    """The fault that an answer tells of, whose text names this code, if any."""
    said = f"the storage answered {status}" + (f" ({code})" if code else "")
    if status == 404:
        return Fault(Kind.MISSING, f"{said}: it is not there", MISSING)
    if status == 412:
        return Fault(Kind.REPLACED, f"{said}: it is another one than the index saw")
    if status == 416:
        return Fault(Kind.REPLACED, f"{said}: it is shorter than the index says")
    if code in EXPIRED or status == 401:
        return Fault(Kind.EXPIRED, f"{said}: the credentials are not valid (any more)")
    if status == 400 and not code:  # S3's answer to HEAD has no body
        return Fault(Kind.EXPIRED, f"{said} and no reason: credentials have ended, or the region is another")
    if code == "RequestTimeTooSkewed":
        return Fault(Kind.WRONG, said, "set this machine's clock")
    if code in ("AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect"):
        return Fault(Kind.WRONG, said, REGION)
    if 300 <= status < 400:
        return Fault(Kind.WRONG, f"{said}, a redirect to no address of the web", "it is not followed: check the URL")
    if status == 403:
        return Fault(Kind.DENIED, f"{said}: it may not be read")
    if status in (405, 501):
        return Fault(Kind.WRONG, said)
    if status in (408, 429) or status >= 500:
        return Fault(Kind.BUSY, said)
    return Fault(Kind.WRONG, said, "check the URL, the endpoint and the region")
