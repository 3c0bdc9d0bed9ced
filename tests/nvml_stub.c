/* A libnvidia-ml that tells what a file says: lines "key gpu value", gpu -1 for all; the file is $NVML_STUB.
 * Built by tests/nvml_stub.py. -DOLD leaves out what a driver before 535 lacks. Read again at each look at a GPU's load.
 * Figures that the file does not have are not supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };
enum { LINES_MAX = 512, GPUS_MAX = 16, PIDS_MAX = 256 };
typedef struct { int index; } Gpu;
typedef struct { char key[32]; int gpu; long long value; } Line;
typedef struct { unsigned gpu, memory; } Load;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } Process;
typedef struct { Gpu *gpu; unsigned long long type, data; unsigned gi, ci; } Event;
typedef struct {
  unsigned field, scope; long long at, latency; unsigned type, ret; union { double d; unsigned long long u; } value;
} Field;

static Line lines[LINES_MAX];
static int count, registered[GPUS_MAX];
static long long delivered[GPUS_MAX];
static Gpu gpus[GPUS_MAX];

static void load(void) {
  FILE *file = fopen(getenv("NVML_STUB"), "r");
  if (!file) return;
  count = 0;
  while (count < LINES_MAX &&
         fscanf(file, "%31s %d %lld", lines[count].key, &lines[count].gpu, &lines[count].value) == 3) count++;
  fclose(file);
}

static int find(const char *key, int gpu, long long *value) {
  int i, found = 0;
  for (i = 0; i < count; i++)
    if (!strcmp(lines[i].key, key) && (lines[i].gpu == gpu || lines[i].gpu == -1)) { *value = lines[i].value; found = 1; }
  return found;
}

static long long get(const char *key, int gpu, long long otherwise) {
  long long value;
  return find(key, gpu, &value) ? value : otherwise;
}

static int ask(const char *key, Gpu *gpu, long long *value) {
  if (get("unloaded", -1, 0)) return NOT_LOADED;
  if (get("lost", gpu->index, 0)) return LOST;
  return find(key, gpu->index, value) ? OK : NOT_SUPPORTED;
}

static int ask_unsigned(const char *key, Gpu *gpu, unsigned *value) {
  long long found;
  int ret = ask(key, gpu, &found);
  if (ret == OK) *value = (unsigned)found;
  return ret;
}

int nvmlInitWithFlags(unsigned flags) {
  int i;
  (void)flags;
  load();
  for (i = 0; i < GPUS_MAX; i++) gpus[i].index = i;
  return get("unloaded", -1, 0) ? NOT_LOADED : OK;
}
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
  return code == NOT_LOADED ? "Driver Not Loaded" : code == LOST ? "GPU is lost" : "stub";
}
int nvmlDeviceGetCount_v2(unsigned *found) { *found = (unsigned)get("count", -1, 1); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
  *gpu = &gpus[index];
  return get("lost", (int)index, 0) ? LOST : OK;
}
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned size) {
  snprintf(text, size, "GPU-%d", gpu->index);
  return get("lost", gpu->index, 0) ? LOST : OK;
}
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned size) {
  snprintf(text, size, "Stub");
  return get("lost", gpu->index, 0) ? LOST : OK;
}
int nvmlDeviceGetUtilizationRates(Gpu *gpu, Load *found) {
  load();
  while (get("wedged", gpu->index, 0)) { usleep(10000); load(); }
  found->memory = 0;
  return ask_unsigned("busy", gpu, &found->gpu);
}
int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *found) {
  long long used;
  int ret = ask("memory_used", gpu, &used);
  if (ret == OK) {
    found->used = (unsigned long long)used;
    found->total = (unsigned long long)get("memory_total", gpu->index, 80LL << 30);
    found->free = found->total - found->used;
  }
  return ret;
}
int nvmlDeviceGetPowerUsage(Gpu *gpu, unsigned *mw) { return ask_unsigned("power_mw", gpu, mw); }
int nvmlDeviceGetEnforcedPowerLimit(Gpu *gpu, unsigned *mw) { return ask_unsigned("limit_mw", gpu, mw); }
int nvmlDeviceGetClockInfo(Gpu *gpu, int kind, unsigned *mhz) {
  return ask_unsigned(kind == 1 ? "sm_mhz" : "mem_mhz", gpu, mhz);
}
int nvmlDeviceGetMaxClockInfo(Gpu *gpu, int kind, unsigned *mhz) {
  return ask_unsigned(kind == 1 ? "sm_max_mhz" : "mem_max_mhz", gpu, mhz);
}
static int reasons(Gpu *gpu, unsigned long long *bits) {
  long long found;
  int ret = ask("reasons", gpu, &found);
  if (ret == OK) *bits = (unsigned long long)found;
  return ret;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *gpu, unsigned long long *bits) { return reasons(gpu, bits); }
#ifndef OLD
int nvmlDeviceGetCurrentClocksEventReasons(Gpu *gpu, unsigned long long *bits) { return reasons(gpu, bits); }
int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *now, unsigned *pending) {
  *pending = 0;
  return ask_unsigned("mig", gpu, now);
}
int nvmlDeviceGetFieldValues(Gpu *gpu, int asked, Field *fields) {
  int i;
  if (get("lost", gpu->index, 0)) return LOST;
  for (i = 0; i < asked; i++) {
    unsigned f = fields[i].field;
    const char *key = f == 198 ? "pcie_rx" : f == 197 ? "pcie_tx" : f == 139 ? "nvlink_rx_kib" : "nvlink_tx_kib";
    long long value = 0;
    fields[i].ret = (unsigned)ask(key, gpu, &value);
    fields[i].type = 3;
    fields[i].value.u = (unsigned long long)value;
  }
  return OK;
}
#endif
int nvmlDeviceGetTemperature(Gpu *gpu, int sensor, unsigned *celsius) {
  (void)sensor;
  return ask_unsigned("celsius", gpu, celsius);
}
int nvmlDeviceGetTotalEccErrors(Gpu *gpu, int kind, int counter, unsigned long long *total) {
  long long found;
  int ret = ask(kind ? "ecc_uncorrected" : "ecc_corrected", gpu, &found);
  (void)counter;
  if (ret == OK) *total = (unsigned long long)found;
  return ret;
}
int nvmlDeviceGetPcieThroughput(Gpu *gpu, int kind, unsigned *kilobytes) {
  return ask_unsigned(kind ? "pcie_rx_kb" : "pcie_tx_kb", gpu, kilobytes);
}
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *room, Process *found) {
  long long value;
  unsigned i, there = 0;
  int ret = ask("processes", gpu, &value); /* Told at all; then one line "pid" for each. */
  if (ret != OK) return ret;
  for (i = 0; i < (unsigned)count; i++)
    if (!strcmp(lines[i].key, "pid") && lines[i].gpu == gpu->index) {
      if (found && there < *room) { memset(&found[there], 0, sizeof *found); found[there].pid = (unsigned)lines[i].value; }
      there++;
    }
  if (there > *room || (!found && there)) { *room = there; return INSUFFICIENT_SIZE; }
  *room = there;
  return OK;
}
int nvmlEventSetCreate(void **set) { *set = gpus; return OK; }
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, void *set) {
  (void)types; (void)set;
  if (get("no_events", gpu->index, 0)) return NOT_SUPPORTED;
  registered[gpu->index] = 1;
  return OK;
}
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
  int i;
  (void)set;
  for (i = 0; i < GPUS_MAX; i++)
    if (registered[i] && delivered[i] < get("xids", i, 0)) { /* As many events of this XID have come by now. */
      delivered[i]++;
      memset(event, 0, sizeof *event);
      event->gpu = &gpus[i];
      event->type = 8;
      event->data = (unsigned long long)get("xid", i, 0);
      return OK;
    }
  usleep(timeout_ms * 1000);
  return TIMEOUT;
}
