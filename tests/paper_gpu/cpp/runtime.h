// Declarations shared by the parts of libpaper_cuda.so: streams, memory, counters.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include <cuda_runtime_api.h>

#include "machine.h"

#define API extern "C" __attribute__((visibility("default")))

namespace paper {

// Counters of this process's GPU activity. Mapped to `<PAPER_COUNTS>/<pid>.counts`, so that it survives os._exit and
// kills. The order of the fields is that of paper_gpu.COUNTERS.
struct Counters {
  std::atomic<uint64_t> kernel_launches;   // by <<<>>>, cudaLaunchKernel… and cuLaunchKernel… (Triton)
  std::atomic<uint64_t> library_launches;  // cuBLAS calls that compute, convolutions that cuDNN would compute
  std::atomic<uint64_t> graph_launches;
  std::atomic<uint64_t> host_to_device_copies, host_to_device_bytes;
  std::atomic<uint64_t> device_to_host_copies, device_to_host_bytes;
  std::atomic<uint64_t> device_to_device_copies, device_to_device_bytes;
  std::atomic<uint64_t> memsets, memset_bytes;
  std::atomic<uint64_t> collectives, collective_bytes;
  std::atomic<uint64_t> synchronizations;  // calls in which the host waits for a stream, an event or the device
  std::atomic<uint64_t> allocations, allocated_bytes, peak_allocated_bytes;  // by cudaMalloc, all devices
  std::atomic<uint64_t> operators, operator_bytes_read, operator_bytes_written;  // of computed operators
  std::atomic<uint64_t> uncomputed_launches;  // of kernels outside of an operator that dispatch.cpp computes
};
Counters& counters();

// A stream: a thread that executes its queue in order.
class Stream {
 public:
  explicit Stream(int device) : device(device) {}
  const int device;
  void put(std::function<void()> work);
  void synchronize();
  bool is_idle();

 private:
  void execute();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool is_busy_ = false, has_thread_ = false;
};

Stream& stream_of(cudaStream_t stream);
int current_device();
// Open the context of the current device, after which NVML lists this process.
void open_context();
// True when the process ends: waits on streams end, as with a destroyed context.
bool is_closing();

// An error of a kernel is reported by every later call, until the process ends.
void set_context_error(cudaError_t error);
cudaError_t context_error();
// Record `error` for cudaGetLastError and return it.
cudaError_t with_error(cudaError_t error);

// Count a launch; the kernel itself takes PAPER_KERNEL_US and computes nothing.
cudaError_t launch(cudaStream_t stream);
// Launches by this thread, including those of libraries.
uint64_t& launches_of_thread();
void count_library_launch();
// > 0 while this thread executes torch's own CUDA kernel of an operator that dispatch.cpp computes.
int& operator_depth();
void start_computing();
cudaError_t allocate_on_device(void** address, size_t size);
cudaError_t free_memory(void* address);

}  // namespace paper
