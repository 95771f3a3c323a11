import io
import threading
import time
from types import SimpleNamespace

import pytest

from dtk.record import guard
from dtk.record.guard import Writer, bounded, flush_reports, guarded, report


@pytest.fixture
def messages(monkeypatch):
    """What is said on stderr. The thread that prints continues between tests, so each has a stream of its own."""
    stream = io.StringIO()
    # pytest puts its own in place of sys.stderr before each phase of a test.
    monkeypatch.setattr(guard, "sys", SimpleNamespace(stderr=stream))
    return stream


def fail():
    raise OSError(28, "No space left on device")


def test_a_failure_is_reported_once_per_topic(messages):
    for _ in range(3):
        with guarded("metrics"):
            fail()
    report("events", "gone")
    flush_reports()
    lines = messages.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("dtk: metrics: OSError: [Errno 28] No space left on device")
    assert lines[1] == "dtk: events: gone; training continues"


def test_writer_keeps_order_and_outlives_failures(messages):
    writer, seen = Writer("w"), []
    writer.start()
    for i in range(100):
        writer.submit("seen", lambda i=i: seen.append(i))
        writer.submit("broken", fail)
    assert writer.close(5)
    flush_reports()
    assert seen == list(range(100))
    assert messages.getvalue().count("broken") == 1


def test_a_stalled_disk_costs_the_caller_nothing(messages):
    writer, release = Writer("w", capacity=16), threading.Event()
    writer.start()
    writer.submit("stall", lambda: release.wait() and None)
    time.sleep(0.05)
    for _ in range(1000):
        writer.submit("more", fail)
    assert writer.dropped == 1000 - 16
    assert not writer.close(0.2)
    release.set()
    flush_reports()
    errors = messages.getvalue()
    assert errors.count("writing stalls") == 1
    assert "984 dropped, 17 not written" in errors


def test_bounded_leaves_a_stall_behind(messages):
    release = threading.Event()
    assert bounded("dump", lambda: release.wait() and 3, 0.2) is None
    release.set()
    assert bounded("dump", fail, 5) is None
    assert bounded("dump", lambda: 3, 5) == 3
    flush_reports()
    assert "no answer within 0.2 s" in messages.getvalue()


def test_a_terminal_that_stalls_holds_nobody_up(monkeypatch):
    release = threading.Event()

    class Stalled:
        def write(self, text):
            release.wait()

        def flush(self):
            pass

    monkeypatch.setattr("sys.stderr", Stalled())
    report("topic", "gone")
    flush_reports()
    release.set()
