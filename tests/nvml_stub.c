/* A libnvidia-ml.so.1 that answers what the file named by NVML_STUB says, loaded by the real pynvml.

   The file has lines `key=value`; `0.key=value` is for device 0 alone, `0.key.2=value` for its link (or peer) 2.
   A value `!N` makes the call fail with NVML's return code N. A key that is absent has the value of a healthy
   device. Without the variable there is no driver (return code 9). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int ret;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { char legacy[16]; unsigned int domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpu, compute; } process_t;
typedef struct { unsigned int version; unsigned char cluster[16]; ret status; unsigned int clique; unsigned char state; unsigned int health; } fabric_t;

static int find(const char *key, char *value, size_t n) {
  const char *path = getenv("NVML_STUB");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[512];
  int found = 0;
  size_t length = strlen(key);
  if (!file) return 0;
  while (fgets(line, sizeof line, file))
    if (!strncmp(line, key, length) && line[length] == '=') {
      strncpy(value, line + length + 1, n);
      value[n - 1] = 0;
      value[strcspn(value, "\n")] = 0;
      found = 1;
    }
  fclose(file);
  return found;
}

static int of(void *device) { return (int)(long)device - 1; }

/* The text of a key for a device and maybe a link; the most special line wins. */
static ret text_of(void *device, const char *key, int part, const char *normal, char *value, size_t n) {
  char name[128];
  strncpy(value, normal, n);
  find(key, value, n);
  snprintf(name, sizeof name, "%d.%s", of(device), key);
  find(name, value, n);
  if (part >= 0) {
    snprintf(name, sizeof name, "%d.%s.%d", of(device), key, part);
    find(name, value, n);
  }
  return value[0] == '!' ? atoi(value + 1) : 0;
}

static ret number_of(void *device, const char *key, int part, const char *normal, long long *number) {
  char value[256];
  ret r = text_of(device, key, part, normal, value, sizeof value);
  if (!r) *number = strtoll(value, NULL, 0);
  return r;
}

#define NUMBER(function, type, key, normal)                                  \
  ret function(void *d, type *out) {                                         \
    long long n; ret r = number_of(d, key, -1, normal, &n);                  \
    if (!r) *out = (type)n;                                                  \
    return r;                                                                \
  }

