"""Gathers the symptoms of a job from its log lines, exceptions, stacks and observations."""

import re
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Any

from diagnostics.analysis.environment.addresses import network_inside
from diagnostics.analysis.histories.watchdog_lines import read_all, stamp_s
from diagnostics.analysis.step_times import silence
from diagnostics.analysis.symptoms.absent import last_printed, possibly_late, silent, without_lines
from diagnostics.analysis.symptoms.state import EVENTS, FAILED, KINDS, MOST_SPECIFIC, OF_PEERS, OPENS, Symptoms, says
from diagnostics.analysis.symptoms.waits import all_waits, is_threaded, left_waiting, met_sizes, observed, others
from diagnostics.analysis.vote import behind
from diagnostics.contract.formatting import UNNAMED as NOBODY, Phrase
from diagnostics.contract.grouping import grouped
from diagnostics.evidence.endings import Ending, of_error
from diagnostics.evidence.job.rank_endings import left_first
from diagnostics.evidence.model import Evidence, LogFact, RankError, Stacks, shortened
from diagnostics.evidence.readers import ras
from diagnostics.evidence.readers.log import last_progress

_IN_GLOO = re.compile(r"\bgloo::|^c10d::Work::wait\b")  # NCCL's work has a wait of its own.
_CPP_FILE = re.compile(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\] ")


def symptoms(evidence: Evidence) -> Symptoms | None:
    """Return the state of a job that stands still; None if nothing shows that a rank waits, was lost or failed."""
    stops = {fact.file: fact.line for fact in evidence.facts[::-1] if fact.kind == "job_stopped"}
    kinds_sent = ("torchrun_signal", "stop_ignored")
    sent, ignored = ([at for f in evidence.facts if f.kind == kind and (at := stamp_s(f))] for kind in kinds_sent)
    held_s = max(ignored) - min(sent) if sent and ignored else 0.0  # After a launcher's signal ranks went on waiting.
    # Who was stopped loses its peers: that names no cause, and a wait only if it was longer than one of any step.
    stopped_at, went_on = {} if held_s else stops, last_progress(evidence)
    lines = [f for f in evidence.facts if f.kind not in OF_PEERS or f.line <= stopped_at.get(f.file, inf)]
    lines = [f for f in lines if f.kind not in EVENTS or f.line > went_on.get(f.file, 0)]
    kinds = frozenset(fact.kind for fact in lines)
    aborted = {NOBODY if error.rank is None else error.rank for error in evidence.errors if error.signal == "SIGABRT"}
    raised = (of_error(error, NOBODY if error.rank is None else error.rank) for error in evidence.errors if error.type)
    gave_up = [end for end in raised if end.kind in ("lost_peer", "timed_out")]
    before = [end for end in gave_up if end.line <= stops.get(end.file, inf)]
    victims = gave_up if held_s else before
    lost = [end for end in before if end.kind == "lost_peer"]
    bare = [error for error in evidence.errors if error.exit_code == 1 and not error.type]
    warned = [] if kinds & {"cuda_oom", "cpu_oom"} else [fact for fact in evidence.facts if fact.kind == "nccl_warn"]
    seen_waits, outside = observed(evidence, victims, held_s)
    says_little = not kinds & (OPENS | FAILED | {ras.LOST, ras.COUNTS})
    closings = left_first(evidence)
    notices, peers = KINDS["noticed"] | {fact.kind for fact in closings}, {fact.fields["process"] for fact in closings}
    noticed = [fact for fact in lines if says_little and not victims and fact.kind in notices]
    silent_steps = silence(evidence) if says_little and not (victims or seen_waits) else None  # Else others say more.
    silent_steps = None if silent_steps and silent_steps.may_be_zone else silent_steps
    if says_little and not (silent_steps or aborted or victims or bare or warned or seen_waits or outside or noticed):
        return None
    failures, groups, late = [fact for fact in lines if fact.kind in FAILED], read_all(evidence), possibly_late(victims)
    waits = all_waits(evidence, groups, [end for end in victims if (end.rank,) != late], seen_waits)
    side = [fact for fact in evidence.facts if fact.kind == "side_error"]
    of_gloo = any(kind.startswith("gloo_") for kind in kinds) or any(end.raised_by_gloo for end in victims)
    frames = (at for dump in evidence.stacks for own in dump.threads for at in own.frames)
    of_gloo = of_gloo or any(_IN_GLOO.search(at.function) for at in frames)
    return Symptoms(
        waits=tuple(sorted(waits, key=lambda wait: (bool(wait.behind), -len(wait.ranks), wait.seq or 0))),
        outside=outside,
        threaded=_ranks(dump for dump in evidence.stacks if is_threaded(dump)),
        others=tuple(progress for group in groups for progress in others(group)),
        silent=(quiet := () if evidence.is_cut or held_s else silent(evidence, groups, waits)),
        printed=last_printed(evidence, quiet),
        aborted=tuple(sorted(aborted)) if not waits else (),
        failed_silently=_ranks(bare) if not waits else (),
        has_unnamed_exit=any(error.rank is None for error in bare),
        kinds=kinds,
        silence=silent_steps,
        broken=_ranks(side, {rank for wait in waits for rank in wait.ranks}),
        failure=_failure(evidence, failures),
        warning=shortened(str(warned[0].fields.get("warning")), 160) if warned else "",
        failed=_ranks(failures),
        possibly_late=late,
        departed=tuple({fact.fields["local"] for fact in closings if (evidence.world_size or 0) <= len(peers) + 1}),
        side_error=next((shortened(fact.text.strip(), 80) for fact in side if fact.rank is None), ""),
        library="gloo" if of_gloo else "hccl" if any("hccl" in fact.fields for fact in lines) else "nccl",
        results=frozenset(str(fact.fields["result"]) for fact in failures if fact.kind == "nccl_result"),
        **without_lines(evidence, groups, waits, late),
        **_peers_lost(victims, lost, noticed),
        **met_sizes(evidence, lost),
        **_reported(evidence),
    )


