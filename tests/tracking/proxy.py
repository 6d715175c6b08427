"""A proxy before an MLflow server, as an ingress is one, that for a while answers in the server's place."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """What the proxy says while its server is away."""

    status: int
    content: str
    kind: str = "text/html"


NO_ROUTE = Answer(404, "404 page not found\n", "text/plain")
NO_SERVICE = Answer(404, '{"message": "no Route matched with those values"}', "application/json")
NUMBERED = Answer(404, '{"error_code": 404, "message": "no such route"}', "application/json")
NO_POD = Answer(503, "<html><h1>503 Service Temporarily Unavailable</h1></html>")
BAD_GATEWAY = Answer(502, "<html><h1>502 Bad Gateway</h1></html>")
LOGIN = Answer(200, "<html><form action='/login'></form></html>")
NOTHING = Answer(200, "", "text/plain")
TOO_LARGE = Answer(413, "<html><h1>413 Request Entity Too Large</h1></html>")
CONFLICT = Answer(409, "busy\n", "text/plain")


class Proxy:
    """A proxy on loopback. While `answer` is set, no request reaches the server."""

    def __init__(self, server_uri: str, port: int = 0) -> None:
        """port: its own; 0 for a free one."""
        self.answer: Answer | None = None
        self.path = "/"
        """Start of the paths that it answers."""
        self.upload_s = 0.0
        """Seconds for which the answer to an upload waits, as that of a server that passes the file on."""
        self.server = urlsplit(server_uri)
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            """One connection."""

            def handle_any(self) -> None:
                """Pass a request on, or answer it."""
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if (answer := proxy.answer) is not None and self.path.startswith(proxy.path):
                    self.reply(answer.status, answer.kind, answer.content.encode())
                    return
                assert proxy.server.hostname is not None
                passed = http.client.HTTPConnection(proxy.server.hostname, proxy.server.port, timeout=30)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                passed.request(self.command, self.path, content, headers | {"Accept-Encoding": "identity"})
                response = passed.getresponse()
                if self.command == "PUT":
                    time.sleep(proxy.upload_s)
                self.reply(response.status, response.headers.get("Content-Type", ""), response.read())
                passed.close()

            def reply(self, status: int, kind: str, content: bytes) -> None:
                """Send an answer."""
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *_: object) -> None:
                """Print nothing."""

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._http.daemon_threads = True
        self.port = self._http.server_port
        self.uri = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def proxied(server_uri: str, port: int = 0) -> Iterator[Proxy]:
    proxy = Proxy(server_uri, port)
    try:
        yield proxy
    finally:
        proxy.close()
