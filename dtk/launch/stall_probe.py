"""Asks the ranks of a watched command, before it is stopped, where they are; and whether they stood still there.

They answer through files (`dtk.record.stall_probe`), since a rank that hangs hears no signal. Knows no verdict.
"""

import socket
import time

from diagnostics.contract.artifacts import RunPaths, read_heartbeat
from diagnostics.contract.files import read_json
from dtk.record.stall_probe import STANDS_S

ANSWER_S = 2.5
"""Longest that a signal is held back for the answers."""
POLL_S = 0.05


def ask(paths: RunPaths) -> None:
    """Ask, and wait until all ranks of this host that are there have answered, or ANSWER_S seconds."""
    here = socket.gethostname()
    beats = {path: read_heartbeat(path) for path in paths.heartbeat(0).parent.glob("rank_*.json")}
    awaited = [paths.answer(int(path.stem[5:])) for path, beat in beats.items() if beat and beat.host == here]
    try:
        paths.asked.parent.mkdir(parents=True, exist_ok=True)
        paths.asked.touch()
    except OSError:  # The disk is full: the signal counts more.
        return
    ends_s = time.monotonic() + ANSWER_S
    while time.monotonic() < ends_s and not all(path.exists() for path in awaited):
        time.sleep(POLL_S)


def stood(paths: RunPaths) -> bool:
    """Whether all ranks that answered had stood still for a while, and one of them waited in a call."""
    answers = []
    for path in paths.answer(0).parent.glob("answer_*.json"):
        try:
            answers.append(read_json(path))
        except (OSError, ValueError):
            continue
    still = [answer for answer in answers if isinstance(answer, dict) and answer.get("idle_s", 0.0) >= STANDS_S]
    return bool(still) and len(still) == len(answers) and any(answer.get("inside") for answer in still)
