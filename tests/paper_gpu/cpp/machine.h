// The simulated machine: its GPUs, its driver and the processes on its GPUs. Included by all libraries.
//
// Everything comes from environment variables, which are read once per process, and from the folder of
// PAPER_STATE, which has one file per process and GPU. tests/paper_gpu/python/paper_gpu/__init__.py documents both.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace paper {

constexpr uint64_t MIB = 1ull << 20;

struct Profile {
  const char* key;   // as in PAPER_GPU
  const char* name;  // contains "paper", so that it is not mistaken for the real product
  int major, minor;  // compute capability
  uint64_t memory_mib;
  int num_multiprocessors;
  int threads_per_multiprocessor;
  int shared_kib_per_multiprocessor;
  int shared_kib_per_block;  // opt-in maximum
  int l2_mib;
  int power_watts;
};

// Memory as nvidia-smi reports it; the rest is from the CUDA C++ Programming Guide and NVIDIA's data sheets.
constexpr Profile PROFILES[] = {
    {"T4", "Tesla T4 (paper)", 7, 5, 15360, 40, 1024, 64, 64, 4, 70},
    {"RTX3060", "NVIDIA GeForce RTX 3060 (paper)", 8, 6, 12288, 28, 1536, 100, 99, 3, 170},
    {"A100", "NVIDIA A100-SXM4-80GB (paper)", 8, 0, 81920, 108, 2048, 164, 163, 40, 400},
    {"H100", "NVIDIA H100 80GB HBM3 (paper)", 9, 0, 81559, 132, 2048, 228, 227, 50, 700},
};

// Parts (MIG instances) of an A100 or H100 of 80 GB.
struct InstanceProfile {
  const char* key;
  uint64_t memory_mib;
  int num_multiprocessors;
};
constexpr InstanceProfile INSTANCE_PROFILES[] = {
    {"1g.10gb", 9728, 14}, {"2g.20gb", 19968, 28}, {"3g.40gb", 40192, 42}, {"4g.40gb", 40192, 56}, {"7g.80gb", 80896, 98},
};

// The latest CUDA that a driver supports (CUDA Toolkit release notes, table 3).
struct DriverRelease {
  int branch;
  const char* version;
  int cuda;
};
constexpr DriverRelease DRIVERS[] = {
    {470, "470.256.02", 11040}, {510, "510.108.03", 11060}, {535, "535.183.06", 12020},
    {550, "550.163.01", 12040}, {570, "570.172.08", 12080}, {580, "580.105.08", 13000},
};

struct Gpu {
  const Profile* profile;
  std::vector<const InstanceProfile*> instances;  // empty: not divided
};

// A CUDA device: a GPU or an instance of one.
struct Device {
  int gpu;
  int instance;  // -1: the complete GPU
};

// One process on one GPU: the content of its file `<gpu>.<pid>` in PAPER_STATE. The process maps the file, so
// that other processes read current values, also after a kill.
struct Usage {
  std::atomic<uint64_t> memory_bytes;
  std::atomic<uint64_t> busy_ns;             // of this process's streams
  std::atomic<uint64_t> utilization_percent;  // in addition to busy_ns; for processes that are not simulated
  std::atomic<uint64_t> instance;             // index of the MIG instance, or NO_INSTANCE
  std::atomic<uint64_t> flags;
};
constexpr uint64_t NO_INSTANCE = ~0ull;
constexpr uint64_t DRAWS = 1;   // listed by NVML among graphics processes
constexpr uint64_t ALWAYS = 2;  // listed although no process of this pid can be seen (another container)
// A CUDA context and the driver take memory before the first allocation.
constexpr uint64_t CONTEXT_BYTES = 400 * MIB;

[[noreturn]] inline void die(const std::string& message) {
  fprintf(stderr, "paper GPU: %s\n", message.c_str());
  abort();
}

inline long number_from(const char* variable, long otherwise) {
  const char* text = getenv(variable);
  if (!text || !*text) return otherwise;
  char* end;
  long value = strtol(text, &end, 10);
  if (*end || value < 0) die(std::string(variable) + " is '" + text + "'; it has to be a number from 0 on");
  return value;
}

