// NCCL: collectives between processes that compute real results, in shared memory.
//
// An operation is enqueued in its stream, so it begins when the stream reaches it and blocks the stream, not the
// host, until all ranks have joined. torch's ProcessGroupNCCL, its watchdog and its flight recorder are the real
// ones. If a rank is killed, the others keep waiting, as on a GPU: waits use futexes, which have no owner.
#include <nccl.h>

#include <climits>
#include <map>
#include <memory>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>

#include "runtime.h"

using namespace paper;

static const int MOST_RANKS = 64;
static const size_t PIECE = 1 << 20;  // bytes that a rank publishes per round
static const size_t BOX = 1 << 18;    // likewise, between two ranks

using Word = std::atomic<uint32_t>;

static void wake_all(Word& word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

struct Shared {
  Word num_joined, num_arrived, generation;
  Word num_mails;  // changes with each box that is filled or emptied
  struct {
    int gpu, color, key;
  } members[MOST_RANKS];
  Word box_bytes[MOST_RANKS][MOST_RANKS];  // from, to; 0: empty
};
static const size_t SHARED = (sizeof(Shared) + 4095) / 4096 * 4096;

struct ncclComm {
  int rank = 0, size = 0;
  std::string name;
  Shared* shared = nullptr;
  char* pieces = nullptr;
  int num_splits = 0;
  std::atomic<bool> is_aborted{false};
  // Operations of a communicator are executed in the order of their calls, even on different streams.
  std::mutex mutex;
  std::condition_variable turned;
  uint64_t num_called = 0, num_done = 0;

  char* piece(int of_rank) { return pieces + PIECE * of_rank; }
  char* box(int from, int to) { return pieces + PIECE * size + BOX * (from * size + to); }
  bool is_over() const { return is_aborted || is_closing(); }

  // Wait until the word has another value; false when the communicator was aborted.
  bool wait_while(Word& word, uint32_t value) {
    timespec interval{0, 20 * 1000 * 1000};
    while (word == value) {
      if (is_over()) return false;
      syscall(SYS_futex, &word, FUTEX_WAIT, value, &interval, nullptr, 0);
    }
    return true;
  }
  bool barrier() {
    uint32_t generation = shared->generation;
    if (++shared->num_arrived == (uint32_t)size) {
      shared->num_arrived = 0;
      shared->generation++;
      wake_all(shared->generation);
      return true;
    }
    return wait_while(shared->generation, generation);
  }
};

static thread_local std::string last_error_text;

static ncclResult_t fail(ncclResult_t error, const std::string& text) {
  last_error_text = text;
  return error;
}

// ---- data types and reductions

static size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8: case ncclUint8: case ncclFloat8e4m3: case ncclFloat8e5m2: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt32: case ncclUint32: case ncclFloat32: return 4;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 1;
  }
}

