"""The server: who gets an answer, and what those get who ask for something else."""

import http.client
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from dtk.errors import DtkError
from dtk.ui.server import HOST, Server
from tests.unit.ui.folders import make_run


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    make_run(tmp_path / "runs", "a-ddp")
    with Server(tmp_path / "runs") as serving:
        thread = threading.Thread(target=lambda: serving.serve_forever(poll_interval=0.01))
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def ask(server: Server, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=20)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


def allowed(server: Server, path: str) -> tuple[int, dict[str, str], str]:
    return ask(server, path, Cookie=f"dtk_ui_{server.port}={server.token}")


def test_the_printed_address_gives_a_cookie_and_hides_the_token(server: Server) -> None:
    code, headers, _ = ask(server, server.address.partition(f":{server.port}")[2])
    assert (code, headers["Location"]) == (303, "/")
    assert "HttpOnly" in headers["Set-Cookie"] and "SameSite=Strict" in headers["Set-Cookie"]
    code, headers, body = ask(server, "/", Cookie=headers["Set-Cookie"].partition(";")[0])
    assert code == 200 and "a-ddp" in body and server.token not in body
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("headers", [{}, {"Cookie": "dtk_ui_0=x"}, {"Cookie": "\x7f=;;"}, {"Cookie": "{name}=wrong"}])
def test_without_the_token_nothing_is_shown(headers: dict[str, str], server: Server) -> None:
    headers = {name: value.replace("{name}", f"dtk_ui_{server.port}") for name, value in headers.items()}
    for path in ("/", "/?token=wrong", "/?token=", "/run/a-ddp", "/run/a-ddp/diagnosis"):
        code, _, body = ask(server, path, **headers)
        assert code == 403 and "a-ddp" not in body


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", ""])
def test_a_foreign_name_that_resolves_to_loopback_is_refused(host: str, server: Server) -> None:
    code, _, body = ask(server, f"/?token={server.token}", Host=host)
    assert code == 403 and "a-ddp" not in body


@pytest.mark.parametrize(
    "path",
    [
        "/run/none",
        "/run/" + quote("../..", safe=""),
        "/run/a-ddp/x",
        "/run/none/plan",
        "/x",
        "/run/%00",
        "/compare?run=none",
    ],
)
def test_a_page_that_does_not_exist_is_one_clear_line(path: str, server: Server) -> None:
    code, _, body = allowed(server, path)
    assert code == 404 and "here is no" in body and "Traceback" not in body


def test_a_name_that_is_no_utf8_leaves_the_pages_readable(server: Server) -> None:
    name = os.fsdecode(b"b-\xff")
    make_run(server.folder, name)
    code, _, body = allowed(server, "/")
    assert code == 200 and 'href="/run/a-ddp"' in body and 'href="/run/b-%FF"' in body
    assert allowed(server, "/run/b-%FF")[0] == 200
    assert "there is no run" not in allowed(server, "/compare?run=b-%FF&run=a-ddp")[2]


def test_a_comparison_that_cannot_be_made_says_why(server: Server) -> None:
    code, _, body = allowed(server, "/compare")
    assert code == 404 and "Traceback" not in body and "All runs" in body


def test_a_page_that_fails_is_one_line_too(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def vanish(*_: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "a-ddp/status.json")

    monkeypatch.setattr("dtk.ui.server.run_page", vanish)
    code, _, body = allowed(server, "/run/a-ddp")
    assert code == 500 and "his page cannot be made: FileNotFoundError" in body and "Traceback" not in body
    assert "All runs" in body


def test_the_diagnosis_is_that_of_the_command(server: Server) -> None:
    code, _, body = allowed(server, "/run/a-ddp/diagnosis")
    assert code == 200 and body.startswith("<!doctype html>") and "a-ddp" in body
    (made_s, page) = server.diagnoses["a-ddp"]
    back = '<p><a href="/">All runs</a>  <a href="/run/a-ddp">a-ddp</a></p>'
    assert (
        body.count(back) == 1
        and page.decode() == body.replace(back, "")
        and (server.folder / "a-ddp" / "report" / "report.html").exists()
    )
    server.diagnoses["a-ddp"] = (made_s, b"kept")
    assert allowed(server, "/run/a-ddp/diagnosis")[2] == "kept", "nothing has changed since"


def test_new_traces_are_read_once_beside_the_page(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr("dtk.ui.server._Handler._diagnosis", lambda _, run: read.append(run.name))
    assert allowed(server, "/run/a-ddp")[0] == 200 and not read
    (server.folder / "a-ddp" / "traces").mkdir()
    (server.folder / "a-ddp" / "traces" / "rank_00000.json.gz").write_bytes(b"")
    for _ in range(3):
        assert allowed(server, "/run/a-ddp")[0] == 200
    for thread in threading.enumerate():
        if thread.name == "dtk-ui-traces":
            thread.join(10)
    assert read == ["a-ddp"]


def test_nothing_can_be_posted(server: Server) -> None:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=20)
    connection.request("POST", "/", body="x", headers={"Cookie": f"dtk_ui_{server.port}={server.token}"})
    assert connection.getresponse().status == 501


def test_a_port_in_use_is_one_line(server: Server) -> None:
    with pytest.raises(DtkError, match=f"cannot listen on port {server.port}"):
        Server(Path(), server.port)
