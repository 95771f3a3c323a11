import threading
import time

from dtk.record.guard import Writer, bounded, flush_reports, guarded, report


def fail():
    raise OSError(28, "No space left on device")


def test_a_failure_is_reported_once_per_topic(capfd):
    for _ in range(3):
        with guarded("metrics"):
            fail()
    report("events", "gone")
    flush_reports()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("dtk: metrics: OSError: [Errno 28] No space left on device")
    assert lines[1] == "dtk: events: gone; training goes on"


def test_writer_keeps_order_and_outlives_failures(capfd):
    writer, seen = Writer("w"), []
    writer.start()
    for i in range(100):
        writer.submit("seen", lambda i=i: seen.append(i))
        writer.submit("broken", fail)
    assert writer.close(5)
    flush_reports()
    assert seen == list(range(100))
    assert capfd.readouterr().err.count("broken") == 1


def test_a_stalled_disk_costs_the_caller_nothing(capfd):
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
    errors = capfd.readouterr().err
    assert errors.count("writing stalls") == 1
    assert "984 dropped, 17 not written" in errors


def test_bounded_leaves_a_stall_behind(capfd):
    release = threading.Event()
    assert not bounded("dump", lambda: release.wait() and None, 0.2)
    release.set()
    assert bounded("dump", fail, 5)
    flush_reports()
    assert "no answer within 0.2 s" in capfd.readouterr().err


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