struct BFloat16 {
  uint16_t bits;
  operator float() const {
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
  }
  BFloat16& operator=(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    // To nearest, ties to even; NaN stays NaN.
    bits = value != value ? 0x7fc0 : (uint16_t)((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
    return *this;
  }
};

// Operations of ncclRedOpCreatePreMulSum: a sum of each rank's values times its factor.
static std::mutex factors_mutex;
static std::map<int, double>& factors() {
  static auto* found = new std::map<int, double>;
  return *found;
}

struct Operation {
  ncclRedOp_t op;
  double factor;
};
static Operation operation_of(ncclRedOp_t op) {
  std::lock_guard<std::mutex> lock(factors_mutex);
  auto found = factors().find(op);
  return found == factors().end() ? Operation{op, 1.0} : Operation{ncclSum, found->second};
}

// Each element is reduced by one rank, in the order of ranks, so all get the same bits. 16 bits accumulate in 32.
template <class T, class Sum>
static void reduce_as(char* to, ncclComm& comm, size_t first, size_t count, Operation operation) {
  for (size_t i = first; i < first + count; i++) {
    Sum total = (Sum)((T*)comm.piece(0))[i];
    if (operation.factor != 1.0) total = (Sum)(total * operation.factor);
    for (int rank = 1; rank < comm.size; rank++) {
      Sum value = (Sum)((T*)comm.piece(rank))[i];
      if (operation.factor != 1.0) value = (Sum)(value * operation.factor);
      switch (operation.op) {
        case ncclProd: total *= value; break;
        case ncclMax: total = value > total ? value : total; break;
        case ncclMin: total = value < total ? value : total; break;
        default: total += value;
      }
    }
    if (operation.op == ncclAvg) total /= (Sum)comm.size;
    ((T*)to)[i - first] = total;
  }
}

static void reduce(char* to, ncclComm& comm, size_t first, size_t count, ncclDataType_t type, Operation operation) {
  switch (type) {
    case ncclInt8: return reduce_as<int8_t, int8_t>(to, comm, first, count, operation);
    case ncclUint8: return reduce_as<uint8_t, uint8_t>(to, comm, first, count, operation);
    case ncclInt32: return reduce_as<int32_t, int32_t>(to, comm, first, count, operation);
    case ncclUint32: return reduce_as<uint32_t, uint32_t>(to, comm, first, count, operation);
    case ncclInt64: return reduce_as<int64_t, int64_t>(to, comm, first, count, operation);
    case ncclUint64: return reduce_as<uint64_t, uint64_t>(to, comm, first, count, operation);
    case ncclFloat16: return reduce_as<_Float16, float>(to, comm, first, count, operation);
    case ncclBfloat16: return reduce_as<BFloat16, float>(to, comm, first, count, operation);
    case ncclFloat32: return reduce_as<float, float>(to, comm, first, count, operation);
    case ncclFloat64: return reduce_as<double, double>(to, comm, first, count, operation);
    default: die("NCCL's data type " + std::to_string(type) + " cannot be reduced");
  }
}

// ---- groups and order

// One direction between two ranks. A group's transfers progress together: two ranks that only send until all is
// sent would deadlock.
struct Transfer {
  ncclComm* comm;
  bool sends;
  char* data;
  size_t size;
  int other;
  size_t done = 0;

  // Transfer the content of one box if possible.
  bool progress() {
    int from = sends ? comm->rank : other, to = sends ? other : comm->rank;
    Word& filled = comm->shared->box_bytes[from][to];
    if (done == size || (filled == 0) != sends) return false;
    size_t part = sends ? std::min(size - done, BOX) : (size_t)filled.load();
    if (sends)
      memcpy(comm->box(from, to), data + done, part);
    else
      memcpy(data + done, comm->box(from, to), part);
    done += part;
    filled = sends ? (uint32_t)part : 0;
    comm->shared->num_mails++;
    wake_all(comm->shared->num_mails);
    return true;
  }
};

static void exchange(std::vector<Transfer> transfers) {
  for (;;) {
    ncclComm& comm = *transfers[0].comm;
    uint32_t num_mails = comm.shared->num_mails;
    bool has_moved = false, is_done = true;
    for (Transfer& each : transfers) {
      while (each.progress()) has_moved = true;
      is_done = is_done && each.done == each.size;
    }
    if (is_done) return;
    if (!has_moved && !comm.wait_while(comm.shared->num_mails, num_mails)) return;
  }
}

struct Pending {
  ncclComm* comm;
  cudaStream_t stream;
  std::function<void()> collective;  // or:
  std::vector<Transfer> transfers;
};
static thread_local int group_depth = 0;
static thread_local std::vector<Pending> group;

static void put(Pending pending) {
  ncclComm* comm = pending.comm;
  uint64_t number;
  {
    std::lock_guard<std::mutex> lock(comm->mutex);
    number = comm->num_called++;
  }
  stream_of(pending.stream).put([comm, number, pending] {
    {
      std::unique_lock<std::mutex> lock(comm->mutex);
      while (comm->num_done != number && !comm->is_over()) comm->turned.wait_for(lock, std::chrono::milliseconds(20));
    }
    if (!comm->is_over()) pending.collective ? pending.collective() : exchange(pending.transfers);
    std::lock_guard<std::mutex> lock(comm->mutex);
    comm->num_done++;
    comm->turned.notify_all();
  });
}

static ncclResult_t call(Pending pending, size_t bytes) {
  if (context_error()) return fail(ncclUnhandledCudaError, cudaGetErrorString(context_error()));
  counters().collectives++;
  counters().collective_bytes += bytes;
  if (!group_depth) {
    put(std::move(pending));
  } else if (!pending.collective && !group.empty() && group.back().comm == pending.comm && !group.back().collective) {
    group.back().transfers.push_back(pending.transfers[0]);
  } else {
    group.push_back(std::move(pending));
  }
  return ncclSuccess;
}

API ncclResult_t ncclGroupStart() {
  group_depth++;
  return ncclSuccess;
}
API ncclResult_t ncclGroupEnd() {
  if (--group_depth) return ncclSuccess;
  for (Pending& each : group) put(std::move(each));
  group.clear();
  return ncclSuccess;
}
API ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) { return ncclSuccess; }

// ---- collectives

API ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  size_t width = size_of(type);
  Operation operation = operation_of(op);
  auto work = [=] {
    for (size_t start = 0; start < count; start += PIECE / width) {
      size_t num = std::min(count - start, PIECE / width);
      memcpy(comm->piece(comm->rank), (const char*)from + start * width, num * width);
      if (!comm->barrier()) return;
      // Every rank reduces its share into the first rank's piece; no other rank reads that share.
      size_t share = (num + comm->size - 1) / comm->size;
      size_t first = std::min(num, share * comm->rank), last = std::min(num, first + share);
      std::vector<char> reduced((last - first) * width);
      reduce(reduced.data(), *comm, first, last - first, type, operation);
      memcpy(comm->piece(0) + first * width, reduced.data(), reduced.size());
      if (!comm->barrier()) return;
      memcpy((char*)to + start * width, comm->piece(0), num * width);
      if (!comm->barrier()) return;
    }
  };
  return call({comm, stream, work, {}}, count * width);
}

API ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                            ncclComm_t comm, cudaStream_t stream) {
  size_t width = size_of(type);
  Operation operation = operation_of(op);
  auto work = [=] {
    for (size_t start = 0; start < count; start += PIECE / width) {
      size_t num = std::min(count - start, PIECE / width);
      memcpy(comm->piece(comm->rank), (const char*)from + start * width, num * width);
      if (!comm->barrier()) return;
      if (comm->rank == root) reduce((char*)to + start * width, *comm, 0, num, type, operation);
      if (!comm->barrier()) return;
    }
  };
  return call({comm, stream, work, {}}, count * width);
}

API ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                               ncclComm_t comm, cudaStream_t stream) {
  size_t size = count * size_of(type);
  auto work = [=] {
    for (size_t start = 0; start < size; start += PIECE) {
      size_t part = std::min(size - start, PIECE);
      if (comm->rank == root) memcpy(comm->piece(root), (const char*)from + start, part);
      if (!comm->barrier()) return;
      memcpy((char*)to + start, comm->piece(root), part);
      if (!comm->barrier()) return;
    }
  };
  return call({comm, stream, work, {}}, size);
}
API ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream) {
  return ncclBroadcast(data, data, count, type, root, comm, stream);
}

API ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                               cudaStream_t stream) {
  size_t size = count * size_of(type);
  auto work = [=] {
    // `from` may be part of `to`, at this rank's position; only that position has the same bytes then.
    for (size_t start = 0; start < size; start += PIECE) {
      size_t part = std::min(size - start, PIECE);
      memcpy(comm->piece(comm->rank), (const char*)from + start, part);
      if (!comm->barrier()) return;
      for (int rank = 0; rank < comm->size; rank++) memcpy((char*)to + rank * size + start, comm->piece(rank), part);
      if (!comm->barrier()) return;
    }
  };
  return call({comm, stream, work, {}}, size * comm->size);
}

API ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream) {
  size_t width = size_of(type);
  Operation operation = operation_of(op);
  auto work = [=] {
    std::vector<char> mine(count * width);  // `to` may be part of `from`
    for (int rank = 0; rank < comm->size; rank++)
      for (size_t start = 0; start < count; start += PIECE / width) {
        size_t num = std::min(count - start, PIECE / width);
        memcpy(comm->piece(comm->rank), (const char*)from + (rank * count + start) * width, num * width);
        if (!comm->barrier()) return;
        if (rank == comm->rank) reduce(mine.data() + start * width, *comm, 0, num, type, operation);
        if (!comm->barrier()) return;
      }
    memcpy(to, mine.data(), mine.size());
  };
  return call({comm, stream, work, {}}, count * width * comm->size);
}

API ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int to, ncclComm_t comm, cudaStream_t stream) {
  size_t size = count * size_of(type);
  return call({comm, stream, nullptr, {{comm, true, (char*)data, size, to}}}, size);
}
API ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int from, ncclComm_t comm, cudaStream_t stream) {
  size_t size = count * size_of(type);
  return call({comm, stream, nullptr, {{comm, false, (char*)data, size, from}}}, 0);
}
API ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                              cudaStream_t stream) {
  size_t size = count * size_of(type);
  Pending pending{comm, stream, nullptr, {}};
  for (int rank = 0; rank < comm->size; rank++) {
    pending.transfers.push_back({comm, true, (char*)from + rank * size, size, rank});
    pending.transfers.push_back({comm, false, (char*)to + rank * size, size, rank});
  }
  counters().collectives++;
  counters().collective_bytes += size * comm->size;
  if (group_depth)
    group.push_back(std::move(pending));
  else
    put(std::move(pending));
  return ncclSuccess;
}

API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                          ncclScalarResidence_t residence, ncclComm_t) {
  if (residence == ncclScalarDevice) stream_of(nullptr).synchronize();  // device memory is host memory here
  double factor;
  switch (type) {
    case ncclFloat16: factor = (float)*(_Float16*)scalar; break;
    case ncclBfloat16: factor = (float)*(BFloat16*)scalar; break;
    case ncclFloat32: factor = *(float*)scalar; break;
    case ncclFloat64: factor = *(double*)scalar; break;
    default: return fail(ncclInvalidArgument, "a PreMulSum of integers is not simulated");
  }
  std::lock_guard<std::mutex> lock(factors_mutex);
  static int next = ncclNumOps;
  *op = (ncclRedOp_t)next++;
  factors()[*op] = factor;
  return ncclSuccess;
}
API ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t) {
  std::lock_guard<std::mutex> lock(factors_mutex);
  factors().erase(op);
  return ncclSuccess;
}

// ---- communicators

