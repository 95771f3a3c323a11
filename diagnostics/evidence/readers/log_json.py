"""JSON whose lines are read as those of a log: of `kubectl get -o json`, `sacct --json` and `journalctl -o json`."""

import json
from contextlib import suppress

from diagnostics.evidence.limits import whole
from diagnostics.evidence.reader import Contents, Reader, Source
from diagnostics.evidence.readers import log

_JOURNAL = b'"__REALTIME_TIMESTAMP"'
_WORDS = ((_JOURNAL,), (b'"apiVersion"', b'"kind"'), (b'"jobs"', b'"account"'))  # Of the journal, kubectl, Slurm.


def _open(source: Source) -> Contents:
    """Read the journal as it is, and other JSON in lines of one value each, however it was folded."""
    with suppress(ValueError, RecursionError):  # Cut off, or several objects.
        if _JOURNAL not in source.head:
            value = json.loads(whole(source.path, source.limits))
            return log.read_text(json.dumps(value, indent=4), source.file, source.owner.rank)
    return log.read(source.path, source.file, source.owner.rank, source.limits, source.head)


READER = Reader(
    kind="log_json",
    title="output of `kubectl get -o json`, `sacct --json` and `journalctl -o json`",
    recognise=lambda head: head.lstrip()[:1] == b"{" and any(all(key in head for key in keys) for keys in _WORDS),
    open=_open,
)
