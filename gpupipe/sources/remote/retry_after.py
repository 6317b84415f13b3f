"""How long a server that asks for patience says that it lasts: obstore does not show the header, so it is asked for."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from email.utils import parsedate_to_datetime

__all__ = ["RetryAfter"]

SECONDS = 5.0  # for the question
AGAIN = 1.0  # seconds until a host is asked once more


class RetryAfter:
    """By host, of the web: buckets' services do not send it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        self._asked: dict[str, float] = {}

    def of(self, url: str) -> float:
        """Seconds from now; 0 where it says nothing. Threads that come while one asks do not ask."""
        host = url.split("/")[2]
        now = time.monotonic()
        with self._lock:
            ask = now - self._asked.get(host, -AGAIN) >= AGAIN and now >= self._until.get(host, 0.0)
            if ask:
                self._asked[host] = now
        if ask:
            until = time.monotonic() + _said(url)
            with self._lock:
                self._until[host] = until
        return max(0.0, self._until.get(host, 0.0) - now)


def _said(url: str) -> float:
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=SECONDS).close()
        return 0.0
    except urllib.error.HTTPError as error:
        text = error.headers.get("Retry-After", "")
        error.close()
    except (OSError, ValueError):  # a proxy, a password: it is not worth more
        return 0.0
    try:
        return float(text) if text.isdigit() else parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return 0.0