static long long calls;
ret nvmlInitWithFlags(unsigned int flags) {
  long long n = 0;
  (void)flags;
  if (!getenv("NVML_STUB")) return 9;
  ret r = number_of((void *)1, "init", -1, "0", &n);
  if (n) sleep((unsigned int)n);
  return r;
}
ret nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(ret r) {
  return r == 2 ? "Invalid Argument" : r == 3 ? "Not Supported" : r == 6 ? "Not Found" : r == 9 ? "Driver Not Loaded"
       : r == 13 ? "Function Not Found" : r == 15 ? "GPU is lost" : r == 18 ? "Driver/library version mismatch" : "error";
}
ret nvmlSystemGetDriverVersion(char *text, unsigned int n) { return text_of((void *)1, "driver", -1, "580.65.06", text, n); }
ret nvmlSystemGetCudaDriverVersion_v2(int *v) { long long n; ret r = number_of((void *)1, "cuda_driver", -1, "13000", &n); if (!r) *v = (int)n; return r; }
ret nvmlDeviceGetCount_v2(unsigned int *c) { long long n; ret r = number_of((void *)1, "devices", -1, "2", &n); if (!r) *c = (unsigned int)n; return r; }
ret nvmlDeviceGetHandleByIndex_v2(unsigned int i, void **device) {
  long long n, count;
  *device = (void *)(long)(i + 1);
  number_of((void *)1, "devices", -1, "2", &count);
  if ((long long)i >= count) return 2;
  return number_of(*device, "handle", -1, "0", &n);
}
ret nvmlDeviceGetUUID(void *d, char *text, unsigned int n) {
  char normal[64];
  snprintf(normal, sizeof normal, "GPU-aaaa-%04d", of(d));
  return text_of(d, "uuid", -1, normal, text, n);
}
ret nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
  for (long i = 0; i < 16; i++) {
    char own[96];
    if (nvmlDeviceGetHandleByIndex_v2((unsigned int)i, device)) continue;
    nvmlDeviceGetUUID(*device, own, sizeof own);
    if (!strcmp(uuid, own)) return 0;
  }
  return 6;
}
ret nvmlDeviceGetName(void *d, char *text, unsigned int n) { return text_of(d, "name", -1, "Stub GPU", text, n); }
ret nvmlDeviceGetPciInfo_v3(void *d, pci_t *p) { memset(p, 0, sizeof *p); p->bus = 0x3b + of(d); return 0; }
ret nvmlDeviceGetUtilizationRates(void *d, utilization_t *u) {
  long long g, m;
  ret r = number_of(d, "busy", -1, "0", &g);
  number_of(d, "memory_busy", -1, "0", &m);
  u->gpu = (unsigned int)g; u->memory = (unsigned int)m;
  return r;
}
ret nvmlDeviceGetMemoryInfo(void *d, memory_t *m) {
  long long total, used;
  ret r = number_of(d, "memory", -1, "80000000000", &total);
  number_of(d, "memory_used", -1, "500000000", &used);
  m->total = (unsigned long long)total; m->used = (unsigned long long)used; m->free = m->total - m->used;
  return r;
}
ret nvmlDeviceGetClockInfo(void *d, int kind, unsigned int *mhz) {
  long long n; ret r = number_of(d, kind == 1 ? "sm_clock" : "memory_clock", -1, kind == 1 ? "1980" : "2619", &n);
  if (!r) *mhz = (unsigned int)n;
  return r;
}
ret nvmlDeviceGetMaxClockInfo(void *d, int kind, unsigned int *mhz) {
  long long n; ret r = number_of(d, "max_clock", -1, kind == 1 ? "1980" : "2619", &n);
  if (!r) *mhz = (unsigned int)n;
  return r;
}
NUMBER(nvmlDeviceGetPowerUsage, unsigned int, "power", "350500")
#ifndef OLD_DRIVER
NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned int, "power_limit", "700000")
#endif
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, "power_default", "700000")
NUMBER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, "energy", "1000")
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle", "0x1")
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "throttle_old", "0x1")
ret nvmlDeviceGetTemperature(void *d, int sensor, unsigned int *c) {
  long long n, last; ret r = number_of(d, "celsius", -1, "45", &n);
  number_of(d, "temperature_calls", -1, "1000000000", &last);
  *c = (unsigned int)n;
  return r ? r : ++calls > last ? 15 : 0;
}
NUMBER(nvmlDeviceGetComputeMode, int, "compute_mode", "0")
ret nvmlDeviceGetMigMode(void *d, unsigned int *now, unsigned int *later) {
  long long n; ret r = number_of(d, "mig", -1, "0", &n);
  if (!r) *now = *later = (unsigned int)n;
  return r;
}
ret nvmlDeviceGetEccMode(void *d, int *now, int *later) {
  long long n; ret r = number_of(d, "ecc", -1, "1", &n);
  if (!r) *now = *later = (int)n;
  return r;
}
ret nvmlDeviceGetTotalEccErrors(void *d, int uncorrected, int aggregate, unsigned long long *count) {
  char key[32]; long long n;
  snprintf(key, sizeof key, "ecc_%s%s", uncorrected ? "uncorrected" : "corrected", aggregate ? "_ever" : "");
  ret r = number_of(d, key, -1, "0", &n);
  if (!r) *count = (unsigned long long)n;
  return r;
}
ret nvmlDeviceGetRemappedRows(void *d, unsigned int *c, unsigned int *u, unsigned int *pending, unsigned int *failed) {
  long long n = 0; ret r = number_of(d, "rows", -1, "0", &n);
  *c = 0; *u = 0;
  if (!number_of(d, "rows_pending", -1, "0", &n)) *pending = (unsigned int)n;
  if (!number_of(d, "rows_failed", -1, "0", &n)) *failed = (unsigned int)n;
  return r;
}
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, int, "pages_pending", "0")
ret nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned int *count, process_t *all) {
  long long pid, used; ret r = number_of(d, "process", -1, "0", &pid);
  if (r) return r;
  if (!pid) { *count = 0; return 0; }
  if (!all) { *count = 1; return 7; }
  number_of(d, "process_memory", -1, "1073741824", &used);
  *count = 1; all->pid = (unsigned int)pid; all->used = (unsigned long long)used; all->gpu = all->compute = 0;
  return 0;
}
ret nvmlDeviceGetNvLinkState(void *d, unsigned int link, int *active) {
  long long links, n; ret r = number_of(d, "links", -1, "4", &links);
  if (r) return r;
  if ((long long)link >= links) return 2;
  r = number_of(d, "link", (int)link, "1", &n);
  if (!r) *active = (int)n;
  return r;
}
ret nvmlDeviceGetNvLinkErrorCounter(void *d, unsigned int link, int counter, unsigned long long *count) {
  long long n; ret r = number_of(d, counter == 0 ? "link_replays" : counter == 1 ? "link_recoveries" : "link_crc", (int)link, "0", &n);
  if (!r) *count = (unsigned long long)n;
  return r;
}
ret nvmlDeviceGetGpuFabricInfoV(void *d, fabric_t *f) {
  long long state, status; ret r = number_of(d, "fabric", -1, "0", &state);
  number_of(d, "fabric_status", -1, "0", &status);
  f->state = (unsigned char)state; f->status = (ret)status;
  return r;
}
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, "pcie_width", "16")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, "pcie_max_width", "16")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, "pcie_generation", "5")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, "pcie_max_generation", "5")
NUMBER(nvmlDeviceGetPcieReplayCounter, unsigned int, "pcie_replays", "0")
ret nvmlDeviceGetP2PStatus(void *d, void *other, int kind, int *status) {
  long long n; ret r = number_of(d, kind == 2 ? "p2p_nvlink" : kind == 1 ? "p2p_write" : "p2p", of(other), "0", &n);
  if (!r) *status = (int)n;
  return r;
}
