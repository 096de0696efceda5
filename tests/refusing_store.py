"""An S3 server that refuses whatever it is asked, with one code, on a free loopback port."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET_WORD = "hidden-word"
"""Servers quote parts of a request in their messages; nobody may pass them on."""


@contextmanager
def refusing_store(status: int, code: str, *, region: str = "") -> Generator[str]:
    """The address of the server, which ends with the context."""
    body = f"<Error><Code>{code}</Code><Message>{SECRET_WORD}</Message></Error>".encode()

    class Refusal(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _refuse(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            if region:
                self.send_header("x-amz-bucket-region", region)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = _refuse  # noqa: N815 the names that the library asks for

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the library's name
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
