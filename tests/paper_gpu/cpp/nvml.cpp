// libnvidia-ml.so.1 of one driver. No wheel contains NVIDIA's header, so the few structures are declared here as
// in pynvml. Built twice: drivers before 510 (-DBEFORE_510) lack the functions of version 3.
#include <time.h>

#include "machine.h"

#define API extern "C" __attribute__((visibility("default")))
using namespace paper;

enum Result { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };

// A handle is the address of the device's entry; entries are created once.
using Handle = const Device*;
static Handle handle_of(int gpu, int instance) {
  static const std::vector<std::vector<Device>>* all = [] {
    auto* found = new std::vector<std::vector<Device>>;
    for (int i = 0; i < (int)gpus().size(); i++) {
      found->push_back({{i, -1}});
      for (int k = 0; k < (int)gpus()[i].instances.size(); k++) found->back().push_back({i, k});
    }
    return found;
  }();
  return &(*all)[gpu][instance + 1];
}
static const Gpu& gpu_of(Handle handle) { return gpus()[handle->gpu]; }
static Result write(const std::string& text, char* to, unsigned size) {
  if (text.size() >= size) return INSUFFICIENT_SIZE;
  strcpy(to, text.c_str());
  return OK;
}

// Without GPUs there is no driver either, as on a machine without hardware.
API Result nvmlInitWithFlags(unsigned) { return gpus().empty() ? DRIVER_NOT_LOADED : OK; }
API Result nvmlInit_v2() { return nvmlInitWithFlags(0); }
API Result nvmlInit() { return nvmlInitWithFlags(0); }
API Result nvmlShutdown() { return OK; }
API const char* nvmlErrorString(Result result) {
  switch (result) {
    case OK: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
  }
  return "Unknown Error";
}

API Result nvmlSystemGetDriverVersion(char* text, unsigned size) { return write(driver().version, text, size); }
API Result nvmlSystemGetCudaDriverVersion(int* version) {
  *version = driver().cuda;
  return OK;
}
API Result nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }
API Result nvmlSystemGetProcessName(unsigned pid, char* text, unsigned size) {
  char path[64], name[4096] = "";
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE* file = fopen(path, "r");
  if (!file) return NOT_FOUND;
  size_t length = fread(name, 1, sizeof name - 1, file);
  fclose(file);
  name[length] = 0;  // the first argument: later ones follow after a zero
  snprintf(text, size, "%s", name);
  return OK;
}

// ---- GPUs

API Result nvmlDeviceGetCount_v2(unsigned* count) {
  *count = gpus().size();
  return OK;
}
API Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  if (index >= gpus().size()) return INVALID_ARGUMENT;
  *handle = handle_of(index, -1);
  return OK;
}
API Result nvmlDeviceGetUUID(Handle handle, char* text, unsigned size) { return write(uuid_of(*handle), text, size); }
API Result nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  for (int i = 0; i < (int)gpus().size(); i++)
    for (int k = -1; k < (int)gpus()[i].instances.size(); k++)
      if (uuid_of({i, k}) == uuid) {
        *handle = handle_of(i, k);
        return OK;
      }
  return NOT_FOUND;
}
API Result nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, Handle* handle) {
  unsigned domain, bus;
  if (sscanf(bus_id, "%x:%x", &domain, &bus) != 2 || bus < 1 || bus > gpus().size()) return NOT_FOUND;
  *handle = handle_of(bus - 1, -1);
  return OK;
}
API Result nvmlDeviceGetIndex(Handle handle, unsigned* index) {
  if (handle->instance >= 0) return INVALID_ARGUMENT;
  *index = handle->gpu;
  return OK;
}
API Result nvmlDeviceGetName(Handle handle, char* text, unsigned size) {
  std::string name = gpu_of(handle).profile->name;
  if (handle->instance >= 0) name += std::string(" MIG ") + gpu_of(handle).instances[handle->instance]->key;
  return write(name, text, size);
}
API Result nvmlDeviceGetCudaComputeCapability(Handle handle, int* major, int* minor) {
  *major = gpu_of(handle).profile->major;
  *minor = gpu_of(handle).profile->minor;
  return OK;
}

struct Memory {
  unsigned long long total, free, used;
};
struct Memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned long long RESERVED = 500 * MIB;  // by the driver for itself
API Result nvmlDeviceGetMemoryInfo(Handle handle, Memory* memory) {
  memory->total = memory_bytes_of(*handle);
  memory->used = std::min<unsigned long long>(memory->total, used_bytes_of(*handle) + RESERVED);
  memory->free = memory->total - memory->used;
  return OK;
}
#ifndef BEFORE_510
API Result nvmlDeviceGetMemoryInfo_v2(Handle handle, Memory_v2* memory) {
  memory->total = memory_bytes_of(*handle);
  memory->reserved = RESERVED;
  memory->used = std::min<unsigned long long>(memory->total - RESERVED, used_bytes_of(*handle));
  memory->free = memory->total - memory->reserved - memory->used;
  return OK;
}
#endif

