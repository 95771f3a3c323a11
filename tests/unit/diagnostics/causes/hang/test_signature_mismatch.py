"""The same operation with other arguments."""

from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.report.symptoms import headline
from tests.unit.diagnostics.causes.hang.helpers import STEP, finding, job
from tests.unit.diagnostics.hang.dumps import Op

CAUSE = "hang.signature_mismatch"


@pytest.mark.parametrize("uneven", [Op(size=9, line=12), Op(dtype="Half", line=12)])
def test_the_rank_with_other_arguments_is_blamed(tmp_path: Path, uneven: Op) -> None:
    result = finding(tmp_path, job(*[[*STEP, uneven if rank == 1 else Op(line=12)] for rank in range(4)]), CAUSE)
    assert (result.status, result.ranks, result.position) == ("confirmed", (1,), 3)
    assert (
        result.summary.startswith("Rank 1 calls all_reduce")
        and "where ranks 0, 2 and 3 have all_reduce [8]" in result.summary
    )
    assert result.remedies[0].change == "use the same shape, dtype, root and ReduceOp on every rank at /job/train.py:12"


def test_another_operation_is_not_another_argument(tmp_path: Path) -> None:
    result = finding(tmp_path, job([Op(line=3)], [Op("broadcast", line=4)], [Op(line=3)]), CAUSE)
    assert (result.status, result.summary) == (
        "ruled_out",
        "The ranks issue different operations at position 1 of group default_pg.",
    )


def test_where_all_completed_root_and_operator_are_not_in_the_dumps(tmp_path: Path) -> None:
    result = finding(tmp_path, job(STEP, STEP), CAUSE)
    assert result.status == "ruled_out" and "root and ReduceOp are not in these dumps" in result.summary


def test_evidence_from_details_message_names_its_source(tmp_path: Path) -> None:
    """Rank 1 compares itself with ranks 0, 1, 2, ... and reports the first that differs, so rank 0 agrees with it."""
    own, peer = (f"SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[{size}], TensorDtypes=Float" for size in (8, 9))
    text = "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    text += f"CollectiveFingerPrint({own}), but Rank 2 is running collective: CollectiveFingerPrint({peer})."
    (tmp_path / "job.log").write_text(text + "\n")
    (root,) = diagnose(tmp_path).root_causes
    seen = [str(item.detail) for item in root.evidence if not item.line]
    assert root.ranks == (2,) and [detail.partition(":")[0] for detail in seen] == ["rank 0", "rank 2"]
    assert all(detail.endswith("by torch's message, which names the first rank that differs") for detail in seen)


def test_gloos_own_text_alone_blames_nobody(tmp_path: Path) -> None:
    """The rank that aborts is the one that met the wrong size, not the one that brought it."""
    abort = "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce fail at "
    abort += "../third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 48 vs 32\n"
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n" + abort)
    report = diagnose(tmp_path)
    assert (report.outcome, report.root_causes) == ("undecided", ())
    suspected = {suspicion.cause: suspicion for suspicion in report.suspicions}
    assert {CAUSE, "hang.conditional_collective", "hang.uneven_iterations"} == {*suspected}
    assert suspected[CAUSE].ranks == () and suspected[CAUSE].decide.startswith("dtk watch -- ")


OBJECTS = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 8, in share
[rank1]:     dist.broadcast_object_list(objects, src=0)
[rank1]:   File "/env/torch/distributed/distributed_c10d.py", line 4039, in broadcast_object_list
[rank1]:     object_tensor = torch.empty(
[rank1]: {}
[rank0]: Traceback (most recent call last):
[rank0]:   File "/job/train.py", line 8, in share
[rank0]:     dist.broadcast_object_list(objects, src=0)
[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:23201
"""
ALLOCATION = "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (f"{ALLOCATION}you tried to allocate 762245855986058190 bytes. Error code 12", CAUSE),
        ("RuntimeError: Trying to create tensor with negative dimension -7384: [-7384]", CAUSE),
        (f"{ALLOCATION}you tried to allocate 52428800000 bytes. Error code 12", "memory.host"),
        ("TypeError: bad object", "hang.rank_raised"),
    ],
)
def test_a_size_of_objects_that_no_memory_holds_is_none(tmp_path: Path, error: str, cause: str) -> None:
    """A list of another length: the receiver takes what follows the sizes for sizes."""
    (tmp_path / "job.log").write_text(OBJECTS.format(error))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks or root.victims) == (cause, (1,))


def test_a_size_that_the_users_own_code_computed_wrongly_is_its_error(tmp_path: Path) -> None:
    error = f"{ALLOCATION}you tried to allocate 762245855986058190 bytes."
    (tmp_path / "job.log").write_text(
        f'[rank1]: Traceback (most recent call last):\n[rank1]:   File "/job/a.py", line 8, in f\n[rank1]: {error}\n'
    )
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == ("hang.rank_raised", (1,))


def met(rank: int, received: int, own: int) -> str:
    return (
        f"[rank{rank}]:   what():  [enforce fail at ../third_party/gloo/gloo/transport/tcp/pair.cc:446] "
        f"op.preamble.length <= op.nbytes. {received} vs {own}\n"
    )


WORLD = "global_world_sizes=[4]\n"


@pytest.mark.parametrize(
    ("text", "uneven"),
    [
        (WORLD + met(1, 48, 32) + met(2, 48, 32) + met(3, 48, 32), (0,)),  # The peer of all of them.
        (met(1, 48, 32) + met(2, 48, 32) + met(3, 32, 48), (3,)),
        (met(1, 48, 32) + met(2, 48, 32) + met(3, 48, 32), ()),  # Of how many ranks?
        (WORLD + met(1, 48, 32) + met(2, 48, 32), ()),  # Of rank 0 or 3.
        (met(1, 48, 32) + met(2, 32, 48), ()),
        (met(1, 48, 32) + met(2, 48, 32) + met(3, 32, 24), ()),  # Three sizes: of more than one call.
    ],
)
def test_the_sizes_of_several_ranks_vote(tmp_path: Path, text: str, uneven: tuple[int, ...]) -> None:
    (tmp_path / "job.log").write_text("step 1 loss 2.0\n" + text)
    report = diagnose(tmp_path)
    assert (report.root_causes, report.suspicions[0].ranks) == ((), uneven)
    assert report.waiting is not None and uneven == report.waiting.mismatched
    assert headline(report.waiting).startswith(f"gloo ended a process: {'the size of rank' if uneven else 'two ranks'}")
