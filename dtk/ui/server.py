"""Serves the pages of `dtk ui` on this machine only: on loopback, with a token, read-only. The token becomes a cookie,
so that no link or history holds it; a request must name this host, so no foreign name that resolves to loopback works.
"""

import http.server
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from msgspec.structs import replace

from diagnostics.contract.artifacts import RunPaths
from diagnostics.contract.files import table_beside
from diagnostics.report import document as doc
from diagnostics.report.html import render
from diagnostics.report.markup import Markup, el
from dtk.errors import DtkError, refused
from dtk.ui.live import unread_ns
from dtk.ui.pages import NOT_UTF8, find, link, plan_page, run_page, run_path, runs_page

HOST = "127.0.0.1"
DIAGNOSIS_S = 600.0  # Timeout of a diagnosis: the largest traces take minutes.
MOST_COMPARED = 64  # Chosen: a comparison of more runs is not legible on one page.
_BACK = doc.Paragraph((link("All runs", "/"),))
_HEADERS: dict[str, str] = table_beside(__file__)["headers"]


class Server(http.server.ThreadingHTTPServer):
    """The pages of one folder of runs."""

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Listen; port 0 = a free one. Raise DtkError if the port is taken, or not allowed."""
        with refused(f"cannot listen on port {port}", "choose another: --port N, or leave it out for a free one"):
            super().__init__((HOST, port), _Handler)
        self.folder, self.token = folder, secrets.token_urlsafe(24)
        self.diagnoses: dict[str, tuple[float, bytes]] = {}
        self.measured: dict[str, int] = {}
        self.one_diagnosis = threading.Lock()

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The URL to open in a browser."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser closed early."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    timeout = 30
    server_version, sys_version = "dtk", ""

    def do_GET(self) -> None:
        """Answer one page."""
        url = urlsplit(self.path)
        query = parse_qs(url.query, errors=NOT_UTF8)
        port, name = self.server.port, f"dtk_ui_{self.server.port}"
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self._answer(HTTPStatus.FORBIDDEN, b"dtk ui answers on this machine only\n", "text/plain")
            return
        if self._has(query.get("token", [""])[0]):
            cookie = f"{name}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
            self._answer(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie})
            return
        try:
            morsel = SimpleCookie(self.headers.get("Cookie", "")).get(name)
        except CookieError:
            morsel = None
        if morsel is None or not self._has(morsel.value):
            text = "open the address that `dtk ui` printed: it holds a token\n"
            self._answer(HTTPStatus.FORBIDDEN, text.encode(), "text/plain")
            return
        code, text = HTTPStatus.OK, ""
        try:
            page = self._page(unquote(url.path, errors=NOT_UTF8), query)
        except DtkError as error:
            code, text = HTTPStatus.NOT_FOUND, str(error)
        except Exception as error:  # Otherwise the browser would show an empty page.
            code = HTTPStatus.INTERNAL_SERVER_ERROR
            text = f"this page cannot be made: {type(error).__name__}: {error}"
        if text:
            page = _rendered(doc.Document(title="dtk", answer=" ".join(text.split()), blocks=(), lead=(_BACK,)))
        self._answer(code, page)

    def _has(self, token: str) -> bool:
        return secrets.compare_digest(token.encode(), self.server.token.encode())

    def _page(self, path: str, query: Mapping[str, list[str]]) -> bytes:
        folder = self.server.folder
        match path.split("/")[1:]:
            case [""]:
                return _rendered(runs_page(folder, {name: values[0] for name, values in query.items()}))
            case ["run", identity]:
                self._measure(find(folder, identity))
                return _rendered(run_page(folder, identity))
            case ["run", identity, "plan"]:
                return _rendered(plan_page(folder, identity))
            case ["run", identity, "diagnosis"]:
                links = el("p", el("a", "All runs", href="/"), "  ", el("a", identity, href=run_path(identity)))
                page = self._diagnosis(find(folder, identity))
                return page.replace(b"</h1>", f"</h1>{links}".encode(errors="replace"), 1)
            case ["compare"]:
                return _compared([find(folder, name) for name in query.get("run", [])[:MOST_COMPARED]])
        raise DtkError(f"there is no page {path}")

    def _measure(self, run: Path) -> None:
        """Read new traces in the background, once, so that the run's report has the breakdown of a step."""

        def read() -> None:
            with suppress(DtkError, OSError):  # The page of the diagnosis shows the error.
                self._diagnosis(run)

        if (unread := unread_ns(RunPaths(run))) and self.server.measured.get(run.name) != unread:
            self.server.measured[run.name] = unread
            threading.Thread(target=read, name="dtk-ui-traces", daemon=True).start()

    def _diagnosis(self, run: Path) -> bytes:
        """Return the report of a run, cached until it changes; its time and memory limits need a separate process."""
        with self.server.one_diagnosis:
            # The report itself is written next to the run.
            entries = (path for path in run.iterdir() if path.name != "report")
            changed_s = max((path.lstat().st_mtime for path in entries), default=1.0)
            made_s, page = self.server.diagnoses.get(run.name, (0.0, b""))
            if made_s != changed_s:
                words = [sys.executable, "-m", "dtk", "diagnose", str(run), "--format", "html"]
                try:
                    process = subprocess.run(words, capture_output=True, timeout=DIAGNOSIS_S, check=False)
                except subprocess.TimeoutExpired as error:
                    raise DtkError(f"the diagnosis took more than {DIAGNOSIS_S:.0f} s") from error
                if process.returncode not in (0, 1):
                    raise DtkError(process.stderr.decode(errors="replace").strip() or "dtk diagnose failed")
                page = process.stdout
                self.server.diagnoses = {run.name: (changed_s, page)}
            return page

    def _answer(
        self, code: HTTPStatus, body: bytes, kind: str = "text/html", more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(code)
        headers = {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body)), **_HEADERS}
        for name, value in (headers | dict(more or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""


def _compared(runs: list[Path]) -> bytes:
    from diagnostics.contract.errors import DiagnosticsError
    from dtk.compare.compare import compare
    from dtk.compare.report import document

    try:
        page = document(compare(runs))
    except DiagnosticsError as error:
        raise DtkError(" ".join(str(error).split())) from error
    return render(replace(page, lead=(_BACK, *page.lead))).encode(errors="replace")


def _rendered(document: doc.Document) -> bytes:
    style, script = (Markup((Path(__file__).parent / name).read_text(encoding="utf-8")) for name in ("ui.css", "ui.js"))
    return render(document, style, script).encode(errors="replace")