static ncclResult_t join(ncclComm_t* made, int size, const std::string& name, int rank) {
  if (size > MOST_RANKS) return fail(ncclInvalidArgument, "the paper GPU's NCCL has at most 64 ranks");
  open_context();
  auto* comm = new ncclComm;  // never freed: streams may still hold operations of an aborted communicator
  comm->rank = rank;
  comm->size = size;
  comm->name = name;
  std::string path = state_folder() + "/nccl-" + name;
  char* memory = (char*)map_file(path, SHARED + PIECE * size + BOX * size * size);
  comm->shared = (Shared*)memory;
  comm->pieces = memory + SHARED;
  Shared& shared = *comm->shared;
  int gpu = visible_devices()[current_device()].gpu;
  shared.members[rank].gpu = gpu;
  shared.num_joined++;
  wake_all(shared.num_joined);
  static const long join_s = number_from("PAPER_NCCL_JOIN_S", 600);
  timespec start, now;
  clock_gettime(CLOCK_MONOTONIC, &start);
  while (shared.num_joined < (uint32_t)size) {
    timespec interval{0, 100 * 1000 * 1000};
    syscall(SYS_futex, &shared.num_joined, FUTEX_WAIT, (uint32_t)shared.num_joined, &interval, nullptr, 0);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec - start.tv_sec > join_s) return fail(ncclSystemError, "not all ranks joined the communicator");
    if (is_closing()) return fail(ncclSystemError, "the process ends");
  }
  if (rank == 0) unlink(path.c_str());
  // NCCL compares PCI bus ids, so two MIG instances of a GPU are the same one, too.
  for (int other = 0; other < size; other++)
    if (other != rank && shared.members[other].gpu == gpu) {
      char text[128];
      snprintf(text, sizeof text, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %x000", rank, other, gpu + 1);
      return fail(ncclInvalidUsage, text);
    }
  *made = comm;
  return ncclSuccess;
}

static std::string name_of(const ncclUniqueId& id) {
  std::string name;
  char digits[3];
  for (int i = 0; i < 16; i++) {
    snprintf(digits, sizeof digits, "%02x", (unsigned char)id.internal[i]);
    name += digits;
  }
  return name;
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  int source = open("/dev/urandom", O_RDONLY);
  bool is_complete = read(source, id->internal, 16) == 16;
  close(source);
  return is_complete ? ncclSuccess : fail(ncclSystemError, "cannot read /dev/urandom");
}
API ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  return join(comm, size, name_of(id), rank);
}
API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return join(comm, size, name_of(id), rank);
}
API ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId* ids, ncclConfig_t*) {
  return join(comm, size, name_of(*ids), rank);
}
API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t*) {
  auto& members = comm->shared->members;
  members[comm->rank].color = color;
  members[comm->rank].key = key;
  if (!comm->barrier()) return fail(ncclInternalError, "the communicator was aborted");
  int size = 0, rank = 0;
  for (int other = 0; other < comm->size; other++) {
    if (members[other].color != color) continue;
    size++;
    rank += members[other].key < key || (members[other].key == key && other < comm->rank);
  }
  if (!comm->barrier()) return fail(ncclInternalError, "the communicator was aborted");
  *made = nullptr;
  std::string name = comm->name + "-" + std::to_string(comm->num_splits++) + "-" + std::to_string(color);
  return color == NCCL_SPLIT_NOCOLOR ? ncclSuccess : join(made, size, name, rank);
}
API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm) comm->is_aborted = true;
  return ncclSuccess;
}
API ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
API ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }
API ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
API ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = comm->size;
  return ncclSuccess;
}
API ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
API const char* ncclGetErrorString(ncclResult_t error) {
  switch (error) {
    case ncclSuccess: return "no error";
    case ncclUnhandledCudaError: return "unhandled cuda error";
    case ncclSystemError: return "unhandled system error";
    case ncclInternalError: return "internal error";
    case ncclInvalidArgument: return "invalid argument";
    case ncclInvalidUsage: return "invalid usage";
    case ncclRemoteError: return "remote process exited or there was a network error";
    case ncclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}
API const char* ncclGetLastError(ncclComm_t) { return last_error_text.c_str(); }
API ncclResult_t ncclCommRegister(ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
API ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }
API ncclResult_t ncclMemAlloc(void** address, size_t size) {
  return allocate_on_device(address, size) ? fail(ncclUnhandledCudaError, "out of memory") : ncclSuccess;
}
API ncclResult_t ncclMemFree(void* address) {
  return free_memory(address) ? fail(ncclInvalidArgument, "not allocated by ncclMemAlloc") : ncclSuccess;
}
API ncclResult_t ncclCommMemStats(ncclComm_t, ncclCommMemStat_t, uint64_t* value) {
  *value = 0;
  return ncclSuccess;
}