// The share of time since the last query in which streams were busy, plus the utilization by other processes.
struct Utilization {
  unsigned gpu, memory;
};
API Result nvmlDeviceGetUtilizationRates(Handle handle, Utilization* rates) {
  if (!gpu_of(handle).instances.empty()) return NOT_SUPPORTED;  // for a divided GPU and its instances
  static uint64_t last_busy_ns[64], last_ns[64];
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  uint64_t now_ns = now.tv_sec * 1000000000ull + now.tv_nsec, busy_ns = 0, percent = 0;
  for (const GpuProcess& each : processes_on(handle->gpu)) {
    busy_ns += each.busy_ns;
    percent += each.utilization_percent;
  }
  uint64_t& last_busy = last_busy_ns[handle->gpu];
  // The total can decrease, because the time of terminated processes is not included.
  if (last_ns[handle->gpu] && busy_ns > last_busy && now_ns > last_ns[handle->gpu])
    percent += 100 * (busy_ns - last_busy) / (now_ns - last_ns[handle->gpu]);
  last_busy = busy_ns;
  last_ns[handle->gpu] = now_ns;
  rates->gpu = percent > 100 ? 100 : percent;
  rates->memory = 100 * used_bytes_of(*handle) / memory_bytes_of(*handle);
  return OK;
}
API Result nvmlDeviceGetTemperature(Handle, int, unsigned* celsius) {
  *celsius = 50;
  return OK;
}
API Result nvmlDeviceGetPowerUsage(Handle handle, unsigned* milliwatts) {
  *milliwatts = gpu_of(handle).profile->power_watts * 500u;
  return OK;
}

// ---- processes

struct Process {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
static Result list_processes(Handle handle, unsigned* count, Process* processes, bool draws) {
  unsigned room = *count;
  *count = 0;
  for (const GpuProcess& each : processes_on(handle->gpu)) {
    if (!!(each.flags & DRAWS) != draws) continue;
    if (handle->instance >= 0 && each.instance != (uint64_t)handle->instance) continue;
    unsigned instance = each.instance == NO_INSTANCE ? ~0u : (unsigned)each.instance;
    if (processes && *count < room) processes[*count] = {(unsigned)each.pid, each.memory_bytes, instance, instance};
    ++*count;
  }
  return *count > room ? INSUFFICIENT_SIZE : OK;
}
API Result nvmlDeviceGetComputeRunningProcesses_v2(Handle handle, unsigned* count, Process* processes) {
  return list_processes(handle, count, processes, false);
}
API Result nvmlDeviceGetGraphicsRunningProcesses_v2(Handle handle, unsigned* count, Process* processes) {
  return list_processes(handle, count, processes, true);
}
#ifndef BEFORE_510
API Result nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, Process* processes) {
  return list_processes(handle, count, processes, false);
}
API Result nvmlDeviceGetGraphicsRunningProcesses_v3(Handle handle, unsigned* count, Process* processes) {
  return list_processes(handle, count, processes, true);
}
#endif
// Only torch uses the oldest version, without the instances.
API Result nvmlDeviceGetComputeRunningProcesses(Handle, unsigned* count, void*) {
  *count = 0;
  return OK;
}

// ---- MIG

API Result nvmlDeviceGetMigMode(Handle handle, unsigned* current, unsigned* pending) {
  // Only the A100 and the H100 can be divided.
  if (gpu_of(handle).profile->major < 8 || gpu_of(handle).profile->minor != 0) return NOT_SUPPORTED;
  *current = *pending = !gpu_of(handle).instances.empty();
  return OK;
}
API Result nvmlDeviceGetMaxMigDeviceCount(Handle handle, unsigned* count) {
  *count = gpu_of(handle).instances.empty() ? 0 : 7;
  return OK;
}
API Result nvmlDeviceGetMigDeviceHandleByIndex(Handle handle, unsigned index, Handle* instance) {
  if (handle->instance >= 0 || index >= gpu_of(handle).instances.size()) return NOT_FOUND;
  *instance = handle_of(handle->gpu, index);
  return OK;
}
API Result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle handle, Handle* gpu) {
  if (handle->instance < 0) return INVALID_ARGUMENT;
  *gpu = handle_of(handle->gpu, -1);
  return OK;
}
API Result nvmlDeviceIsMigDeviceHandle(Handle handle, unsigned* is_instance) {
  *is_instance = handle->instance >= 0;
  return OK;
}
API Result nvmlDeviceGetGpuInstanceId(Handle handle, unsigned* id) {
  if (handle->instance < 0) return NOT_FOUND;
  *id = handle->instance;
  return OK;
}
API Result nvmlDeviceGetComputeInstanceId(Handle handle, unsigned* id) { return nvmlDeviceGetGpuInstanceId(handle, id); }

// ---- links between GPUs: none

API Result nvmlDeviceGetNvLinkState(Handle, unsigned, unsigned*) { return NOT_SUPPORTED; }
API Result nvmlDeviceGetNvLinkRemoteDeviceType(Handle, unsigned, unsigned*) { return NOT_SUPPORTED; }
API Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle, unsigned, void*) { return NOT_SUPPORTED; }
API Result nvmlDeviceGetGpuFabricInfoV(Handle, void*) { return NOT_SUPPORTED; }
