"""Speaks the lines of a rank, then ends as it is told: what the parent is tested with, without torch."""

import json
import os
import signal
import sys
import time

from tests.unit.bench.lines import LINES

end, victim = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
if rank == 0:
    for line in LINES:
        print(json.dumps(line), flush=True)
    print("a library writes here too", flush=True)
if end == "stop" and rank == victim:
    time.sleep(60)
if end in ("kill", "raise", "exit"):
    if rank == victim:
        time.sleep(0.2)
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if end == "raise":
            raise ValueError("a bad cable")
        sys.exit(3)
    time.sleep(0.4)
    print(json.dumps({"error": "Connection closed by peer [127.0.0.1]:1", "type": "RuntimeError"}), flush=True)
    sys.exit(1)