inline std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= text.size();) {
    size_t end = text.find(separator, start);
    if (end == std::string::npos) end = text.size();
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

template <class Row, size_t N>
const Row& row_of(const Row (&table)[N], const std::string& key, const char* what) {
  std::string known;
  for (const Row& row : table) {
    if (key == row.key) return row;
    known += std::string(known.empty() ? "" : ", ") + row.key;
  }
  die("PAPER_GPU names the " + std::string(what) + " '" + key + "'; there are " + known);
}

// All GPUs of the machine. PAPER_GPU is a comma-separated list of PROFILE[/INSTANCE+INSTANCE…][xCOUNT].
inline const std::vector<Gpu>& gpus() {
  static const std::vector<Gpu>* all = [] {
    auto* found = new std::vector<Gpu>;
    const char* text = getenv("PAPER_GPU");
    for (std::string item : split(text ? text : "", ',')) {
      if (item.empty()) continue;
      long count = 1;
      size_t times = item.rfind('x');
      if (times != std::string::npos) {
        count = strtol(item.c_str() + times + 1, nullptr, 10);
        if (count < 1 || count > 64) die("PAPER_GPU has the count in '" + item + "'; it has to be from 1 to 64");
        item.resize(times);
      }
      Gpu gpu;
      size_t slash = item.find('/');
      gpu.profile = &row_of(PROFILES, item.substr(0, slash), "profile");
      if (slash != std::string::npos)
        for (const std::string& key : split(item.substr(slash + 1), '+'))
          gpu.instances.push_back(&row_of(INSTANCE_PROFILES, key, "MIG instance"));
      found->insert(found->end(), count, gpu);
    }
    return found;
  }();
  return *all;
}

inline const DriverRelease& driver() {
  static const DriverRelease* release = [] {
    long branch = number_from("PAPER_DRIVER", 580);
    for (const DriverRelease& row : DRIVERS)
      if (row.branch == branch) return &row;
    die("PAPER_DRIVER is " + std::to_string(branch) + "; there are 470, 510, 535, 550, 570 and 580");
  }();
  return *release;
}

inline uint64_t memory_bytes_of(Device device) {
  static const uint64_t override_mib = number_from("PAPER_MEMORY_MIB", 0);
  const Gpu& gpu = gpus()[device.gpu];
  if (device.instance >= 0) return gpu.instances[device.instance]->memory_mib * MIB;
  return (override_mib ? override_mib : gpu.profile->memory_mib) * MIB;
}

inline int num_multiprocessors_of(Device device) {
  const Gpu& gpu = gpus()[device.gpu];
  return device.instance < 0 ? gpu.profile->num_multiprocessors : gpu.instances[device.instance]->num_multiprocessors;
}

// 16 bytes; "paper" in ASCII, then the GPU and the instance.
inline std::vector<unsigned char> uuid_bytes_of(Device device) {
  std::vector<unsigned char> bytes = {'p', 'a', 'p', 'e', 'r'};
  bytes.resize(16);
  bytes[7] = (unsigned char)(device.instance + 1);
  bytes[15] = (unsigned char)device.gpu;
  return bytes;
}

inline std::string uuid_of(Device device) {
  std::string text = device.instance < 0 ? "GPU-" : "MIG-";
  std::vector<unsigned char> bytes = uuid_bytes_of(device);
  for (size_t i = 0; i < bytes.size(); i++) {
    char digits[4];
    snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += (i == 4 || i == 6 || i == 8 || i == 10) ? std::string("-") + digits : std::string(digits);
  }
  return text;
}

// The devices selected by CUDA_VISIBLE_DEVICES, in its order. The driver reads it once, in cuInit.
inline std::vector<Device> read_visible_devices() {
  std::vector<Device> whole, found;
  for (int i = 0; i < (int)gpus().size(); i++) {
    // By default CUDA uses the first instance of a divided GPU.
    whole.push_back({i, gpus()[i].instances.empty() ? -1 : 0});
  }
  const char* text = getenv("CUDA_VISIBLE_DEVICES");
  if (!text) {
    found = whole;
  } else {
    for (const std::string& name : split(text, ',')) {
      Device match{-1, -1};
      int num_matches = 0;
      char* end;
      long index = strtol(name.c_str(), &end, 10);
      if (!name.empty() && !*end && index >= 0 && index < (long)whole.size()) {
        match = whole[index];
        num_matches = 1;
      } else if (name.size() > 4) {
        for (int i = 0; i < (int)gpus().size(); i++) {
          std::vector<Device> candidates;
          if (gpus()[i].instances.empty()) candidates.push_back({i, -1});
          for (int k = 0; k < (int)gpus()[i].instances.size(); k++) candidates.push_back({i, k});
          for (Device each : candidates)
            if (!uuid_of(each).compare(0, name.size(), name)) match = each, num_matches++;
        }
      }
      if (num_matches != 1) break;  // the first unknown name hides everything after it
      for (Device each : found)
        if (each.gpu == match.gpu && each.instance == match.instance) return {};  // a repeated name hides all
      found.push_back(match);
    }
  }
  // A process uses at most one MIG instance (MIG User Guide, "Device Enumeration").
  for (Device each : found)
    if (each.instance >= 0) return {each};
  return found;
}

inline const std::vector<Device>& visible_devices() {
  static const auto* devices = new std::vector<Device>(read_visible_devices());
  return *devices;
}

inline std::string state_folder() {
  const char* folder = getenv("PAPER_STATE");
  std::string path = folder && *folder ? folder : "/dev/shm/paper-gpu-" + std::to_string(getuid());
  mkdir(path.c_str(), 0777);
  return path;
}

// Return a mapping of a new file of this size, zeroed, which other processes can read.
inline void* map_file(const std::string& path, size_t size) {
  int file = open(path.c_str(), O_RDWR | O_CREAT, 0644);
  if (file < 0 || ftruncate(file, size)) die("cannot write " + path + ": " + strerror(errno));
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) die("cannot map " + path + ": " + strerror(errno));
  return memory;
}

