#include "tests/cuda/fake/libcuda.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace {

FakeCuda state;
std::mutex mutex;
std::map<uint64_t, uint64_t> blocks;  // device memory: address -> bytes

struct Stream {
  // With its last launch.
  std::shared_ptr<std::atomic<bool>> is_busy = std::make_shared<std::atomic<bool>>(false);
  std::jthread work;
};
struct Event {
  std::shared_ptr<std::atomic<bool>> is_busy;  // what had been launched where it was recorded
};
// What nobody has given back; kept in sight of leak checkers.
std::set<void*> kept;
void* keep(void* thing) {
  const std::lock_guard lock(mutex);
  return *kept.insert(thing).first;
}
void forget(void* thing) {
  const std::lock_guard lock(mutex);
  kept.erase(thing);
}
std::map<uint64_t, uint64_t> registered;  // host memory: address -> its last page
constexpr int kInvalid = 1, kOutOfMemory = 2, kNotReady = 600;
constexpr int kAlreadyRegistered = 712, kNotRegistered = 713;

// A call that waits for running kernels, if the driver is of that kind: not for ever, so that tests fail and do
// not hang.
void wait_for_kernels() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (state.hostile.waits && state.running) {
    if (std::chrono::steady_clock::now() > end) {
      ++state.waited_in_vain;
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}
// Whether it is this call's turn to fail. Of calls that may wait, after they have.
bool is_refused(bool waits = true) {
  if (waits) wait_for_kernels();
  const std::lock_guard lock(mutex);
  return state.hostile.refuse_in > 0 && --state.hostile.refuse_in == 0;
}

int launch(unsigned blocks, unsigned threads, Stream* stream, const void* argument) {
  auto* kernel = state.kernel;
  // For whole programs, which cannot set one: a loop that never answers and never ends.
  if (!kernel && std::getenv("ARK_FAKE_CUDA_HANGS"))
    kernel = [](const void*, int, int) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    };
  if (!kernel) return kInvalid;
  if (stream->work.joinable()) stream->work.join();
  ++state.launches;
  ++state.running;
  // The parameter is copied at once, as the driver does.
  std::vector<std::byte> parameter(state.parameter_bytes);
  std::memcpy(parameter.data(), argument, parameter.size());
  stream->is_busy = std::make_shared<std::atomic<bool>>(true);
  stream->work =
      std::jthread([=, is_busy = stream->is_busy, parameter = std::move(parameter), hostile = state.hostile] {
        static std::mutex grid;
        std::unique_lock alone(grid, std::defer_lock);
        if (hostile.one_grid) alone.lock();
        std::this_thread::sleep_for(std::chrono::milliseconds(hostile.late_ms));
        kernel(parameter.data(), static_cast<int>(blocks), static_cast<int>(threads));
        --state.running;
        *is_busy = false;
      });
  return 0;
}

}  // namespace

extern "C" {

FakeCuda* fake_cuda() { return &state; }

int cuInit(unsigned) {
  const char* loading = std::getenv("CUDA_MODULE_LOADING");
  state.was_eager = loading && std::strcmp(loading, "EAGER") == 0;
  std::this_thread::sleep_for(std::chrono::milliseconds(state.hostile.init_ms));
  if (state.hostile.init_result) return state.hostile.init_result;
  return state.gpus ? 0 : 100;
}
int cuGetErrorName(int result, const char** name) {
  *name = result == 100   ? "CUDA_ERROR_NO_DEVICE"
          : result == 716 ? "CUDA_ERROR_MISALIGNED_ADDRESS"
                          : "CUDA_ERROR";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "the fake driver says so";
  return 0;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = state.gpus;
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int length, int) {
  std::strncpy(name, "Fake GPU", static_cast<std::size_t>(length));
  return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 13:
      *value = 1'980'000;
      break;
    case 16:
      *value = state.processors;
      break;
    case 36:
      *value = 2'619'000;
      break;
    case 37:
      *value = 5120;
      break;
    case 38:
      *value = 50 << 20;
      break;
    case 75:
      *value = state.major;
      break;
    case 76:
      *value = state.minor;
      break;
    case 95:
      *value = 1;
      break;
    case 97:
      *value = state.shared_per_block;
      break;
    case 102:
      *value = state.sharing.virtual_memory;
      break;
    case 103:
      *value = state.sharing.files;
      break;
    case 110:
      *value = state.nic.rdma_virtual;
      break;
    case 116:
      *value = state.nic.rdma;
      break;
    case 117:
      *value = state.nic.flush_options;
      break;
    case 118:
      *value = state.nic.ordering;
      break;
    case 124:
      *value = state.nic.dma_buf;
      break;
    case 128:
      *value = state.sharing.fabric;
      break;
    default:
      return kInvalid;
  }
  return 0;
}
int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = state.memory;
  return 0;
}
int cuDevicePrimaryCtxSetFlags_v2(int, unsigned) { return 0; }
int cuDevicePrimaryCtxRetain(void** context, int) {
  if (is_refused(false)) return kOutOfMemory;
  ++state.contexts;
  *context = &state;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) {
  --state.contexts;
  return 0;
}
int cuCtxSetCurrent(void*) { return 0; }

