// Our declarations of the part of the CUDA driver API (12 and 13) that is used, by the names that libcuda
// exports.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/library.h"

namespace ark::cuda {

using DriverDevice = int;
using DriverContext = struct ContextTag*;
using DriverModule = struct ModuleTag*;
using DriverFunction = struct FunctionTag*;
using DriverStream = struct StreamTag*;
using DriverEvent = struct EventTag*;
using DriverGraph = struct GraphTag*;
using DriverGraphNode = struct GraphNodeTag*;
using DriverGraphExec = struct GraphExecTag*;

enum DriverResult : int {
  kDriverSuccess = 0,
  kDriverOutOfMemory = 2,
  kDriverNotReady = 600,
};

enum DeviceAttribute : int {
  kDeviceClockRate = 13,
  kDeviceProcessors = 16,
  kDeviceMemoryClockRate = 36,  // kHz
  kDeviceMemoryBusWidth = 37,   // bits
  kDeviceMajor = 75,
  kDeviceMinor = 76,
  kDeviceCooperative = 95,
  kDeviceSharedPerBlock = 97,
};

enum FunctionAttribute : int { kFunctionDynamicShared = 8 };

inline constexpr unsigned kPrimaryBlockingSync = 4;  // CU_CTX_SCHED_BLOCKING_SYNC
inline constexpr unsigned kHostPortableMapped = 3;   // of cuMemHostAlloc and cuMemHostRegister
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventNoTiming = 2;
inline constexpr int kNodeCooperative = 2;  // CU_LAUNCH_ATTRIBUTE_COOPERATIVE

// CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelNode {
  DriverFunction function = nullptr;
  unsigned grid_x = 1, grid_y = 1, grid_z = 1, block_x = 1, block_y = 1, block_z = 1, shared_bytes = 0;
  void** arguments = nullptr;
  void** extra = nullptr;
  void* kernel = nullptr;           // instead of `function`
  DriverContext context = nullptr;  // null: the function's
};

// CUlaunchAttributeValue.
union alignas(8) NodeAttribute {
  char bytes[64];
  int cooperative;
};

struct DriverApi {
  int (*init)(unsigned);
  int (*error_name)(int, const char**);
  int (*error_text)(int, const char**);
  int (*version)(int*);
  int (*device_count)(int*);
  int (*device_get)(DriverDevice*, int ordinal);
  int (*device_name)(char*, int length, DriverDevice);
  int (*device_attribute)(int*, int attribute, DriverDevice);
  int (*device_memory)(std::size_t*, DriverDevice);
  int (*primary_flags)(DriverDevice, unsigned);
  int (*primary_retain)(DriverContext*, DriverDevice);
  int (*primary_release)(DriverDevice);
  int (*set_current)(DriverContext);
  int (*allocate)(uint64_t*, std::size_t);
  int (*release)(uint64_t);
  int (*memory_info)(std::size_t* free, std::size_t* total);
  int (*host_allocate)(void**, std::size_t, unsigned);
  int (*host_release)(void*);
  int (*host_register)(void*, std::size_t, unsigned);
  int (*host_unregister)(void*);
  int (*host_address)(uint64_t*, void*, unsigned);
  int (*upload)(uint64_t, const void*, std::size_t);
  int (*download)(void*, uint64_t, std::size_t);
  int (*clear)(uint64_t, unsigned char, std::size_t);
  int (*stream_create)(DriverStream*, unsigned);
  int (*stream_destroy)(DriverStream);
  int (*stream_wait)(DriverStream);
  int (*event_create)(DriverEvent*, unsigned);
  int (*event_destroy)(DriverEvent);
  int (*event_record)(DriverEvent, DriverStream);
  int (*event_query)(DriverEvent);
  int (*event_wait)(DriverEvent);
  int (*module_load)(DriverModule*, const void*);
  int (*module_unload)(DriverModule);
  int (*module_function)(DriverFunction*, DriverModule, const char*);
  int (*function_set)(DriverFunction, int attribute, int);
  int (*resident_blocks)(int*, DriverFunction, int threads, std::size_t shared);
  int (*launch_cooperative)(DriverFunction, unsigned x, unsigned y, unsigned z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, DriverStream,
                            void** arguments);

  // Throws Error(kUnavailable) naming a function that the driver is too old for.
  static DriverApi of(const Library& library);
};

// Graphs: looked up only where one is asked for (CUDA 12).
struct GraphApi {
  int (*create)(DriverGraph*, unsigned);
  int (*destroy)(DriverGraph);
  int (*add_kernel)(DriverGraphNode*, DriverGraph, const DriverGraphNode* after, std::size_t,
                    const KernelNode*);
  int (*set_attribute)(DriverGraphNode, int attribute, const NodeAttribute*);
  int (*instantiate)(DriverGraphExec*, DriverGraph, unsigned long long);
  int (*destroy_exec)(DriverGraphExec);
  int (*set_kernel)(DriverGraphExec, DriverGraphNode, const KernelNode*);
  int (*launch)(DriverGraphExec, DriverStream);

  // Throws as DriverApi::of().
  static GraphApi of(const Library& library);
};

}  // namespace ark::cuda
