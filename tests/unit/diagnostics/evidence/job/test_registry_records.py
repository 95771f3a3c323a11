"""What there is of each kind, and why nothing of it could be used."""

from pathlib import Path

from diagnostics.evidence.job.registry import absent_without, damaged, records, unused
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence, LogFact, Problem, RankError, RunEvidence, Stacks


class File:
    def __init__(self, file, fails=True):
        self.file, self.rank, self.fails = file, 0, fails

    def load(self):
        if self.fails:
            raise ValueError("damaged")


def evidence(**fields):
    return Evidence(Path("/job"), Limits(), **fields)


def test_records_are_sorted_by_kind():
    handle, error = File("a"), RankError(0, "error.json", 0, "ValueError", "bad")
    stacks, start = Stacks(0, "stacks.txt", ()), LogFact("start", 0, "start.json", 0, "")
    oom = LogFact("cuda_oom", 0, "train.log", 3, "out of memory")
    by_kind = records(evidence(files={"flight": [handle], "simulation": [1]}, errors=[error], stacks=[stacks],
                               facts=[start, oom]))  # fmt: skip
    assert by_kind["flight"] == [handle]
    assert (by_kind["error"], by_kind["stacks"]) == ([error], [stacks])
    assert (by_kind["start"], by_kind["log"]) == ([start], [oom])
    assert by_kind["simulation"] == [1], "a history that was never a file"
    assert by_kind["trace"] == []


def test_what_a_rank_lacks_that_left_no_file():
    assert absent_without("flight") == "dump"
    assert absent_without("log") == "", "not every rank writes one"
    assert absent_without("simulation") == "simulation"
    assert absent_without("unheard_of") == ""


def test_problems_of_files_and_those_by_which_nothing_is_lost():
    lost, kept = Problem("flight", "a", "cut off"), Problem("flight", "b", "a copy", harmless=True)
    doubt = Problem("file", ".", "files of different jobs are mixed")
    job = evidence(problems=[lost, kept, doubt, Problem("step_records", "metrics.jsonl", "cut off")])
    assert damaged(job) == [lost, job.problems[3]]
    assert damaged(job, harmless=True) == [lost, kept, job.problems[3]]


def test_nothing_could_be_used_only_if_every_file_is_damaged():
    problems = [Problem("flight", "a", "cut off"), Problem("flight", "b", "cut off")]
    both = evidence(files={"flight": [File("a"), File("b")]}, problems=problems)
    assert unused(both) == problems
    assert unused(evidence(files={"flight": [File("a"), File("c")]}, problems=problems)) == [], "one was never bad"
    usable = evidence(files={"flight": [File("a"), File("b", fails=False)]}, problems=problems)
    assert unused(usable) == [], "the complaint was about its end only"


def test_errors_facts_stacks_and_a_run_are_of_use():
    files, problems = {"flight": [File("a")]}, [Problem("flight", "a", "cut off")]
    error = RankError(0, "error.json", 0, "ValueError", "bad")
    run = RunEvidence(Path("/job"), None, {}, {}, {}, {}, {}, {})
    assert unused(evidence(files=files, problems=problems))
    for more in ({"errors": [error]}, {"facts": [LogFact("k", 0, "f", 1, "")]}, {"stacks": [Stacks(0, "f", ())]},
                 {"run": run}):  # fmt: skip
        assert unused(evidence(files=files, problems=problems, **more)) == []
