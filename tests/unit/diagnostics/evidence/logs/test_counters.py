"""Numbers that rise above a traceback and go on below it show that the process survived; others show nothing."""

from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence.logs.counters import Counters

RAISED = """\
Traceback (most recent call last):
  File "/job/data/loader.py", line 55, in fetch
    return self.client.get(key)
ConnectionError: 503 from storage
"""
FORMATS = {
    "bracket": "[{0}/900] acc 0.5{0}\n",
    "words": "2026-11-02 10:00:00,123 INFO trainer: processed {1} samples in 0.31 s (206 samples/s)\n",
    "table": "{0:6d}    2.9543   0.00100\n",
    "dict": "{{'it': {0}, 'reward': 0.7}}\n",
    "generation": "generation {0}: best fitness 0.91 (population 64)\n",
}


def lines(name: str, first: int, last: int) -> str:
    return "".join(FORMATS[name].format(n, n * 64) for n in range(first, last))


def is_confirmed(folder: Path, text: str) -> bool:
    (folder / "train.log").write_text(text)
    report = diagnose(folder)
    assert report.outcome == ("crashed" if report.root_causes else "undecided")
    return any(root.cause == "hang.rank_raised" for root in report.root_causes)


@pytest.mark.parametrize("name", [*FORMATS])
@pytest.mark.parametrize(("last", "confirmed"), [(50, False), (21, True), (20, True)])
def test_what_rose_above_goes_on(tmp_path: Path, name: str, last: int, confirmed: bool) -> None:
    text = f"{lines(name, 0, 20)}WARNING: cannot fetch shard 17\n{RAISED}"
    assert is_confirmed(tmp_path, text + lines(name, 20, last)) == confirmed


@pytest.mark.parametrize(
    "after",
    [
        "".join(f"[monitor] beat {n} of node-1\n" for n in range(9, 90)),
        "".join(f"Sending process {n} closing signal SIGTERM\n" for n in range(4000, 4008)),
        "".join(f"worker {n} stopped\n" for n in range(30)),
        "".join(f"[{n}/900] acc 0.5 (replayed)\n" for n in range(20)),
        "".join(f"2026-11-02 10:{n:02d}:00,123 INFO io: flushed\n" for n in range(9, 40)),
    ],
)
def test_what_others_count_is_no_progress_of_the_steps(tmp_path: Path, after: str) -> None:
    above = "".join(f"[{n}/900] acc 0.5\n" + f"[monitor] beat {n // 3} of node-1\n" * (n % 3 == 0) for n in range(27))
    assert is_confirmed(tmp_path, above + RAISED + after)


@pytest.mark.parametrize(
    ("before", "after", "confirmed"),
    [
        ("", "Training complete\n", False),
        ("", "saving the model\ntraining finished\nbye\n", False),
        (
            "*** Setting OMP_NUM_THREADS environment variable for each process to be 1 ***\n",
            "Training complete\n",
            True,
        ),
        ("", "Training complete\n[0] exited with code 1\nrank 1 exited with code 1\n", True),
        ("", "wrote the emergency checkpoint\nDone.\n", True),
        ("Training complete\n", "", True),
    ],
)
def test_an_end_in_order(tmp_path: Path, before: str, after: str, confirmed: bool) -> None:
    assert is_confirmed(tmp_path, before + RAISED + after) == confirmed


def test_a_launcher_s_word_is_that_of_all_ranks(tmp_path: Path) -> None:
    head = "*** Setting OMP_NUM_THREADS environment variable for each process to be 1 ***\n"
    end = "I1120 10:00:00.000000 77 torch/distributed/elastic/agent/server/api.py:899] [default] worker group successfully finished.\n"  # noqa: E501
    assert is_confirmed(tmp_path, head + RAISED)
    assert not is_confirmed(tmp_path, head + RAISED + end)


def test_a_table_of_numbers_is_no_block_of_code(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(lines("table", 1, 30) + RAISED.replace("return self", "try: self"))
    (root,) = diagnose(tmp_path).root_causes
    assert [place.line for place in root.where] == [55]
    block = "".join(f"    {line}\n" for line in ("step 1 of 9", "step 2 of 9", *RAISED.splitlines()))
    assert is_confirmed(tmp_path, block)


@pytest.mark.parametrize(
    ("above", "below", "goes_on"),
    [
        (["step 1", "step 2", "step 3", "step 4"], ["step 5", "step 6", "step 7"], True),
        (["step 1", "step 2", "step 3", "step 4"], ["step 5", "step 6", "step 6"], False),
        ([], ["step 5", "step 6", "step 7"], True),
        (["item 1", "item 2"], ["item 3", "item 4", "item 5"], False),
        (["rank 0", "rank 1", "rank 2", "rank 3"], ["rank 0", "rank 1", "rank 2", "rank 3"], False),
        (["took 1 s", "took 2 s", "took 3 s", "took 4 s"], ["took 5 s", "took 6 s", "took 7 s"], False),
        (["gpu 41%", "gpu 42%", "gpu 43%", "gpu 44%"], ["gpu 45%", "gpu 46%", "gpu 47%"], False),
        (["v1.1", "v1.2", "v1.3", "v1.4"], ["v1.5", "v1.6", "v1.7"], False),
        ([f"at 10:00:0{n}" for n in range(5)], [f"at 10:00:0{n}" for n in range(5, 9)], False),
        ([f"{'x' * 500} {n}" for n in range(5)], [f"{'x' * 500} {n}" for n in range(5, 9)], False),
    ],
)
def test_which_numbers_count(above: list[str], below: list[str], goes_on: bool) -> None:
    counters = Counters.above(above)
    assert [counters.go_on(text) for text in below][-1] == goes_on
