// cudart without GPUs: devices, streams, events, kernel launches, errors. Memory is in memory.cpp.
#include "runtime.h"

#include <chrono>
#include <map>
#include <memory>
#include <thread>

#include <dlfcn.h>

namespace paper {

// Objects used by threads are never destroyed, because streams execute until the process ends.
template <class T>
static T& immortal() {
  static T* object = new T;
  return *object;
}

static uint64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// ---- counters and the entry of this process in PAPER_STATE

Counters& counters() {
  static Counters* found = [] {
    const char* folder = getenv("PAPER_COUNTS");
    if (!folder || !*folder) return new Counters();
    mkdir(folder, 0777);
    return (Counters*)map_file(std::string(folder) + "/" + std::to_string(getpid()) + ".counts", sizeof(Counters));
  }();
  return *found;
}

static std::atomic<Usage*> usages[64];
static std::atomic<bool> closing{false};
static thread_local int device_of_thread = 0;
static thread_local cudaError_t last_error = cudaSuccess;
static std::atomic<int> sticky_error{cudaSuccess};

int current_device() { return device_of_thread; }
bool is_closing() { return closing; }

Usage* usage_of(int device) { return usages[device]; }

void open_context() {
  int device = device_of_thread;
  if (usages[device] || device >= (int)visible_devices().size()) return;
  static auto& mutex = immortal<std::mutex>();
  std::lock_guard<std::mutex> lock(mutex);
  if (usages[device]) return;
  Device where = visible_devices()[device];
  std::string path = state_folder() + "/" + std::to_string(where.gpu) + "." + std::to_string(getpid());
  auto* usage = (Usage*)map_file(path, sizeof(Usage));
  usage->instance = where.instance < 0 ? NO_INSTANCE : (uint64_t)where.instance;
  usage->memory_bytes = CONTEXT_BYTES;
  usages[device] = usage;
  counters();  // a process that opens a context has counters, even if it launches nothing
}

void set_context_error(cudaError_t error) { sticky_error = error; }
cudaError_t context_error() { return (cudaError_t)sticky_error.load(); }

cudaError_t with_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// The result of a call that reaches the device.
static cudaError_t result() { return with_error(context_error()); }

// ---- streams

void Stream::put(std::function<void()> work) {
  // A GPU's launch queue is finite: if it is full, the launch blocks the host.
  static const size_t most = number_from("PAPER_QUEUE", 1024);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return queue_.size() < most || closing; });
  if (closing) return;
  queue_.push_back(std::move(work));
  if (!has_thread_) {
    has_thread_ = true;
    std::thread([this] { execute(); }).detach();
  }
  changed_.notify_all();
}

void Stream::execute() {
  device_of_thread = device;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    is_busy_ = false;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !queue_.empty() && !closing; });
    auto work = std::move(queue_.front());
    queue_.pop_front();
    is_busy_ = true;
    lock.unlock();
    uint64_t start = now_ns();
    // After a kernel's error the context is lost, and nothing else is executed.
    if (context_error() == cudaSuccess) work();
    work = nullptr;  // releases its captures before the stream becomes idle
    if (Usage* usage = usages[device]) usage->busy_ns += now_ns() - start;
    lock.lock();
  }
}

void Stream::synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return (queue_.empty() && !is_busy_) || closing; });
}

bool Stream::is_idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return queue_.empty() && !is_busy_;
}

struct Streams {
  std::mutex mutex;
  std::map<int, Stream*> defaults;
  std::vector<Stream*> all;
};

static Stream* new_stream() {
  open_context();
  auto* stream = new Stream(device_of_thread);
  auto& streams = immortal<Streams>();
  streams.all.push_back(stream);
  return stream;
}

Stream& stream_of(cudaStream_t stream) {
  if (stream && stream != cudaStreamLegacy && stream != cudaStreamPerThread) return *(Stream*)stream;
  auto& streams = immortal<Streams>();
  std::lock_guard<std::mutex> lock(streams.mutex);
  Stream*& found = streams.defaults[device_of_thread];
  if (!found) found = new_stream();
  return *found;
}

void synchronize_device(int device) {
  auto& streams = immortal<Streams>();
  std::vector<Stream*> here;
  {
    std::lock_guard<std::mutex> lock(streams.mutex);
    for (Stream* stream : streams.all)
      if (stream->device == device) here.push_back(stream);
  }
  for (Stream* stream : here) stream->synchronize();
}