int cuMemAlloc_v2(uint64_t* address, std::size_t bytes) {
  if (is_refused()) return kOutOfMemory;
  const std::lock_guard lock(mutex);
  if (state.used + bytes > state.memory) return kOutOfMemory;
  void* memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  std::memset(memory, 0xa5, bytes);
  *address = reinterpret_cast<uint64_t>(memory);
  blocks[*address] = bytes;
  state.used += bytes;
  return 0;
}
int cuMemFree_v2(uint64_t address) {
  wait_for_kernels();
  const std::lock_guard lock(mutex);
  const auto block = blocks.find(address);
  if (block == blocks.end()) return kInvalid;
  state.used -= block->second;
  blocks.erase(block);
  std::free(reinterpret_cast<void*>(address));
  return 0;
}
int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  *total = state.memory;
  *free = state.memory - state.used;
  return 0;
}
int cuMemHostAlloc(void** host, std::size_t bytes, unsigned) {
  if (is_refused()) return kOutOfMemory;
  *host = keep(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
  ++state.mapped;
  return 0;
}
int cuMemFreeHost(void* host) {
  wait_for_kernels();
  --state.mapped;
  forget(host);
  std::free(host);
  return 0;
}
// A page is registered once, as the driver has it.
int cuMemHostRegister_v2(void* host, std::size_t bytes, unsigned) {
  if (is_refused()) return kOutOfMemory;
  const std::lock_guard lock(mutex);
  const uint64_t first = reinterpret_cast<uint64_t>(host) / 4096,
                 last = (reinterpret_cast<uint64_t>(host) + bytes - 1) / 4096;
  for (const auto& [other, end] : registered) {
    if (first <= end && last >= other / 4096) return kAlreadyRegistered;
  }
  registered[reinterpret_cast<uint64_t>(host)] = last;
  ++state.mapped;
  return 0;
}
int cuMemHostUnregister(void* host) {
  wait_for_kernels();
  const std::lock_guard lock(mutex);
  if (registered.erase(reinterpret_cast<uint64_t>(host)) == 0) return kNotRegistered;
  --state.mapped;
  return 0;
}
int cuMemHostGetDevicePointer_v2(uint64_t* address, void* host, unsigned) {
  if (is_refused()) return kOutOfMemory;
  *address = reinterpret_cast<uint64_t>(host);
  return state.address_result;
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, std::size_t bytes) {
  if (is_refused()) return kOutOfMemory;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, std::size_t bytes) {
  if (is_refused()) return kOutOfMemory;
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return 0;
}
int cuMemsetD8_v2(uint64_t to, unsigned char value, std::size_t bytes) {
  if (is_refused()) return kOutOfMemory;
  std::memset(reinterpret_cast<void*>(to), value, bytes);
  return 0;
}

int cuStreamCreate(Stream** stream, unsigned) {
  if (is_refused(false)) return kOutOfMemory;
  ++state.streams;
  keep(*stream = new Stream);
  return 0;
}
int cuStreamDestroy_v2(Stream* stream) {
  --state.streams;
  forget(stream);
  delete stream;
  return 0;
}
int cuStreamSynchronize(Stream* stream) {
  if (stream && stream->work.joinable()) stream->work.join();
  return 0;
}
int cuEventCreate(Event** event, unsigned) {
  if (is_refused(false)) return kOutOfMemory;
  ++state.events;
  keep(*event = new Event);
  return 0;
}
int cuEventDestroy_v2(Event* event) {
  --state.events;
  forget(event);
  delete event;
  return 0;
}
int cuEventRecord(Event* event, Stream* stream) {
  if (is_refused(false)) return kOutOfMemory;
  event->is_busy = stream->is_busy;
  return 0;
}
int cuEventQuery(Event* event) { return event->is_busy && *event->is_busy ? kNotReady : state.end_result; }
int cuEventSynchronize(Event* event) {
  while (event->is_busy && *event->is_busy) std::this_thread::sleep_for(std::chrono::microseconds(50));
  return 0;
}

int cuModuleLoadData(void** module, const void* code) {
  if (is_refused()) return kOutOfMemory;
  ++state.module_loads;
  if (state.module_result) return state.module_result;
  ++state.modules;
  *module = const_cast<void*>(code);
  return 0;
}
int cuModuleUnload(void*) {
  wait_for_kernels();
  --state.modules;
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (is_refused(false)) return kOutOfMemory;
  if (std::strcmp(name, "ark_loop") != 0) return 500;
  *function = module;
  return 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  return attribute == 8 && value <= state.shared_per_block ? 0 : kInvalid;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, std::size_t) {
  if (is_refused(false)) return kOutOfMemory;
  *blocks = state.blocks_each;
  return 0;
}
int cuLaunchCooperativeKernel(void*, unsigned x, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                              unsigned, Stream* stream, void** arguments) {
  if (is_refused(false)) return kOutOfMemory;
  return launch(x, threads, stream, arguments[0]);
}

#if !defined(ARK_FAKE_WITHOUT_GRAPHS)

// ---- memory that GPUs share: a file of memory each, whose last page says whose it is

struct Properties {  // CUmemAllocationProp
  int type, handle_types, location_type, device;
  void* windows;
  unsigned char compression, rdma, others[6];
};
struct Access {  // CUmemAccessDesc
  int location_type, device, flags;
};
struct SharedAllocation {
  int file;
  std::size_t bytes;
  int device;
  bool is_own, for_fabric, for_nic;
};
constexpr std::size_t kUnit = std::size_t{2} << 20, kPage = 4096;
constexpr int kFile = 1, kFabric = 8, kNotPermitted = 800, kNotSupported = 801, kInvalidDevice = 101;
std::map<uint64_t, SharedAllocation> shared;  // by handle
std::map<uint64_t, std::size_t> ranges;       // of addresses
std::map<uint64_t, uint64_t> mapped_there;    // by address: the handle
uint64_t next_handle = 1;

int cuMemGetAllocationGranularity(std::size_t* unit, const Properties* p, int) {
  if (is_refused(false) || p->type != 1 || p->location_type != 1) return kInvalid;
  *unit = kUnit;
  return 0;
}
int cuMemCreate(uint64_t* handle, std::size_t bytes, const Properties* p, unsigned long long) {
  if (is_refused()) return kOutOfMemory;
  if (bytes == 0 || bytes % kUnit != 0 || p->type != 1 || p->location_type != 1 || p->device >= state.gpus)
    return kInvalid;
  if ((p->handle_types & kFabric) && !state.sharing.fabric_is_up) return kNotPermitted;
  if (p->rdma && !state.nic.rdma_virtual) return kInvalidDevice;
  const std::lock_guard lock(mutex);
  if (state.used + bytes > state.memory) return kOutOfMemory;
  const int file = memfd_create("fake GPU memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes + kPage)) != 0) return kOutOfMemory;
  const int device = p->device;
  if (pwrite(file, &device, sizeof device, static_cast<off_t>(bytes)) != sizeof device) return kOutOfMemory;
  shared[*handle = next_handle++] = {file,        bytes, device, true, (p->handle_types & kFabric) != 0,
                                     p->rdma != 0};
  state.used += bytes;
  ++state.handles;
  return 0;
}
int cuMemRelease(uint64_t handle) {
  wait_for_kernels();
  const std::lock_guard lock(mutex);
  const auto it = shared.find(handle);
  if (it == shared.end()) return kInvalid;
  close(it->second.file);
  if (it->second.is_own) state.used -= it->second.bytes;
  shared.erase(it);
  --state.handles;
  return 0;
}
int cuMemExportToShareableHandle(void* to, uint64_t handle, int type, unsigned long long) {
  if (is_refused(false)) return kOutOfMemory;
  const std::lock_guard lock(mutex);
  const auto it = shared.find(handle);
  if (it == shared.end()) return kInvalid;
  if (type == kFile) {
    const int copy = fcntl(it->second.file, F_DUPFD_CLOEXEC, 0);
    std::memcpy(to, &copy, sizeof copy);
    return copy < 0 ? kOutOfMemory : 0;
  }
  if (type != kFabric || !it->second.for_fabric) return kNotSupported;
  std::snprintf(static_cast<char*>(to), 64, "/proc/%d/fd/%d", getpid(), it->second.file);
  return 0;
}
int cuMemImportFromShareableHandle(uint64_t* handle, void* from, int type) {
  if (is_refused(false)) return kOutOfMemory;
  int file = -1;
  if (type == kFile) {
    file = fcntl(static_cast<int>(reinterpret_cast<intptr_t>(from)), F_DUPFD_CLOEXEC, 0);
  } else if (type == kFabric && state.sharing.fabric) {
    file = open(static_cast<const char*>(from), O_RDWR | O_CLOEXEC);
  }
  struct stat status = {};
  int device = 0;
  const bool is_memory =
      file >= 0 && fstat(file, &status) == 0 && status.st_size > static_cast<off_t>(kPage) &&
      pread(file, &device, sizeof device, status.st_size - static_cast<off_t>(kPage)) == sizeof device;
  if (!is_memory) {
    if (file >= 0) close(file);
    return kInvalid;
  }
  if (state.sharing.loses_stores) {
    close(file);
    file = memfd_create("nobody's memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, status.st_size) != 0) return kOutOfMemory;
  }
  const std::lock_guard lock(mutex);
  shared[*handle = next_handle++] = {
      file, static_cast<std::size_t>(status.st_size) - kPage, device, false, false, false};
  ++state.handles;
  return 0;
}
int cuMemAddressReserve(uint64_t* address, std::size_t bytes, std::size_t, uint64_t, unsigned long long) {
  if (is_refused()) return kOutOfMemory;
  if (bytes == 0 || bytes % kUnit != 0) return kInvalid;
  void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return kOutOfMemory;
  const std::lock_guard lock(mutex);
  ranges[*address = reinterpret_cast<uint64_t>(range)] = bytes;
  ++state.ranges;
  return 0;
}
int cuMemAddressFree(uint64_t address, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto it = ranges.find(address);
  if (it == ranges.end() || it->second != bytes || mapped_there.count(address)) return kInvalid;
  munmap(reinterpret_cast<void*>(address), bytes);
  ranges.erase(it);
  --state.ranges;
  return 0;
}
int cuMemMap(uint64_t address, std::size_t bytes, std::size_t offset, uint64_t handle, unsigned long long) {
  if (is_refused()) return kOutOfMemory;
  const std::lock_guard lock(mutex);
  const auto range = ranges.find(address);
  const auto memory = shared.find(handle);
  if (range == ranges.end() || range->second != bytes || memory == shared.end() ||
      memory->second.bytes != bytes || offset != 0 || mapped_there.count(address))
    return kInvalid;
  if (mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->second.file,
           0) == MAP_FAILED)
    return kOutOfMemory;
  mapped_there[address] = handle;
  ++state.mappings;
  return 0;
}
int cuMemUnmap(uint64_t address, std::size_t bytes) {
  wait_for_kernels();
  const std::lock_guard lock(mutex);
  if (mapped_there.erase(address) == 0) return kInvalid;
  mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  --state.mappings;
  return 0;
}
// Before this, nobody can touch what is mapped.
int cuMemSetAccess(uint64_t address, std::size_t bytes, const Access* access, std::size_t count) {
  if (is_refused()) return kOutOfMemory;
  const std::lock_guard lock(mutex);
  const auto there = mapped_there.find(address);
  if (there == mapped_there.end() || count != 1 || access->flags != 3 || access->location_type != 1)
    return kInvalid;
  if (access->device != shared.at(there->second).device && !state.sharing.peers) return kInvalidDevice;
  return mprotect(reinterpret_cast<void*>(address), bytes, PROT_READ | PROT_WRITE) == 0 ? 0 : kInvalid;
}
// Of a whole mapping, which must have been made for NICs and be reachable by now.
int cuMemGetHandleForAddressRange(void* to, uint64_t address, std::size_t bytes, int type,
                                  unsigned long long flags) {
  if (is_refused(false)) return kOutOfMemory;
  const std::lock_guard lock(mutex);
  const auto there = mapped_there.find(address);
  if (there == mapped_there.end() || ranges.at(address) != bytes || type != 1 || flags != 0) return kInvalid;
  const SharedAllocation& memory = shared.at(there->second);
  if (!memory.for_nic || !state.nic.dma_buf) return kNotSupported;
  const int copy = fcntl(memory.file, F_DUPFD_CLOEXEC, 0);
  std::memcpy(to, &copy, sizeof copy);
  return copy < 0 ? kOutOfMemory : 0;
}
// Waits for nothing that a kernel does.
int cuFlushGPUDirectRDMAWrites(int target, int scope) {
  if (target != 0 || scope != 100) return kInvalid;
  if (state.nic.flush_result) return state.nic.flush_result;
  ++state.flushes;
  return 0;
}
int cuDeviceCanAccessPeer(int* can, int, int) {
  *can = state.sharing.peers;
  return 0;
}

// CUDA_KERNEL_NODE_PARAMS_v2.
struct Node {
  void* function;
  unsigned grid[3], block[3], shared;
  void** arguments;
  void **extra, *kernel, *context;
};
struct Graph {
  Node node{};
  std::vector<std::byte> parameter;
  bool is_cooperative = false;
};

int cuGraphCreate(Graph** graph, unsigned flags) {
  if (is_refused(false)) return kOutOfMemory;
  if (flags != 0) return kInvalid;
  ++state.graphs;
  keep(*graph = new Graph);
  return 0;
}
int cuGraphDestroy(Graph* graph) {
  --state.graphs;
  forget(graph);
  delete graph;
  return 0;
}
int cuGraphAddKernelNode_v2(Graph** handle, Graph* graph, const void*, std::size_t after, const Node* node) {
  if (is_refused(false)) return kOutOfMemory;
  if (state.node_result) return state.node_result;
  if (after != 0 || !node->function || node->extra || node->grid[1] * node->grid[2] != 1) return kInvalid;
  graph->node = *node;
  const auto* argument = static_cast<const std::byte*>(node->arguments[0]);
  graph->parameter.assign(argument, argument + state.parameter_bytes);
  *handle = graph;
  return 0;
}
int cuGraphKernelNodeSetAttribute(Graph* handle, int attribute, const int* value) {
  if (attribute != 2) return kInvalid;
  handle->is_cooperative = *value == 1;
  return 0;
}
int cuGraphInstantiateWithFlags(Graph** exec, Graph* graph, unsigned long long flags) {
  if (is_refused(false)) return kOutOfMemory;
  if (flags != 0 || !graph->node.function) return kInvalid;
  ++state.graphs;
  ++state.graphs_made;
  keep(*exec = new Graph(*graph));
  return 0;
}
int cuGraphExecDestroy(Graph* exec) { return cuGraphDestroy(exec); }
int cuGraphExecKernelNodeSetParams_v2(Graph* exec, Graph*, const Node* node) {
  if (node->function != exec->node.function) return kInvalid;
  ++state.graph_updates;
  exec->node = *node;
  const auto* argument = static_cast<const std::byte*>(node->arguments[0]);
  exec->parameter.assign(argument, argument + state.parameter_bytes);
  return 0;
}
// A loop whose blocks do not all run at once would hang: not cooperative is refused.
int cuGraphLaunch(Graph* exec, Stream* stream) {
  if (is_refused(false)) return kOutOfMemory;
  if (!exec->is_cooperative) return kInvalid;
  ++state.graph_launches;
  return launch(exec->node.grid[0], exec->node.block[0], stream, exec->parameter.data());
}

#endif

}  // extern "C"
