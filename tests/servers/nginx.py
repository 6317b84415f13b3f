"""nginx: the files of a folder by HTTP, with a latency and a rate for each connection that cost it no CPU time."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from servers.processes import Absent, Program

__all__ = ["Nginx"]

ECHO = "/usr/lib/nginx/modules/ngx_http_echo_module.so"  # sleeps before an answer, in the event loop
SO_MAX_PACING_RATE = 47  # the kernel's own; Python does not name it

SETTINGS = """
{load}
user {user};
daemon off;
worker_processes 1;
pid {scratch}/nginx.pid;
error_log stderr error;
events {{ worker_connections 2048; }}
http {{
    log_format short '$request_method $status $body_bytes_sent $uri';
    access_log {scratch}/access.log short;
    client_body_temp_path {scratch}/body;
    proxy_temp_path {scratch}/proxy;
    fastcgi_temp_path {scratch}/fastcgi;
    uwsgi_temp_path {scratch}/uwsgi;
    scgi_temp_path {scratch}/scgi;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 1000000;
    server {{
        listen 127.0.0.1:{port};
        root "{root}";
        {places}
    }}
}}
"""


class Nginx:
    """Serves a folder.

    scratch: a folder of its own for its settings and its log. latency: seconds before each answer's first byte.
    rate: bytes a second for each connection, after a burst of 0.1 MB; None for as fast as it goes.
    """

    def __init__(self, root: Path, scratch: Path, latency: float = 0.0, rate: int | None = None) -> None:
        program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if program is None:
            raise Absent("nginx is not installed: apt-get install nginx-light")
        if latency and not Path(ECHO).exists():
            raise Absent(f"nginx has no module to wait with, {ECHO}: apt-get install libnginx-mod-http-echo")
        load, places = "", ""
        if latency:
            load = f"load_module {ECHO};"
            places = f"location / {{ echo_sleep {latency}; echo_exec @files; }} location @files {{ }}"
        with socket.socket() as listener:
            if rate is not None:  # what is accepted inherits it, and TCP paces itself: 50.0 MB/s of 50 were measured
                listener.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, rate)
            listener.bind(("127.0.0.1", 0))
            listener.listen(512)
            port = listener.getsockname()[1]
            user = pwd.getpwuid(os.getuid()).pw_name
            where = {"scratch": scratch, "root": root.resolve(), "port": port}
            settings = scratch / "nginx.conf"
            settings.write_text(SETTINGS.format(load=load, user=user, places=places, **where))
            command = [program, "-p", str(scratch), "-c", str(settings)]
            # Taken over as from an nginx before it.
            environment = {"NGINX": f"{listener.fileno()};"}
            self._program = Program(command, port, scratch, environment, inherited=[listener.fileno()])
        self.url = f"http://127.0.0.1:{port}"
        self._log = scratch / "access.log"

    @property
    def cpu_seconds(self) -> float:
        """What it has taken so far."""
        return self._program.cpu_seconds

    def url_of(self, path: str) -> str:
        """The URL of a file, quoted."""
        return f"{self.url}/{quote(path)}"

    def log(self) -> list[tuple[str, int, int, str]]:
        """(method, status, bytes of the body, path) of each answer so far."""
        lines = (line.split(" ", 3) for line in self._log.read_text().splitlines())
        return [(method, int(status), int(sent), path.lstrip("/")) for method, status, sent, path in lines]

    def close(self) -> None:
        """End it."""
        self._program.close()

    def __enter__(self) -> Nginx:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
