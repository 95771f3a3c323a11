"""Ranks that stand in different collectives by their stacks alone, which leaves three causes open."""

from diagnostics.analysis.stall.explain import Stall
from diagnostics.analysis.stall.stack_evidence import DifferentCollectives, InCollective
from diagnostics.contract.findings import Finding, Text, worded
from diagnostics.contract.formatting import file_name, ranks_spoken, sentence, verb


def _words(finding: Finding, case: DifferentCollectives) -> Text:
    few, many = case.few, case.many
    here, there = (described(case.inside[ranks[0]]) for ranks in (few, many))
    return Text(
        summary=(
            f"{sentence(ranks_spoken(few))} {verb(few, 'is', 'are')} in {here} while {ranks_spoken(many)} "
            f"{verb(many, 'is', 'are')} in {there}. Which calls came before is not recorded: fewer steps, "
            "a call left out, one added, or another branch all end like this."
        ),
        missing=(
            f"the calls before {here} on {ranks_spoken(few)} and {there} on {ranks_spoken(many)}: dtk watch -- "
            "torchrun ..., or under NCCL TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=/tmp/flight_rank_"
        ),
    )


def described(place: InCollective) -> str:
    """Return `barrier (train.py:25)`."""
    at = f" ({file_name(place.site.file)}:{place.site.line})" if place.site else ""
    return (place.op or "a wait of which no stack was taken") + at


def findings(stall: Stall, cause: str) -> list[Finding]:
    """Return why this cause is open, where stacks show two collectives."""
    case = stall.stacks
    if not isinstance(case, DifferentCollectives):
        return []
    victims = tuple(sorted(case.inside))
    return [Finding(cause=cause, status="undecided", facts=worded(_words, case=case), confidence=0.0, victims=victims)]