// ---- events

// The state is shared with the streams' queues, because an event may be destroyed before it was reached.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t num_recorded = 0, num_reached = 0;
  uint64_t reached_ns = 0;
  void wait_for(uint64_t number) {
    std::unique_lock<std::mutex> lock(mutex);
    // Closing does not notify events, so it is polled.
    while (!changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return num_reached >= number; }) && !closing) {
    }
  }
  uint64_t recorded() {
    std::lock_guard<std::mutex> lock(mutex);
    return num_recorded;
  }
};
using Event = std::shared_ptr<EventState>;
static Event& event_of(cudaEvent_t event) { return *(Event*)event; }

// ---- launches

uint64_t& launches_of_thread() {
  static thread_local uint64_t number = 0;
  return number;
}

static std::atomic<bool> computes{false};
void start_computing() { computes = true; }
int& operator_depth() {
  static thread_local int depth = 0;
  return depth;
}

// Each launch must belong to a computed operator; otherwise numbers are wrong, so it is counted and reported.
static void note_launch() {
  launches_of_thread()++;
  if (!computes || operator_depth() > 0) return;
  if (counters().uncomputed_launches++ == 0)
    fprintf(stderr, "paper GPU: a kernel was launched that nothing computes; later ones are only counted\n");
}

static cudaError_t enqueue_kernel(cudaStream_t stream, std::function<void()> work) {
  open_context();
  if (work) stream_of(stream).put(std::move(work));
  return result();
}

cudaError_t launch(cudaStream_t stream) {
  counters().kernel_launches++;
  note_launch();
  static const long kernel_us = number_from("PAPER_KERNEL_US", 0);
  if (kernel_us) return enqueue_kernel(stream, [] { usleep(kernel_us); });
  // A kernel without duration and effect changes nothing on an idle stream; on a busy one it uses a queue entry.
  if (stream_of(stream).is_idle()) return enqueue_kernel(stream, nullptr);
  return enqueue_kernel(stream, [] {});
}

void count_library_launch() {
  counters().library_launches++;
  note_launch();
}

static std::mutex& kernels_mutex() { return immortal<std::mutex>(); }
// torch.cuda._sleep launches spin_kernel(cycles): the one kernel whose duration is part of its meaning.
static std::map<const void*, bool>& spin_kernels() { return immortal<std::map<const void*, bool>>(); }

static cudaError_t launch_function(const void* function, void** arguments, cudaStream_t stream) {
  bool spins;
  {
    std::lock_guard<std::mutex> lock(kernels_mutex());
    spins = spin_kernels().count(function);
  }
  if (!spins) return launch(stream);
  counters().kernel_launches++;
  uint64_t end_ns = (uint64_t)*(int64_t*)arguments[0];  // at 1 GHz a cycle is a nanosecond
  return enqueue_kernel(stream, [end_ns] {
    uint64_t start = now_ns();
    while (now_ns() - start < end_ns && !closing) usleep(1000);
  });
}

}  // namespace paper

using namespace paper;

// ---- for dispatch.cpp, libcuda and Python

API void paper_launch(cudaStream_t stream) { launch(stream); }
API int paper_has_context(int device) { return device >= 0 && device < 64 && usage_of(device) != nullptr; }
API uint64_t* paper_counters(int* count) {
  *count = sizeof(Counters) / sizeof(uint64_t);
  return (uint64_t*)&counters();
}
// Called when Python ends: stops all streams, so that none computes while torch's objects are destroyed.
API void paper_close() {
  closing = true;
  auto& streams = immortal<Streams>();
  std::lock_guard<std::mutex> lock(streams.mutex);
  for (Stream* stream : streams.all)
    for (int i = 0; i < 500 && !stream->is_idle(); i++) usleep(10000);
}

// ---- devices

