"""What whole programs of simulated ranks say before the detectors look at the calls up to the stall."""

import dataclasses
from array import array

from diagnostics.contract.findings import Group
from diagnostics.contract.mesh import Mesh
from dtk.preflight.calls import End, Program, Record
from dtk.preflight.evidence import evidence
from dtk.preflight.match import match
from dtk.preflight.verdict import divergence_of, explain
from tests.unit.preflight.programs import Step, blocking, entry, record

RANKS = (0, 1, 2, 3)
WORLD = Group("0", RANKS, "default_pg")
LOOP: list[Step] = [("call", 0, "all_gather", 8), ("call", 0, "all_reduce", 2)]
EXTRA: Step = ("call", 0, "barrier", -1)


def ranks(majority: list[Step], minority: list[Step], who: int = 2) -> dict[int, Record]:
    by_rank = {rank: record(rank, [WORLD], blocking(*majority)) for rank in RANKS if rank != who}
    shared = next(iter(by_rank.values())).program
    by_rank = {rank: dataclasses.replace(value, program=shared) for rank, value in by_rank.items()}
    return dict(sorted({**by_rank, who: record(who, [WORLD], blocking(*minority))}.items()))


def test_the_minority_and_the_call_that_it_adds() -> None:
    divergence = divergence_of(ranks([*LOOP, *LOOP], [*LOOP, EXTRA, *LOOP]), None)
    assert divergence is not None
    assert (divergence.kind, divergence.culprits, divergence.minority.seq) == ("added", (2,), 3)
    assert divergence.minority.text == "barrier [-1] float32 SUM"


def test_ranks_that_failed_are_explained_by_how_they_ended() -> None:
    records = ranks([*LOOP, *LOOP], LOOP)
    records[2] = dataclasses.replace(records[2], end=End("raised"))
    assert divergence_of(records, None) is None
    records[2] = dataclasses.replace(records[2], end=End("exited", code=3))
    assert divergence_of(records, None) is None


def test_sends_and_receives_are_no_part_of_the_comparison() -> None:
    """Rank 3 sends first; its calls are numbered as those of the others."""
    records = ranks([*LOOP, EXTRA, *LOOP], [*LOOP, *LOOP])
    send = entry(0, "send", p2p="send", peer=1)
    entries = (*records[3].program.entries, send)
    events = (len(entries) - 1).to_bytes(4, "little") + records[3].program.events
    records[3] = dataclasses.replace(
        records[3], program=dataclasses.replace(records[3].program, entries=entries, events=events)
    )
    divergence = divergence_of(records, None)
    assert divergence is not None
    assert (divergence.kind, divergence.culprits, divergence.majority.seq) == ("left_out", (2,), 3)


def test_lengths_that_do_not_fit() -> None:
    item = entry(0, "all_to_all", 2)._replace(sent=(4,), taken=(4,))
    pair = Group("0", (0, 1), "default_pg")
    records = {
        rank: dataclasses.replace(
            record(rank, [pair], blocking(EXTRA)),
            program=dataclasses.replace(record(rank, [pair], blocking(EXTRA)).program, entries=(call,)),
        )
        for rank, call in ((0, item), (1, item._replace(sent=(12, 4), sizes="[[4]]")))
    }
    outcome = match(records.values())
    divergence = divergence_of(records, outcome.misfit)
    assert divergence is not None
    assert (divergence.payload, divergence.minority_rank, divergence.culprits) == ((12, 4), 1, (0, 1))
    (root,) = explain(evidence(records, outcome.progress, {}), divergence, "a test").root_causes
    assert (root.cause, root.ranks) == ("hang.all_to_all_splits", (0, 1)), "of two ranks neither can be called wrong"


def test_stages_that_send_another_number_of_messages() -> None:
    """Of two steps, in the second of which the last stage sends one message less and continues."""
    pair = Group("0", (0, 1), "pp")

    def stage(rank: int, p2p: str, messages: int) -> Record:
        steps = [1, 1, *[2] * messages]
        calls = [entry(0, p2p, p2p=p2p, peer=1 - rank)._replace(step=step) for step in steps]
        result = [*calls, entry(0, "all_reduce")._replace(step=2)]
        entries = tuple(dict.fromkeys(result))
        events = [event for number, call in enumerate(result) for event in (entries.index(call), -1 - number)]
        return Record(rank, Program(entries, array("i", events).tobytes()), (pair,), End())

    records = {0: stage(0, "recv", 2), 1: stage(1, "send", 1)}
    outcome = match(records.values())
    value = evidence(records, outcome.progress, {}, Mesh(pp=2))
    (root,) = explain(value, divergence_of(records, outcome.misfit), "a test").root_causes
    assert (root.cause, root.ranks) == ("hang.pipeline_mismatch", (1,))
    (root,) = explain(evidence(records, outcome.progress, {}), None, "a script").root_causes
    assert root.cause == "hang.p2p_cycle", "of a script nobody says which ranks are stages"


def test_the_report_names_the_cause_the_ranks_and_the_line() -> None:
    records = ranks([*LOOP, *LOOP], [*LOOP, EXTRA, *LOOP])
    outcome = match(records.values())
    report = explain(evidence(records, outcome.progress, {}), divergence_of(records, None), "a test")
    (root,) = report.root_causes
    assert (root.cause, root.ranks, root.victims) == ("hang.conditional_collective", (2,), (0, 1, 3))
    assert (root.where[0].file, root.where[0].line) == ("/job/train.py", 14)
    assert [item.file for item in root.evidence] == ["simulated rank 0", "simulated rank 2"]
    assert (report.source, report.outcome, report.world_size) == ("a test", "hung", 4)
    assert [(row.kind, row.ranks_present, row.ranks_expected) for row in report.coverage] == [("simulation", 4, 4)]


def test_without_whole_programs_the_calls_up_to_the_stall_decide() -> None:
    records = ranks(LOOP, [("call", 0, "broadcast", 8), LOOP[1]])
    assert divergence_of(records, None) is None
    (root,) = explain(evidence(records, match(records.values()).progress, {}), None, "a test").root_causes
    assert (root.cause, root.ranks) == ("hang.collective_mismatch", (2,))
