"""Which causes are likely by what a log shows: the clue decides, and probabilities are those of one whole."""

import pytest
from msgspec.structs import replace

from diagnostics.analysis.memory.out_of_memory import RanOut
from diagnostics.analysis.step_times import Silence
from diagnostics.analysis.symptoms.state import Progress, Symptoms, Waiting
from diagnostics.causes.suspicions import MOST, clues, of_memory, probabilities, suspected_of, suspicions
from diagnostics.contract.findings import EvidenceItem
from diagnostics.evidence.model import LogFact

WAIT = Waiting((0,), "all_reduce", 5000, 100_000, "default_pg", 4, 4999, 5000, 600.0, 600.0)


SAVES = LogFact("host_work", 0, "job.log", 9, "Saving model checkpoint", {"what": "Saving model checkpoint to out"})
ENDS = LogFact("host_work", 0, "job.log", 9, "{'train_runtime': 119.8}", {"ended": "train_runtime"})
PLACED = Waiting((0, 1, 2), "backward", members=4, waited_s=12.0, site="train.py:12")


def stands(*waits: Waiting, **more: object) -> Symptoms:
    return replace(Symptoms(waits, (), (), (), frozenset()), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("symptoms", "cause", "least"),
    [
        (stands(replace(WAIT, numel=1)), "hang.timeout_budget", 0.3),  # A barrier behind an evaluation or a save.
        (stands(replace(WAIT, numel=1), work=SAVES), "hang.timeout_budget", 0.6),
        (stands(replace(WAIT, numel=1), work=ENDS), "hang.conditional_collective", 0.4),
        (stands(replace(WAIT, seq=1, completed=-1, ranks=(0, 1, 2, 3))), "hang.startup", 0.5),
        (
            stands(replace(WAIT, op="broadcast", seq=1, completed=-1, ranks=(1, 2, 3)), silent=(0,)),
            "hang.host_stall",
            0.3,
        ),
        (stands(replace(WAIT, ranks=(0, 1, 2, 3))), "hang.network", 0.3),
        (stands(replace(WAIT, members=None), stuck_s=480.0), "hang.device_stall", 0.15),
        (stands(replace(WAIT, members=None, waited_s=25_000.0)), "hang.device_stall", 0.15),
        (stands(kinds=frozenset({"nccl_connect"}), refused=True), "env.wrong_interface", 0.3),
        (stands(kinds=frozenset({"nccl_peer_closed"})), "hang.rank_raised", 0.25),  # Of crashed peers, mostly.
        (stands(kinds=frozenset({"nccl_ib_async"})), "hang.network", 0.3),
        (stands(lost="Connection closed by peer [10.0.0.1]:9"), "hang.rank_raised", 0.3),
        (stands(results=frozenset({"ncclRemoteError"}), failure="ncclRemoteError"), "hang.rank_raised", 0.2),
        (stands(results=frozenset({"ncclSystemError"}), failure="ncclSystemError"), "hang.network", 0.3),
        (stands(results=frozenset({"ncclSystemError"}), inside_node="a loopback address"), "env.wrong_interface", 0.6),
        (stands(WAIT, replace(WAIT, ranks=(3,), numel=999)), "hang.signature_mismatch", 0.3),
        (stands(WAIT, replace(WAIT, op="broadcast", group="0", ranks=(3,))), "hang.collective_mismatch", 0.4),
        (stands(sizes="340 vs 4. Received data size"), "hang.conditional_collective", 0.4),
        (stands(sizes="1046204 vs 1040256"), "hang.signature_mismatch", 0.5),
        (stands(worker_died="Worker unexpectedly exits with a connection error code 2"), "memory.host", 0.4),
        (stands(differ="around rank 39, as NCCL says"), "hang.collective_mismatch", 0.3),
        (stands(absent=(4, 5)), "hang.host_stall", 0.2),  # Nothing tells of long work.
        (stands(absent=(4, 5), work=SAVES), "hang.timeout_budget", 0.3),
        (stands(absent=(4,), limit_s=9e7), "hang.rank_raised", 0.3),
        (stands(absent=(4,), kinds=frozenset({"uneven_load"})), "hang.uneven_iterations", 0.5),
        (
            stands(replace(PLACED, op="broadcast", site=""), replace(PLACED, ranks=(3,), op="all_reduce", site="")),
            "hang.conditional_collective",
            0.3,
        ),
        (stands(unlisted=(2,)), "hang.rank_exited", 0.3),
        (stands(replace(WAIT, seq=None), threaded=(0, 1)), "hang.group_order", 0.3),
        (
            stands(PLACED, replace(PLACED, op="barrier", ranks=(3,), site="train.py:30")),
            "hang.conditional_collective",
            0.3,
        ),
        (
            stands(replace(PLACED, ranks=(0,)), replace(PLACED, op="all_gather", ranks=(1,))),
            "hang.conditional_collective",
            0.3,
        ),
        (stands(PLACED, without_report=(3,)), "hang.host_stall", 0.5),
        (
            stands(replace(PLACED, op="broadcast_object_list", ranks=(0, 1), members=None)),
            "hang.signature_mismatch",
            0.4,
        ),
        (stands(replace(PLACED, op="broadcast", ranks=(0, 1, 2, 3))), "hang.signature_mismatch", 0.4),
        (stands(WAIT, replace(WAIT, ranks=(1,), seq=4000, enqueued=4000)), "hang.uneven_iterations", 0.3),
        (stands(WAIT, replace(WAIT, ranks=(1,), seq=4998, enqueued=5000)), "hang.collective_mismatch", 0.2),
    ],
)
def test_the_clue_decides(symptoms: Symptoms, cause: str, least: float) -> None:
    result = suspicions(symptoms)
    assert result[0].cause == cause and result[0].probability >= least
    assert result[0].speaks_for and result[0].decide


