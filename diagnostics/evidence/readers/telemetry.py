"""dtk's telemetry: one file per node, which `timeline` loads."""

from diagnostics.evidence.reader import Reader, opens
from diagnostics.evidence.readers.timeline import TimelineFile


def recognise(head: bytes) -> bool:
    """Return whether a file that starts with `head` is the telemetry of a node."""
    line = head.partition(b"\n")[0].lstrip()
    return line[:1] == b"{" and b'"kind": "about"' in line and b'"every_s"' in line and b'"cores"' in line


class TelemetryFile(TimelineFile, frozen=True):
    """Samples of a node; `rank` is the node's number."""

    kind = "telemetry"


READER = Reader(kind=TelemetryFile.kind, recognise=recognise, open=opens(TelemetryFile))
