"""An all_to_all in which a rank expects another number of rows of a peer than that peer sends."""

import pytest

from diagnostics.analysis.pairwise import pairs
from diagnostics.causes.hang import all_to_all_splits
from diagnostics.contract.findings import text_of
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.ring_bytes import RingCall, ring


def exchange(sent, expected):
    return RingCall("all_to_all_single", splits=(sent, expected), sizes=([sum(sent), 8], [sum(expected) or 16, 8]))


def splits(differing=(2, 2, 2, 2), rank=2, world=4):
    """Rings of ranks that exchange four rows each, and one of which expects others."""
    even = [4] * world
    calls = {r: [RingCall("all_reduce"), exchange(even, list(differing) if r == rank else even)] for r in range(world)}
    return {f"flight/rank_{r:05d}.ring": ring(r, world, calls[r]) for r in calls}


def decide(cause, files, folder):
    Example(lambda: files).write(folder)
    (result,) = cause.CAUSE.decide(cause.CAUSE.facts(gather(folder, Limits())))
    assert text_of(result).summary
    return result


def test_the_rank_that_fits_none_of_its_peers_is_to_blame(tmp_path):
    finding = decide(all_to_all_splits, splits(), tmp_path)
    assert (finding.status, finding.ranks, finding.victims, finding.position) == ("confirmed", (2,), (0, 1, 3), 2)
    assert "rank 0 sends 4 to rank 2, which expects 2" in text_of(finding).summary
    assert next((w.rank, w.file, w.line) for w in finding.where) == (2, "/job/train.py", 12)


def test_one_pair_that_does_not_fit_is_a_tie(tmp_path):
    finding = decide(all_to_all_splits, splits(differing=(3, 4, 4, 4)), tmp_path)
    assert finding.ranks == (0, 2) and "it is not known which side is wrong" in text_of(finding).summary


@pytest.mark.parametrize("differing", [(4, 4, 4, 4), ()])
def test_splits_that_fit_rule_it_out(tmp_path, differing):
    """Also uneven ones that fit pair by pair, and none at all, which stand for even ones."""
    files = splits(differing=differing, world=4)
    assert decide(all_to_all_splits, files, tmp_path).status == "ruled_out"
    uneven = {0: exchange([1, 3], [1, 2]), 1: exchange([2, 2], [3, 2])}
    files = {f"flight/rank_{r:05d}.ring": ring(r, 2, [call]) for r, call in uneven.items()}
    assert decide(all_to_all_splits, files, tmp_path / "uneven").status == "ruled_out"


def test_without_rings_it_is_open(tmp_path):
    (result,) = all_to_all_splits.CAUSE.decide(pairs(Evidence(root=tmp_path, limits=Limits())))
    assert result.status == "undecided" and text_of(result).missing


EXAMPLES = {"hang.all_to_all_splits": Example(splits, (2,))}
