"""Small C libraries to put before libc's functions (LD_PRELOAD), to make a machine slow or its clock wrong."""

import shutil
import subprocess
from pathlib import Path

import pytest

SLOW_FSYNC = "#include <unistd.h>\nint fsync(int d) { (void)d; usleep(150000); return 0; }\n"
WRONG_CLOCK = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, which, now);
  if (!failed && which == CLOCK_REALTIME && getenv("CLOCK_AHEAD_S")) now->tv_sec += atoi(getenv("CLOCK_AHEAD_S"));
  return failed;
}
"""


def build(folder: Path, name: str, source: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    (folder / f"{name}.c").write_text(source)
    library = folder / f"{name}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, folder / f"{name}.c"], check=True)
    return library