API cudaError_t cudaDriverGetVersion(int* version) {
  *version = gpus().empty() ? 0 : driver().cuda;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  // A driver older than the runtime's major version cannot be used (CUDA Compatibility, "minor version").
  if (!gpus().empty() && driver().cuda / 1000 < CUDART_VERSION / 1000) return with_error(cudaErrorInsufficientDriver);
  *count = (int)visible_devices().size();
  return *count ? cudaSuccess : with_error(cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
static bool is_device(int device) { return device >= 0 && device < (int)visible_devices().size(); }
API cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return with_error(cudaErrorInvalidDevice);
  device_of_thread = device;
  open_context();  // since CUDA 12
  return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return with_error(cudaErrorInvalidDevice);
  Device where = visible_devices()[device];
  const Profile& profile = *gpus()[where.gpu].profile;
  memset(properties, 0, sizeof *properties);
  std::string name = profile.name;
  if (where.instance >= 0) name += std::string(" MIG ") + gpus()[where.gpu].instances[where.instance]->key;
  snprintf(properties->name, sizeof properties->name, "%s", name.c_str());
  memcpy(properties->uuid.bytes, uuid_bytes_of(where).data(), 16);
  properties->totalGlobalMem = memory_bytes_of(where);
  properties->major = profile.major;
  properties->minor = profile.minor;
  properties->multiProcessorCount = num_multiprocessors_of(where);
  properties->maxThreadsPerMultiProcessor = profile.threads_per_multiprocessor;
  properties->sharedMemPerMultiprocessor = profile.shared_kib_per_multiprocessor * 1024;
  properties->sharedMemPerBlockOptin = profile.shared_kib_per_block * 1024;
  properties->sharedMemPerBlock = 48 * 1024;
  properties->reservedSharedMemPerBlock = profile.major >= 8 ? 1024 : 0;
  properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
  properties->maxThreadsDim[2] = 64;
  properties->maxGridSize[0] = 2147483647;
  properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
  properties->maxBlocksPerMultiProcessor = profile.major >= 8 && profile.minor == 0 ? 32 : 16;
  properties->l2CacheSize = profile.l2_mib << 20;
  properties->textureAlignment = 512;
  properties->unifiedAddressing = properties->managedMemory = properties->concurrentKernels = 1;
  properties->cooperativeLaunch = properties->streamPrioritiesSupported = 1;
  properties->asyncEngineCount = 2;
  properties->memoryBusWidth = 384;
  properties->pciBusID = where.gpu + 1;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = properties.maxGridSize[0]; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrWarpSize: *value = properties.warpSize; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)properties.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)properties.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)properties.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = properties.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = properties.maxBlocksPerMultiProcessor; break;
    case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
    case cudaDevAttrClockRate: *value = 1000000; break;  // kHz
    case cudaDevAttrMemoryClockRate: *value = 1000000; break;
    case cudaDevAttrGlobalMemoryBusWidth: *value = properties.memoryBusWidth; break;
    case cudaDevAttrUnifiedAddressing: case cudaDevAttrCooperativeLaunch: *value = 1; break;
    default: *value = 0;  // features that are not simulated: memory pools, virtual memory, fabric handles
  }
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  if (!is_device(device)) return with_error(cudaErrorInvalidDevice);
  snprintf(text, size, "0000:%02x:00.0", visible_devices()[device].gpu + 1);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
API cudaError_t cudaDeviceSynchronize() {
  open_context();
  counters().synchronizations++;
  synchronize_device(current_device());
  return result();
}

// ---- errors

static const struct {
  cudaError_t error;
  const char *name, *text;
} ERRORS[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
};
API const char* cudaGetErrorString(cudaError_t error) {
  for (auto& row : ERRORS)
    if (row.error == error) return row.text;
  return "an error that the paper GPU has no text for";
}
API const char* cudaGetErrorName(cudaError_t error) {
  for (auto& row : ERRORS)
    if (row.error == error) return row.name;
  return "cudaErrorUnknown";
}
API cudaError_t cudaGetLastError() {
  cudaError_t error = context_error() ? context_error() : last_error;
  last_error = cudaSuccess;
  return error;
}
API cudaError_t cudaPeekAtLastError() { return context_error() ? context_error() : last_error; }

// ---- streams

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  std::lock_guard<std::mutex> lock(immortal<Streams>().mutex);
  *stream = (cudaStream_t)new_stream();
  return cudaSuccess;
}
API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
API cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }  // its thread stays idle until the process ends
API cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  *priority = 0;
  return cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t stream) {
  bool is_idle = stream_of(stream).is_idle();
  if (context_error()) return result();
  return is_idle ? cudaSuccess : with_error(cudaErrorNotReady);
}
API cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  counters().synchronizations++;
  stream_of(stream).synchronize();
  return result();
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  stream_of(stream).put([=] { function(data); });
  return result();
}
API cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  stream_of(stream).put([=] { function(stream, cudaSuccess, data); });
  return result();
}

