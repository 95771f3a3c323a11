"""Looks at the main thread between its collectives: what is kept, and which line stands out."""

import queue
import sys
import threading
import time

import pytest

from diagnostics.causes.hang.straggler import stands_out
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.readers.ring import RingFile
from diagnostics.evidence.ring.format import SAMPLES
from dtk.record import collectives
from dtk.record.collectives import CollectiveLog
from dtk.record.ring import Ring


def here():
    return sys._getframe(1)


@pytest.fixture
def make(tmp_path):
    """Ring and log of a rank."""

    def make(rank):
        ring = Ring(tmp_path / f"rank_{rank:05d}.ring", rank, 3, 0)
        ring.start()
        return CollectiveLog(ring)

    return make


def read(log):
    return RingFile(log.ring.path, log.ring.path.name, log.ring.rank, Limits())


def test_the_users_line_is_kept_and_counted(make):
    log, began_s = make(0), time.time()
    for _ in range(3):
        log.sample(here())
    line = here().f_lineno - 1
    (sample,) = read(log).read().samples
    assert (sample.file, sample.line, sample.times) == (__file__, line, 3)
    assert sample.function == "test_the_users_line_is_kept_and_counted"
    assert began_s <= sample.last_s <= time.time()


def test_a_line_of_the_interpreter_is_the_users_who_called_it(make):
    log, waiting = make(0), queue.Queue()

    def run():
        waiting.get()  # stands here

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(100):
        frame = sys._current_frames()[thread.ident]
        if frame.f_code.co_name == "wait":
            break
        time.sleep(0.01)
    log.sample(frame)
    waiting.put(None)
    thread.join()
    (sample,) = read(log).read().samples
    assert (sample.file, sample.function.rpartition(".")[2]) == (__file__, "run")


def test_inside_a_collective_nothing_is_looked_at(make):
    log = make(0)
    log.open[threading.main_thread().ident] = (None, 1, 1)
    log.sample(here())
    log.open.clear()
    log.sample(None)
    assert read(log).read().samples == ()


def test_of_many_lines_the_frequent_stay_and_the_texts_are_bounded(make, monkeypatch):
    log = make(0)
    for _ in range(50):
        log.sample(here())
    for number in range(collectives.SAMPLED + 200):
        log.sample(eval(compile("here()", f"/job/{number}.py", "eval")))
    samples = read(log).read().samples
    assert len(samples) == SAMPLES
    assert (samples[0].file, samples[0].times) == (__file__, 50)
    assert len(log._sampled) == collectives.SAMPLED


def test_the_line_that_only_one_rank_stands_on(make):
    logs = [make(rank) for rank in range(3)]

    def everywhere(log):
        log.sample(here())

    def alone(log):
        log.sample(here())

    for _ in range(20):
        for log in logs:
            everywhere(log)
    for _ in range(8):
        alone(logs[1])
    alone(logs[0])
    rings = [read(log) for log in logs]
    frame, times, looks = stands_out(rings, 1, 0)
    assert (frame.function.rpartition(".")[2], times, looks) == ("alone", 8, 28)
    assert stands_out(rings[::-1], 1, None) == (frame, times, looks)
    assert stands_out(rings, 0, 0) is None
    assert stands_out(rings, 1, 7) is None
