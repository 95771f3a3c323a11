import shutil
import subprocess

import pytest
import torch

from dtk.parallel.regions import communication, observe, region
from dtk.record.guard import flush_reports, report
from dtk.record.observers import ProfilerMarks
from tests.patience import stretched

# A tool that NVTX loads into the process, as Nsight Systems does: it writes every push and pop on stdout.
# Numbers of tables and callbacks are those of nvtxDetail/nvtxTypes.h, version 3.
TOOL = r"""
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef void (*fn)(void);
typedef fn **table_t;
typedef struct { size_t size; int (*get)(int module, table_t *table, unsigned int *count); } callbacks_t;
typedef const void *(*export_t)(uint32_t id);
static char names[256][64]; static int used;
static void *register_string(void *domain, const char *s) {
  (void)domain; strncpy(names[used], s, 63); return names[used++];
}
static void *create(const char *name) { printf("domain %s\n", name); fflush(stdout); return (void *)1; }
static int push(void *domain, const char *attributes) {
  (void)domain; const char *text = *(const char *const *)(attributes + 40);
  printf("push %s\n", text); fflush(stdout); return 0;
}
static int pop(void *domain) { (void)domain; puts("pop"); fflush(stdout); return 0; }
int InitializeInjectionNvtx2(export_t get_export) {
  const callbacks_t *callbacks = get_export(1);
  table_t table = 0; unsigned int count = 0;
  if (!callbacks || !callbacks->get(5, &table, &count)) return 0;
  *table[4] = (fn)push; *table[5] = (fn)pop; *table[10] = (fn)register_string; *table[12] = (fn)create;
  return 1;
}
"""

MARKED = """
from dtk.record.observers import Nvtx
from dtk.parallel.regions import communication, observe, region
observe([Nvtx()])
with region("backward"), communication("all_reduce", 4096, "dp"):
    pass
"""


@pytest.mark.timeout(60)
def test_nvtx_ranges_reach_a_tool_without_a_gpu(tmp_path, child):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the tool with")
    (tmp_path / "tool.c").write_text(TOOL)
    library = tmp_path / "libtool.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", library, tmp_path / "tool.c"], check=True)
    process = child(MARKED, NVTX_INJECTION64_PATH=str(library))
    output, errors = process.communicate(timeout=stretched(30))
    assert process.returncode == 0, errors
    assert output.splitlines() == ["domain dtk", "push backward", "push all_reduce 4096 B dp", "pop", "pop"]


def test_the_profiler_sees_regions_only_while_it_runs():
    observe([ProfilerMarks()])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler, region("forward"):
        torch.ones(2).sum()
    with region("later"):
        pass
    names = {event.name for event in profiler.events()}
    assert "forward" in names
    assert "later" not in names


def test_an_observer_that_raises_is_removed_and_the_step_goes_on(capfd):
    class Broken:
        def enter(self, region):
            raise RuntimeError("broken tool")

        def exit(self, region):
            raise AssertionError("was removed")

    class Whole:
        entered = []

        def enter(self, region):
            self.entered.append((region.op, region.size_bytes))

        def exit(self, region):
            pass

    observe([Broken(), Whole()], report)
    for _ in range(3):
        with communication("all_reduce", 8, "dp"):
            pass
    assert Whole.entered == [("all_reduce", 8)] * 3
    flush_reports()
    assert capfd.readouterr().err.count("broken tool") == 1