// ---- CUDA graphs are not simulated: capture_begin raises torch's error "operation not supported"

API cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return with_error(cudaErrorNotSupported); }
API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                         cudaGraph_t* graph, const cudaGraphNode_t** nodes,
                                         const cudaGraphEdgeData** edges, size_t* count) {
  *status = cudaStreamCaptureStatusNone;
  if (id) *id = 0;
  if (graph) *graph = nullptr;
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

// ---- events

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  open_context();
  *event = (cudaEvent_t) new Event(std::make_shared<EventState>());
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete (Event*)event;
  return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  Event state = event_of(event);
  uint64_t number;
  {
    std::lock_guard<std::mutex> lock(state->mutex);
    number = ++state->num_recorded;
  }
  stream_of(stream).put([state, number] {
    std::lock_guard<std::mutex> lock(state->mutex);
    state->reached_ns = now_ns();
    if (number > state->num_reached) state->num_reached = number;
    state->changed.notify_all();
  });
  return result();
}
API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
API cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (context_error()) return result();
  EventState& state = *event_of(event);
  std::lock_guard<std::mutex> lock(state.mutex);
  return state.num_reached >= state.num_recorded || closing ? cudaSuccess : with_error(cudaErrorNotReady);
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  counters().synchronizations++;
  Event state = event_of(event);
  uint64_t number = state->recorded();
  // An error of a kernel ends the execution, so the event is never reached.
  std::unique_lock<std::mutex> lock(state->mutex);
  while (state->num_reached < number && !closing && !context_error())
    state->changed.wait_for(lock, std::chrono::milliseconds(20));
  return result();
}
API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  if (cudaError_t error = cudaEventQuery(start)) return error;
  if (cudaError_t error = cudaEventQuery(end)) return error;
  *ms = (float)((double)event_of(end)->reached_ns - (double)event_of(start)->reached_ns) / 1e6f;
  return result();
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Event state = event_of(event);
  uint64_t number = state->recorded();
  stream_of(stream).put([state, number] { state->wait_for(number); });
  return result();
}

// ---- kernels. nvcc's generated code registers each one and pushes the launch configuration around a call.

API void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API char __cudaInitModule(void**) { return 0; }
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
API void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*, void*, int*) {
  if (!name || !strstr(name, "spin_kernel")) return;
  std::lock_guard<std::mutex> lock(kernels_mutex());
  spin_kernels()[function] = true;
}

struct LaunchConfiguration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
static std::vector<LaunchConfiguration>& pushed() {
  static thread_local std::vector<LaunchConfiguration> stack;
  return stack;
}
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  pushed().push_back({grid, block, shared_bytes, stream});
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  LaunchConfiguration top = pushed().back();
  pushed().pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared_bytes = top.shared_bytes;
  *(cudaStream_t*)stream = top.stream;
  return cudaSuccess;
}
API cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch_function(function, arguments, stream);
}
API cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch_function(function, arguments, stream);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* configuration, const void* function, void** arguments) {
  return launch_function(function, arguments, configuration->stream);
}
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void** arguments, size_t, cudaStream_t stream) {
  return launch_function((const void*)kernel, arguments, stream);
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  cudaDeviceProp properties;
  if (cudaError_t error = cudaGetDeviceProperties(&properties, current_device())) return error;
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = properties.major * 10 + properties.minor;
  attributes->maxDynamicSharedSizeBytes = (int)properties.sharedMemPerBlockOptin;
  return cudaSuccess;
}
API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
API cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) {
  *count = 2;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, const void*, int, size_t) {
  *count = 2;
  return cudaSuccess;
}
API cudaError_t cudaProfilerStart() { return cudaSuccess; }
API cudaError_t cudaProfilerStop() { return cudaSuccess; }

// torch looks up every function of the driver that it may need. Functions that libcuda does not have must be
// found, too, and return CUDA_ERROR_NOT_SUPPORTED.
API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* query) {
  static void* driver_library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!driver_library) die(std::string("libcuda.so.1 is not found: ") + dlerror());
  *function = dlsym(driver_library, (std::string(name) + "_v2").c_str());
  if (!*function) *function = dlsym(driver_library, name);
  if (!*function) *function = (void*)+[]() -> int { return cudaErrorNotSupported; };
  if (query) *query = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