def test_what_several_causes_leave_makes_none_of_them_likely() -> None:
    for symptoms in (
        stands(kinds=frozenset({"nccl_ib_async"})),
        stands(lost="closed"),
        stands(kinds=frozenset({"nccl_peer_closed"})),
    ):
        assert suspicions(symptoms)[0].probability < 0.35
    port = stands(replace(WAIT, ranks=(0, 1, 2, 3)), kinds=frozenset({"nccl_ib_async"}))
    assert [suspicion.cause for suspicion in suspicions(port)[:2]] == ["hang.network", "network.link_fault"]
    assert "network.link_fault" not in [
        suspicion.cause for suspicion in suspicions(stands(replace(WAIT, ranks=(0, 1, 2, 3))))
    ]


def test_ranks_that_did_not_come_are_named() -> None:
    behind = stands(replace(WAIT, ranks=(0, 1)), others=(Progress((2, 3), "default_pg", 4999, 4999),))
    result = suspicions(behind)
    assert {item.cause for item in result} == {
        "hang.conditional_collective", "hang.uneven_iterations", "hang.host_stall"
    }  # fmt: skip
    assert all(
        item.ranks == (2, 3) and "ranks 2 and 3 completed all their calls" in item.speaks_for[-1] for item in result
    )


def test_the_fewer_ranks_in_another_call_are_named() -> None:
    most = replace(PLACED, op="all_reduce", site="")
    (first, *_) = suspicions(stands(most, replace(most, op="broadcast", ranks=(3,)), silent=(4, 5)))
    assert first.ranks == (3,)
    assert suspicions(stands(replace(most, ranks=(0,)), replace(most, op="broadcast", ranks=(3,))))[0].ranks == ()


def test_a_barrier_that_timed_out_counts_once() -> None:
    text = "[Rank 0]: Ranks 3 failed to pass monitoredBarrier in 1800000 ms"
    assert clues(stands(absent=(3,), timed_out=text)).keys() == {"absent"}


def test_who_gave_up_waiting_may_have_been_at_the_rendezvous() -> None:
    causes = {suspicion.cause for suspicion in suspicions(stands(timed_out="Socket Timeout"))}
    assert "hang.rendezvous" in causes and "hang.rendezvous" not in {
        suspicion.cause for suspicion in suspicions(stands(WAIT))
    }


def test_a_warning_of_horovod_is_no_timeout() -> None:
    warned = stands(absent=(1,), kinds=frozenset({"missing_ranks"}))
    assert suspicions(warned)[0].cause == "hang.host_stall"
    assert "hang.rank_exited" not in {suspicion.cause for suspicion in suspicions(stands(absent=(1,)))}