struct GpuProcess {
  int pid;
  uint64_t memory_bytes, busy_ns, utilization_percent, instance, flags;
};

inline bool is_alive(int pid) {
  char path[64], line[512];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE* file = fopen(path, "r");
  if (!file) return false;
  bool is_zombie = true;
  if (fgets(line, sizeof line, file)) {
    const char* name_end = strrchr(line, ')');
    is_zombie = !name_end || name_end[2] == 'Z';
  }
  fclose(file);
  return !is_zombie;
}

// The processes on a GPU. Files of processes that have ended are removed, as a driver frees their memory.
inline std::vector<GpuProcess> processes_on(int gpu) {
  std::vector<GpuProcess> found;
  std::string folder = state_folder();
  DIR* listing = opendir(folder.c_str());
  if (!listing) return found;
  while (dirent* entry = readdir(listing)) {
    int index, pid, length = 0;
    if (sscanf(entry->d_name, "%d.%d%n", &index, &pid, &length) != 2 || entry->d_name[length] || index != gpu) continue;
    std::string path = folder + "/" + entry->d_name;
    uint64_t values[5] = {};
    int file = open(path.c_str(), O_RDONLY);
    if (file < 0) continue;
    bool is_complete = read(file, values, sizeof values) == (ssize_t)sizeof values;
    close(file);
    if (!is_complete) continue;  // just being created
    if (!(values[4] & ALWAYS) && !is_alive(pid)) {
      unlink(path.c_str());
      continue;
    }
    found.push_back({pid, values[0], values[1], values[2], values[3], values[4]});
  }
  closedir(listing);
  return found;
}

// Memory allocated by all processes on a device.
inline uint64_t used_bytes_of(Device device) {
  uint64_t used = 0;
  for (const GpuProcess& each : processes_on(device.gpu))
    if (device.instance < 0 || each.instance == (uint64_t)device.instance) used += each.memory_bytes;
  return used;
}

}  // namespace paper
