"""`checkpoint.mismatch`: a checkpoint does not fit the model, optimizer or number of ranks that it is loaded into."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from diagnostics.contract.causes import Cause
from diagnostics.contract.findings import EvidenceItem, Figures, Finding, Remedy, Text, Where
from diagnostics.contract.formatting import counted, ranks_spoken, sentence
from diagnostics.evidence.calls import is_library
from diagnostics.evidence.model import Evidence, shortened

ID = "checkpoint.mismatch"
_MODEL = re.compile(r"Error\(s\) in loading state_dict for (?P<what>\w+)")
_TEXTS = (
    _MODEL,
    re.compile(r"Missing key in checkpoint state_dict: (?P<what>\S+)"),
    re.compile(r"Size mismatch between saved \S+(?: \S+)*? and current: .* for (?P<what>\S+)"),
    re.compile(
        r"loaded state dict (?:contains a parameter group that doesn't match|has a different number of parameter)"
    ),
    re.compile(r"checkpoint being loaded used a DP world size of \d+ but the current world size is \d+"),
    re.compile(r"(?P<what>\w+) value from checkpoint \(.*?\) is not equal to the input argument value"),
)
"""torch.nn, torch.distributed.checkpoint (twice), torch.optim, DeepSpeed, Megatron-LM."""
_SIZE = re.compile(
    r"size mismatch for (?P<key>[\w.]+): copying a param with shape torch\.Size\(\[(?P<saved>[\d, ]*)\]\) from "
    r"checkpoint, the shape in current model is torch\.Size\(\[(?P<own>[\d, ]*)\]\)"
)
_KEYS = re.compile(r"(?P<which>Missing|Unexpected) key\(s\) in state_dict: (?P<keys>\"[^\n]*)")
_NAME = re.compile(r'"([^"\n]{1,300})"')


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What does not fit."""

    said: str
    """The text that says so."""
    missing: int
    unexpected: int
    prefix: str
    """In front of every key of the checkpoint, or (with a minus) of the model."""
    sizes: tuple[tuple[str, str, str], ...]
    """Key, its size in the checkpoint, in the model."""

    def text(self, finding: Finding) -> Text:
        """Say what does not fit, and how to make it fit."""
        who = f"{sentence(ranks_spoken(finding.ranks))} loaded" if finding.ranks else "The program loaded"
        parts = [
            f"{self.missing} keys are missing" if self.missing else "",
            f"{self.unexpected} unexpected" * bool(self.unexpected),
        ]
        parts += [
            f"{key} has [{saved}] in the checkpoint and [{own}] in the model" for key, saved, own in self.sizes[:2]
        ]
        told = "; ".join(filter(None, parts)) or self.said
        remedy = Remedy(
            "code",
            "build the model, the optimizer and the number of ranks that the checkpoint was saved with",
            "names and sizes are compared one by one",
        )
        if self.prefix:
            side, other = ("model", "checkpoint") if self.prefix.startswith("-") else ("checkpoint", "model")
            told += f": the {side}'s keys begin with {self.prefix.removeprefix('-')!r}, the {other}'s do not"
            remedy = Remedy(
                "code",
                "save and load the same wrapper: model.module.state_dict() under DDP, model._orig_mod under compile, "
                "or torch.distributed.checkpoint.state_dict.get_model_state_dict, which leaves such prefixes out",
                "a wrapper puts its name in front of every key",
            )
        elif self.sizes:
            remedy = Remedy(
                "code",
                f"make {self.sizes[0][0]} the same size before loading (resize_token_embeddings, num_labels, the same "
                "configuration), or leave it out of the checkpoint",
                "the other parameters fit",
            )
        return Text(
            summary=f"{who} a checkpoint that does not fit: {told}.",
            measured=counted(len(finding.evidence), "record"),
            remedies=(remedy,),
        )


def _evidence(evidence: Evidence) -> Evidence:
    return evidence


def decide(evidence: Evidence) -> list[Finding]:
    """Decide from what the loaders of torch, DeepSpeed and Megatron raise. What the program caught does not count."""
    errors = [error for error in evidence.errors if _said(error.message)]
    keys = [fact for fact in evidence.facts if fact.kind == "checkpoint_key"]
    if not errors and not keys:
        facts = Figures("No exception says that a checkpoint does not fit.", {}, "the stderr of every rank")
        return [Finding(cause=ID, status="undecided", facts=facts, confidence=0.0)]
    said = _said(errors[0].message) if errors else keys[0].text
    message = errors[0].message if errors else ""
    lists = {match["which"]: _NAME.findall(match["keys"]) for match in _KEYS.finditer(message)}
    missing, unexpected = lists.get("Missing", []), lists.get("Unexpected", [])
    sizes = tuple((match["key"], match["saved"], match["own"]) for match in _SIZE.finditer(message))
    own = next((frame for error in errors for frame in error.frames if not is_library(frame.file)), None)
    items = [EvidenceItem("error", one.file, shortened(one.message, 200), one.line or None) for one in errors[:4]]
    items += [EvidenceItem("log", fact.file, fact.text, fact.line) for fact in keys[:4]]
    ranks = {error.rank for error in errors} | {fact.rank for fact in keys}
    return [
        Finding(
            cause=ID,
            status="confirmed",
            facts=Mismatch(said, len(missing), len(unexpected), _prefix(missing, unexpected), sizes),
            confidence=0.95,
            ranks=tuple(sorted(rank for rank in ranks if rank is not None)),
            where=(Where(errors[0].rank, own.file, own.line, own.function, "loads the checkpoint"),) if own else (),
            evidence=tuple(items),
        )
    ]


def _said(message: str) -> str:
    """Return the text of a loader in a message; empty without one."""
    return next((found.group() for pattern in _TEXTS if (found := pattern.search(message))), "")


def _prefix(missing: Iterable[str], unexpected: Iterable[str]) -> str:
    """Return what stands in front of all keys of one side alone, with a minus where it is the model's."""
    for sign, short, long in (("", [*missing], [*unexpected]), ("-", [*unexpected], [*missing])):
        front = long[0].removesuffix(short[0]) if short and long and long[0].endswith(short[0]) else ""
        if front and all(key.startswith(front) for key in long):
            return sign + front
    return ""


CAUSE = Cause(
    id=ID,
    title="a checkpoint does not fit what it is loaded into",
    outcome="crashed",
    branch="crash",
    facts=_evidence,
    decide=decide,
    decided_from="exceptions of load_state_dict, torch.distributed.checkpoint, DeepSpeed and Megatron-LM",
    remedy="save and load the same wrapper; the same sizes, optimizer and number of ranks",
    source="torch/nn/modules/module.py, torch/distributed/checkpoint/default_planner.py, pytorch#148252",
)
