"""The record of a failing rank: error.json, written before any teardown that could block."""

import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diagnostics.contract.artifacts import write_json
from diagnostics.contract.secrets import masked_text
from dtk.errors import USER_ERROR, DtkError
from dtk.parallel.regions import failed_in


def failure_record(error: BaseException, rank: int, attempt: int) -> dict[str, object]:
    """Return the content of error.json."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    record: dict[str, object] = {"schema_version": 1, "rank": rank, "attempt": attempt, "type": type(error).__name__}
    record |= {"message": str(error), "region": failed_in(), "time_s": time.time()}
    record |= {"file": last and last.filename, "line": last and last.lineno, "function": last and last.name}
    record |= {"user_error": isinstance(error, DtkError)}
    return {**record, "traceback": "".join(traceback.format_exception(error))}


def failure_reason(record: Mapping[str, Any]) -> str:
    """Return the content of error.json in one line: `ValueError: no such file (train.py:12)`."""
    place = f" ({Path(str(record['file'])).name}:{record['line']})" if record.get("file") else ""
    return f"{record.get('type')}: {' '.join(str(record.get('message')).split())[:300]}{place}"


def write_failure(error: BaseException, path: Path, rank: int, attempt: int) -> int:
    """Write error.json; return exit code 2 for a DtkError, else print the traceback on stderr and return 1."""
    try:
        write_json(path, failure_record(error, rank, attempt))
    except OSError as problem:
        print(f"dtk: could not write {path.name}: {problem}", file=sys.stderr)
    if isinstance(error, DtkError):
        return USER_ERROR
    print(masked_text("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    sys.stderr.flush()
    return 1
