"""metrics.jsonl: of every step the latest attempt's record, whatever stands between the records."""

import json
import tempfile
from pathlib import Path

from hypothesis import given, settings, strategies as st

from diagnostics.evidence.limits import Limits
from dtk.compare.load import Metrics, read_metrics

ATTEMPTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8)), min_size=1, max_size=4)
"""(steps finished when the attempt began, records that it wrote)."""
NOISE = st.lists(st.sampled_from(["", '{"step": 3, "lo', "\x00\x00\x00", '{"step": "x"}', "[]"]), max_size=3)


def parsed(text: str, *, grows: bool = False) -> Metrics:
    """What is read of a file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_text(text)
        return read_metrics(path, Limits(), grows=grows)


def records(attempts: list[tuple[int, int]], every: int) -> list[dict[str, float]]:
    """The first step of an attempt, then every `every`-th."""
    return [
        {"step": began + 1 + number * every, "attempt": attempt, "loss": 1.0, "step_time_s": 0.5}
        for attempt, (began, count) in enumerate(attempts)
        for number in range(count)
    ]


@settings(deadline=None)
@given(ATTEMPTS, st.integers(1, 4))
def test_of_every_step_the_latest_attempt_counts(attempts: list[tuple[int, int]], every: int) -> None:
    written = records(attempts, every)
    windows = parsed("".join(json.dumps(record) + "\n" for record in written)).windows
    starts = [began + 1 for began, _ in attempts]
    expected = [
        (record["step"], record["attempt"])
        for record in written
        if not any(start <= record["step"] for start in starts[int(record["attempt"]) + 1 :])
    ]
    assert [window.last for window in windows] == [step for step, _ in expected]
    assert all(window.first < window.last for window in windows)
    assert [window.began_step for window in windows] == [attempts[int(attempt)][0] for _, attempt in expected]


@settings(deadline=None)
@given(ATTEMPTS, NOISE, st.integers(0, 100))
def test_lines_that_cannot_be_read_are_counted_and_cost_no_record(
    attempts: list[tuple[int, int]], noise: list[str], at: int
) -> None:
    lines = [json.dumps(record) for record in records(attempts, 1)]
    place = at % (len(lines) + 1)
    metrics = parsed("".join(f"{line}\n" for line in [*lines[:place], *noise, *lines[place:]]))
    clean = parsed("".join(f"{line}\n" for line in lines))
    assert metrics.broken == sum(bool(line) for line in noise)
    assert [window.last for window in metrics.windows] == [window.last for window in clean.windows]


@settings(deadline=None)
@given(ATTEMPTS, st.integers(1, 30))
def test_half_a_line_at_the_end_is_damage_unless_the_run_goes_on(attempts: list[tuple[int, int]], cut: int) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records(attempts, 1))
    torn = text + text[: min(cut, text.index("\n") - 1)]
    assert parsed(torn).broken == 1 and parsed(torn, grows=True).broken == 0
    assert parsed(torn).windows == parsed(text).windows