def _ranks(records: Iterable[LogFact | RankError | Ending | Stacks], without: Collection[int] = ()) -> tuple[int, ...]:
    """Return the ranks that records name."""
    return tuple(sorted({record.rank for record in records if record.rank is not None} - {NOBODY, *without}))


def _failure(evidence: Evidence, failures: Sequence[LogFact]) -> str:
    """Return how NCCL or gloo failed, from its most specific line; empty if no line says so."""
    reasons = {fact.kind: str(fact.fields.get("error") or fact.fields.get("result")) for fact in reversed(failures)}
    failure = next((reasons[kind] for kind in MOST_SPECIFIC if kind in reasons), "")
    of_cuda = (fact.fields for fact in evidence.facts if fact.kind == "cuda_error" and "nccl" in fact.fields)
    reason = next((f"Cuda failure '{fields['error']}'" for fields in of_cuda), "")
    # NCCL's result only says that a call of CUDA failed; its own lines have CUDA's reason.
    return f"{failure}: {reason}" if reason and re.search("(?i)cuda ?error", failure) else failure


def _peers_lost(victims: Sequence[Ending], lost: Sequence[Ending], noticed: Sequence[LogFact]) -> dict[str, Any]:
    """Return the fields about ranks that lost a peer or timed out: from their exceptions, else from single lines."""
    texts = {fact.kind: str(fact.fields["what"]) for fact in reversed(noticed)}
    ends = [*lost, *(end for end in victims if end.kind == "timed_out")]
    texts |= {end.kind: _CPP_FILE.sub("", end.message) for end in reversed(ends)}
    lost_text = texts.get("lost_peer", texts.get("nccl_peer_left", texts.get("reached_barrier", "")))
    return {"lost": lost_text, "lost_peer": _ranks([*lost, *noticed]), "timed_out": texts.get("timed_out", "")}


def _reported(evidence: Evidence) -> dict[str, Any]:
    """Return the fields that lines of one kind each tell, whatever else the log holds."""
    of_kind = grouped((fact.kind, fact) for fact in evidence.facts)
    late = [set(fact.fields["ranks"]) for fact in (*of_kind["monitored_barrier"], *of_kind["missing_ranks"])]
    late = late or [{fact.fields["root"]} for fact in left_waiting(evidence)]
    late = late or [{*behind(fact.fields["launched"], fact.fields["size"])} for fact in of_kind[ras.COUNTS]]
    connects = of_kind["nccl_connect"]
    dead = (fact for fact in of_kind["worker_died"] if "stopped" not in fact.fields)
    return {
        "stuck_s": float(max((fact.fields.get("stuck_s") or 0 for fact in of_kind["monitor_stuck"]), default=0)),
        "stuck": _ranks(of_kind["monitor_stuck"]),
        "refused": any("refused" in str(fact.fields.get("why")) for fact in connects),
        "inside_node": next(filter(None, (network_inside("node", fact.fields.get("peer")) for fact in connects)), ""),
        "absent": tuple(sorted({fact.fields["root"] for fact in of_kind["nccl_id_timeout"]}.union(*late))),
        "limit_s": min((fact.fields["timeout_ms"] / 1000 for fact in of_kind["monitored_barrier"]), default=0.0),
        "unanswered": tuple(ras.unanswered(evidence)),
        "differ": next(map(_one_side, of_kind["calls_differ"]), ""),
        "worker_died": next((str(fact.fields["detail"]) for fact in dead), ""),
        "work": next((fact for fact in evidence.facts if fact.kind in ("host_work", "host_progress")), None),
    }


def _one_side(fact: LogFact) -> Phrase | str:
    if "call_a" in fact.fields:
        return says("called", rank=fact.fields["rank_a"], call=shortened(str(fact.fields["call_a"]), 60))
    return fact.fields.get("sizes") or says("around", rank=fact.fields.get("rank"))