def test_what_speaks_against_it_is_told() -> None:
    (suspicion,) = (item for item in suspicions(stands(WAIT)) if item.cause == "hang.uneven_iterations")
    against = [item.speaks_against for item in suspicions(stands(replace(WAIT, op="broadcast"))) if item.speaks_against]
    assert "gradients" in suspicion.speaks_for[0] and not against


def test_probabilities_are_those_of_one_whole() -> None:
    for symptoms in (stands(WAIT), stands(replace(WAIT, numel=1), stuck_s=4.0), stands(refused=True)):
        result = suspicions(symptoms)
        assert len(result) <= MOST and sum(item.probability for item in result) < 1
        assert [item.probability for item in result] == sorted((item.probability for item in result), reverse=True)
        assert sum(probabilities(clues(symptoms)).values()) < 1, "the rest is for causes that the table does not name"


def test_nothing_is_suspected_without_a_clue_or_against_what_is_ruled_out() -> None:
    assert suspicions(stands(Waiting((), "a gloo recv"))) == ()
    first = suspicions(stands(WAIT))[0].cause
    assert first not in [suspicion.cause for suspicion in suspicions(stands(WAIT), [first])]


def test_every_clue_that_a_cause_weighs_can_be_shown() -> None:
    everything = [
        stands(replace(WAIT, numel=1, seq=1, completed=-1, ranks=(1, 2, 3)), silent=(0,), stuck_s=4.0, refused=True),
        stands(replace(WAIT, ranks=(0, 1, 2, 3), waited_s=9000.0, enqueued=5009), kinds=frozenset({"link_down"})),
        stands(replace(WAIT, op="broadcast", waited_s=0.1, timeout_s=0.05), broken=(3,)),
        stands(replace(WAIT, op="all_gather", ranks=(0, 1)), others=(Progress((2, 3), "default_pg", 4999, 4999),)),
        stands(WAIT, replace(WAIT, ranks=(1,), seq=4000, enqueued=4000)),
        stands(WAIT, replace(WAIT, ranks=(1,), seq=4998, enqueued=5000)),
        stands(results=frozenset({"ncclSystemError", "ncclRemoteError"}), inside_node="loopback", lost="closed"),
        stands(absent=(4,), limit_s=9e7, kinds=frozenset({"uneven_load"})),
        stands(sizes="4096 vs 8"),
        stands(replace(WAIT, ranks=(1, 2, 3)), silent=(0,)),
        stands(sizes="1046204 vs 1040256"),
        stands(timed_out="wait timeout after 300000ms, keys: /ready"),
        stands(worker_died="Worker unexpectedly exits with a connection error code 2"),
        stands(WAIT, replace(WAIT, ranks=(3,), numel=999)),
        stands(WAIT, replace(WAIT, op="broadcast", group="0", ranks=(3,))),
        stands(differ="rank 0 called OpType=BROADCAST"),
        stands(WAIT, work=SAVES),
        stands(WAIT, work=ENDS),
        stands(replace(WAIT, members=None, ranks=(0, 1))),
        stands(PLACED, replace(PLACED, op="barrier", ranks=(3,), site="train.py:30")),
        stands(PLACED, without_report=(3,)),
        stands(replace(PLACED, op="broadcast", ranks=(0, 1, 2, 3))),
        stands(PLACED, silent=(3,), side_error="KeyError: 'tokens'"),
        stands(sizes="900 vs 4", peer_calls=(PLACED,), of_model=True),
        stands(sizes="136 vs 120", peer_calls=(replace(PLACED, op="all_gather"),)),
        stands(sizes="8 vs 4"),
        stands(sizes="9 vs 4", peer_calls=(PLACED,), statements=1),
        stands(unlisted=(2,)),
        stands(threaded=(0, 1)),
        stands(unanswered=(21,)),
        stands(absent=(1,), kinds=frozenset({"missing_ranks"})),
        stands(silence=Silence("train.log", 9, "step 9", 7200.0, 60.0, of_ranks=True)),
        stands(kinds=frozenset({"oom_killer", "task_blocked"})),
        stands(WAIT, library="gloo"),
    ]
    assert {name for symptoms in everything for name in clues(symptoms)} == {
        name for row in suspected_of("end").values() for name in row.clues
    }


