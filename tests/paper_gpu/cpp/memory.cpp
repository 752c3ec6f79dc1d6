// cudart's memory. A GPU's memory is memory of this process, reserved but not backed until it is written, so that
// 80 simulated GB fit on a small machine.
#include <map>

#include "runtime.h"

namespace paper {

Usage* usage_of(int device);
void synchronize_device(int device);

enum class Kind { device, pinned };
struct Block {
  size_t size;
  Kind kind;
  int device;
  bool is_mapped;  // by us; registered memory belongs to the caller
};
struct Blocks {
  std::mutex mutex;
  std::map<const char*, Block> by_start;
};
static Blocks& blocks() {
  static auto* found = new Blocks;
  return *found;
}

static bool find(const void* address, Block* found) {
  Blocks& all = blocks();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto next = all.by_start.upper_bound((const char*)address);
  if (next == all.by_start.begin()) return false;
  --next;
  if ((const char*)address >= next->first + next->second.size) return false;
  *found = next->second;
  return true;
}

static cudaError_t allocate(void** address, size_t size, Kind kind) {
  open_context();
  int device = current_device();
  // cudaMalloc returns parts of pages; torch's allocator requests at least 2 MiB.
  size_t rounded = (size + 4095) / 4096 * 4096;
  if (rounded < size) return with_error(cudaErrorMemoryAllocation);
  if (!rounded) rounded = 4096;
  if (kind == Kind::device) {
    Device where = visible_devices()[device];
    uint64_t total = memory_bytes_of(where), used = used_bytes_of(where);
    if (used > total || rounded > total - used) return with_error(cudaErrorMemoryAllocation);
  }
  void* memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return with_error(cudaErrorMemoryAllocation);
  *address = memory;
  Blocks& all = blocks();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.by_start[(char*)memory] = {rounded, kind, device, true};
  if (kind == Kind::device) {
    usage_of(device)->memory_bytes += rounded;
    Counters& count = counters();
    count.allocations++;
    uint64_t now = count.allocated_bytes += rounded;
    if (now > count.peak_allocated_bytes) count.peak_allocated_bytes = now;  // under the lock
  }
  return cudaSuccess;
}

cudaError_t allocate_on_device(void** address, size_t size) { return allocate(address, size, Kind::device); }

cudaError_t free_memory(void* address) {
  if (!address) return cudaSuccess;
  Block block;
  {
    Blocks& all = blocks();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto found = all.by_start.find((char*)address);
    if (found == all.by_start.end()) return with_error(cudaErrorInvalidValue);
    block = found->second;
    all.by_start.erase(found);
  }
  synchronize_device(block.device);  // as cudaFree and cudaFreeHost do
  if (block.kind == Kind::device) {
    usage_of(block.device)->memory_bytes -= block.size;
    counters().allocated_bytes -= block.size;
  }
  munmap(address, block.size);
  return cudaSuccess;
}

static bool is_device_memory(const void* address) {
  Block block;
  return find(address, &block) && block.kind == Kind::device;
}

static void count_copy(const void* to, const void* from, size_t size) {
  Counters& count = counters();
  bool to_device = is_device_memory(to), from_device = is_device_memory(from);
  if (to_device && from_device) {
    count.device_to_device_copies++;
    count.device_to_device_bytes += size;
  } else if (to_device) {
    count.host_to_device_copies++;
    count.host_to_device_bytes += size;
  } else if (from_device) {
    count.device_to_host_copies++;
    count.device_to_host_bytes += size;
  }
}

// Copies between a device and pageable memory wait for the end (CUDA Runtime API, "API synchronization behavior").
static cudaError_t copy(void* to, const void* from, size_t size, cudaStream_t stream, bool has_to_wait) {
  if (context_error()) return with_error(context_error());
  open_context();
  count_copy(to, from, size);
  Block block;
  has_to_wait = has_to_wait || !find(to, &block) || !find(from, &block);
  Stream& queue = stream_of(stream);
  queue.put([=] { memmove(to, from, size); });
  if (has_to_wait) queue.synchronize();
  return with_error(context_error());
}

static cudaError_t fill(void* to, int value, size_t size, cudaStream_t stream) {
  counters().memsets++;
  counters().memset_bytes += size;
  stream_of(stream).put([=] { memset(to, value, size); });
  return with_error(context_error());
}

}  // namespace paper

using namespace paper;

API cudaError_t cudaMalloc(void** address, size_t size) { return allocate(address, size, Kind::device); }
API cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t) { return allocate(address, size, Kind::device); }
API cudaError_t cudaFree(void* address) { return free_memory(address); }
API cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return free_memory(address); }
API cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) { return allocate(address, size, Kind::pinned); }
API cudaError_t cudaFreeHost(void* address) { return free_memory(address); }
API cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
  open_context();
  Blocks& all = blocks();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.by_start[(char*)address] = {size, Kind::pinned, current_device(), false};
  return cudaSuccess;
}
API cudaError_t cudaHostUnregister(void* address) {
  Blocks& all = blocks();
  std::lock_guard<std::mutex> lock(all.mutex);
  return all.by_start.erase((char*)address) ? cudaSuccess : with_error(cudaErrorInvalidValue);
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  open_context();
  Block block;
  bool is_ours = find(address, &block);
  memset(attributes, 0, sizeof *attributes);
  attributes->device = is_ours ? block.device : -2;
  attributes->type = !is_ours ? cudaMemoryTypeUnregistered
                     : block.kind == Kind::device ? cudaMemoryTypeDevice
                                                  : cudaMemoryTypeHost;
  attributes->devicePointer = is_ours ? (void*)address : nullptr;
  attributes->hostPointer = is_ours && block.kind == Kind::pinned ? (void*)address : nullptr;
  return cudaSuccess;
}
API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  open_context();
  Device where = visible_devices()[current_device()];
  *total = memory_bytes_of(where);
  uint64_t used = used_bytes_of(where);
  *free = used > *total ? 0 : *total - used;
  return cudaSuccess;
}

API cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, size, stream, false);
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  counters().synchronizations++;
  return copy(to, from, size, nullptr, true);
}
API cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, cudaStream_t stream) {
  return copy(to, from, size, stream, false);
}
API cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                  size_t height, cudaMemcpyKind, cudaStream_t stream) {
  open_context();
  count_copy(to, from, width * height);
  Block block;
  bool has_to_wait = !find(to, &block) || !find(from, &block);
  Stream& queue = stream_of(stream);
  queue.put([=] {
    for (size_t row = 0; row < height; row++) memmove((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
  });
  if (has_to_wait) queue.synchronize();
  return with_error(context_error());
}
// Constants of kernels: not stored, because kernels compute nothing.
API cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }
API cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  static char symbols[1 << 16];
  *address = symbols;
  return cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) { return fill(to, value, size, stream); }
API cudaError_t cudaMemset(void* to, int value, size_t size) { return fill(to, value, size, nullptr); }

// Only read by torch's second allocator (cudaMallocAsync).
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = (cudaMemPool_t)1;
  return cudaSuccess;
}
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *(uint64_t*)value = 0;
  return cudaSuccess;
}
API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) { return cudaSuccess; }
API cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) { return cudaSuccess; }
API cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return cudaSuccess; }
