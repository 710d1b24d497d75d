"""HTTP servers on the loopback that answer range requests, rightly or not, and count what was asked and sent."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE = 64 << 10


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64  # a connection that finds no room is tried again after a second

    def handle_error(self, *_: object) -> None:
        """Nothing is to be said of clients that hang up."""


class RangeServer:
    """Serves ``files`` (path to bytes). ``answer`` takes the place of the right answer where it is set."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etags: dict[bytes, str] = {}
        self.tags = True
        self.extra: dict[str, str] = {}
        self.answer: Callable[[Handler, bytes, int, int], None] | None = None
        self.requests: list[tuple[int, int]] = []  # first byte and number of bytes, as they were asked for
        self.headers: list[dict[str, str]] = []
        self.sent = 0
        self.most_at_once = 0
        self._at_once = 0
        self._lock = threading.Lock()
        server = self

        class Bound(Handler):
            owner = server

        self._http = _Quiet(("127.0.0.1", 0), Bound)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        # a short poll: shutting down waits for it
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def put(self, path: str, data: bytes) -> str:
        """Have a file, from now on; returns its URL."""
        self.files[path] = data
        self.etags.setdefault(data, f'"{len(self.etags)}"')
        return self.url + path

    def forget(self) -> None:
        """Begin to count anew."""
        self.requests.clear()
        self.sent = 0

    @property
    def asked(self) -> int:
        return sum(count for _, count in self.requests)

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @contextmanager
    def counted(self, handler: Handler, first: int, count: int):
        with self._lock:
            self.requests.append((first, count))
            self.headers.append(dict(handler.headers))
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            yield
        finally:
            with self._lock:
                self._at_once -= 1


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or head and body wait for each other
    owner: RangeServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        data = self.owner.files.get(self.path.partition("?")[0])
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        assert asked is not None, "a request without a range"
        first, behind = int(asked[1]), int(asked[2]) + 1
        with self.owner.counted(self, first, behind - first):
            if data is None:
                self.reply(404, b"nothing here")
            elif self.owner.answer is not None:
                self.owner.answer(self, data, first, behind)
            else:
                self.part(data, first, behind)

    def part(self, data: bytes, first: int, behind: int) -> None:
        """The right answer."""
        if first >= len(data):
            self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        behind = min(behind, len(data))
        tag = {"ETag": self.owner.etags[data]} if self.owner.tags else {}
        told = {"Content-Range": f"bytes {first}-{behind - 1}/{len(data)}", **tag, **self.owner.extra}
        self.reply(206, data[first:behind], told)

    def reply(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, length: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        for at in range(0, len(body), PIECE):
            try:
                self.wfile.write(body[at : at + PIECE])
            except OSError:  # who asked has gone
                self.close_connection = True
                return
            self.owner.sent += len(body[at : at + PIECE])


def whole(handler: Handler, data: bytes, first: int, behind: int) -> None:
    """Ignores that only a part was asked for."""
    handler.reply(200, data, {"ETag": '"x"'})


def unnamed(handler: Handler, data: bytes, first: int, behind: int) -> None:
    """Sends the part, but does not say which one it is."""
    handler.reply(206, data[first:behind])


def elsewhere(handler: Handler, data: bytes, first: int, behind: int) -> None:
    """Sends another part, and says so."""
    handler.part(data, first + 8, behind + 8)


def shorter(handler: Handler, data: bytes, first: int, behind: int) -> None:
    """Sends a part that begins rightly and ends early, and says so."""
    handler.part(data, first, behind - 8)


def too_little(handler: Handler, data: bytes, first: int, behind: int) -> None:
    """Sends fewer bytes than it says it does."""
    last = min(behind, len(data)) - 1
    handler.reply(206, data[first : last - 7], {"Content-Range": f"bytes {first}-{last}/{len(data)}"})


def too_much(handler: Handler, data: bytes, first: int, behind: int) -> None:
    """Sends more bytes than it says it does."""
    last = min(behind, len(data)) - 1
    handler.reply(206, data[first : last + 1] + b"more", {"Content-Range": f"bytes {first}-{last}/{len(data)}"})


def cut_off(handler: Handler, data: bytes, first: int, behind: int) -> None:
    """Hangs up in the middle."""
    last = min(behind, len(data)) - 1
    told = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
    handler.reply(206, data[first : first + (last - first) // 2], told, length=last - first + 1)
    handler.close_connection = True


def endless(handler: Handler, data: bytes, first: int, behind: int) -> None:
    """Has a file of more bytes than there can be."""
    handler.reply(206, data[first:behind], {"Content-Range": f"bytes {first}-{behind - 1}/{1 << 64}"})


def together(count: int) -> Callable[[Handler, bytes, int, int], None]:
    """Answers nobody before so many requests were seen under way at once; where they never are, late."""
    seen = threading.Event()

    def answer(handler: Handler, data: bytes, first: int, behind: int) -> None:
        if handler.owner.most_at_once >= count:
            seen.set()
        if not seen.wait(5):
            seen.set()  # once is enough
        handler.part(data, first, behind)

    return answer


def refusing(status: int) -> Callable[[Handler, bytes, int, int], None]:
    return lambda handler, data, first, behind: handler.reply(status, b"no")