def test_a_size_that_no_line_tells_is_no_second_size() -> None:
    assert "two_sizes" not in clues(stands(WAIT, replace(WAIT, ranks=(3,), numel=None)))
    assert "two_sizes" in clues(stands(WAIT, replace(WAIT, ranks=(3,), numel=999)))


def test_a_rank_on_whose_device_another_one_waits_is_one_call_behind_at_most() -> None:
    def likely(seq: int) -> dict[str, float]:
        apart = stands(WAIT, replace(WAIT, ranks=(1,), seq=seq, enqueued=5000))
        return probabilities(clues(apart))

    assert likely(4999)["hang.device_stall"] > 0.2 > likely(4998)["hang.device_stall"]
    assert likely(4998)["hang.collective_mismatch"] > likely(4999)["hang.collective_mismatch"]


@pytest.mark.parametrize(
    ("seq", "more", "compared"),
    [
        (4998, (), True),
        (40, (), False),  # Of another group: each counts for itself.
        (4998, (replace(WAIT, ranks=(2,), group="tp"),), False),  # It may be one of either.
    ],
)
def test_a_wait_whose_group_no_line_names_is_compared_with_the_only_named_group(seq, more, compared) -> None:  # type: ignore[no-untyped-def]
    apart = stands(WAIT, *more, replace(WAIT, ranks=(1,), seq=seq, completed=None, enqueued=None, group=""))
    assert ("positions_differ" in clues(apart)) is compared


@pytest.mark.parametrize(
    ("requests", "free", "steps", "likeliest"),
    [
        (29 << 30, 28 << 30, 0, {"memory.activations"}),  # What it held is far less than what one tensor asks for.
        (1 << 30, 0, 0, {"memory.activations", "memory.model_states"}),
        (1 << 30, 0, 9, {"memory.activations", "memory.leak"}),
    ],
)
def test_what_took_a_devices_memory(requests: int, free: int, steps: int, likeliest: set[str]) -> None:
    record = RanOut(0, "cuda", EvidenceItem("log", "job.log", "x"), requests, 40 << 30, free, 10 << 30)
    suspicions = of_memory([record], steps)
    assert {suspicion.cause for suspicion in suspicions[:2]} == likeliest
    assert len({suspicion.speaks_for for suspicion in suspicions}) == len(suspicions), "each has a reason of its own"


@pytest.mark.parametrize(("device", "asks"), [("CUDA", "_dump_snapshot"), ("MPS backend", "torch.mps")])
def test_what_decides_who_took_the_memory_depends_on_the_device(device: str, asks: str) -> None:
    item = EvidenceItem("log", "job.log", f"RuntimeError: {device} out of memory. Tried to allocate 2 GiB")
    assert all(asks in suspicion.decide for suspicion in of_memory([RanOut(0, "cuda", item, 2 << 30)]))


def test_what_two_sizes_mean_depends_on_the_call_of_the_others() -> None:
    of_model = suspicions(stands(sizes="2860 vs 2816", aborted=(0,), peer_calls=(PLACED,), of_model=True))
    assert (of_model[0].cause, of_model[0].ranks) == ("hang.conditional_collective", (0,))
    assert "hang.signature_mismatch" not in [item.cause for item in of_model]
    own = suspicions(stands(sizes="136 vs 120", aborted=(2,), peer_calls=(replace(PLACED, op="all_gather"),)))
    assert (own[0].cause, own[0].ranks) == ("hang.signature_mismatch", ())


def test_gloo_is_not_asked_for_lines_of_nccl_or_a_device() -> None:
    wait = replace(PLACED, ranks=(0, 1), members=2)
    of_gloo = suspicions(stands(wait, library="gloo"))
    assert all("NCCL" not in item.decide and "dmesg" not in item.decide for item in of_gloo)
    assert any("NCCL" in suspicion.decide for suspicion in suspicions(stands(wait)))


def test_a_size_twice_the_other_is_of_another_dtype() -> None:
    assert suspicions(stands(sizes="8 vs 4"))[0].cause == "hang.signature_mismatch"
    assert suspicions(stands(sizes="12 vs 4"))[0].cause != "hang.signature_mismatch"


def test_ranks_that_all_receive_are_not_in_one_collective() -> None:
    receive = replace(PLACED, op="recv", members=None)
    assert "seems_whole" not in clues(stands(receive)) and "seems_whole" in clues(
        stands(replace(receive, op="barrier"))
    )
