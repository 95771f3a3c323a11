"""Causes reported by NCCL, torch, the kernel and others, each with a table of message patterns."""

import re
from collections.abc import Iterator

from msgspec import Struct

from diagnostics.analysis.stall.explain import Stall, explain
from diagnostics.analysis.symptoms.state import ended_by, is_warning
from diagnostics.causes.declared import Texts, declared
from diagnostics.contract.causes import Cause
from diagnostics.contract.files import table_beside
from diagnostics.contract.findings import CITED, LEVEL, STATED, SUSPECTED, EvidenceItem, Finding, Remedy, confirmed
from diagnostics.contract.formatting import Phrase, bytes_text
from diagnostics.evidence.model import CLAUSE, Evidence, shortened

_TEXTS = Texts(__file__)
_STDERR = _TEXTS.phrase("stderr")

_ANY_KIND = ("nccl_warn", "dist_backend_error")  # Kinds of log lines that may quote any of these messages.
_Case = dict[str, str]


class _Line(Struct, frozen=True):
    """A log line, or an exception message, that names the cause."""

    rank: int | None
    item: EvidenceItem
    case: _Case
    fields: dict[str, str]
    """Groups of the case's pattern; groups ending in `_bytes` are formatted, such as `9.19 MiB`."""


def failure_cause(file: str) -> Cause[Stall]:
    """Return the cause defined by the table next to a module; see `container_limits.yaml` for its format."""
    table = table_beside(file)
    cases = [(re.compile(case["pattern"]), case) for case in table["cases"]]

    def named(text: str, shown: str, rank: int | None, file: str, line: int) -> Iterator[_Line]:
        for pattern, case in cases:
            if match := pattern.search(text):
                fields = {
                    name: bytes_text(int(text)) if name.endswith("_bytes") and text else (text or "").strip()[:CLAUSE]
                    for name, text in match.groupdict().items()
                }
                item = EvidenceItem("log", file, shortened(shown or match.group()), line or None)
                yield _Line(rank, item, case, fields)
                return

    def lines(job: Evidence) -> Iterator[_Line]:
        for fact in job.facts:
            if fact.kind in (*table["kinds"], *_ANY_KIND):
                yield from named(fact.text, fact.text, fact.rank, fact.file, fact.line)
        for error in job.errors:
            at = f" in {error.frames[0].function}" if error.frames else ""
            yield from named(f"{error.type}: {error.message}{at}", "", error.rank, error.file, error.line)

    def decide(stall: Stall) -> Finding:
        job, elsewhere = stall.job.evidence, table.get("elsewhere", "")
        has_messages = bool(job.facts or job.errors or job.run is not None)
        said = "\n".join(fact.text for fact in job.facts if fact.kind in (*_ANY_KIND, "nccl_version"))
        excluded = [case for _, case in cases if "unless" in case and re.search(case["unless"], said)]
        excluded += [case for _, case in cases if not re.search(case.get("beside", ""), said)]
        matches = [line for line in lines(job) if line.case not in excluded]
        if not matches and has_messages and not elsewhere:
            return _TEXTS.ruled_out()
        if not matches:
            return _TEXTS.undecided(["unsaid" if has_messages else "no_log", "ask"], elsewhere=elsewhere or _STDERR)
        stated = {
            int(number) for line in matches for name in table.get("ranks", ()) if (number := line.fields.get(name))
        }
        ranks = tuple(sorted(stated or {line.rank for line in matches if line.rank is not None}))
        every = tuple(line.item for line in matches)
        case, who = matches[0].case, _TEXTS.phrase("who", who=ranks or _TEXTS.phrase("process"))
        summary = Phrase("summary", case["summary"], {**matches[0].fields, "who": who, "ranks": ranks})
        fix = Remedy("code" if "kind" in case else "environment", case["change"], case["why"])
        facts = _TEXTS.facts("confirmed", summary=summary, count=len(matches), fixes=(fix,))
        sure = max(LEVEL.get(line.case.get("confidence", ""), STATED) for line in matches)
        if all(is_warning(str(item.detail)) for item in every):
            ended = {*map(ended_by(stall.job), (item.file for item in every), (item.line or 0 for item in every))}
            if ended == {False}:
                return _TEXTS.undecided("warned", summary=summary)
            sure = sure if True in ended else SUSPECTED
        return confirmed(facts=facts, confidence=sure, ranks=ranks, evidence=every[:CITED])

    return declared(file, explain, decide)


CAUSE_OF = failure_cause
