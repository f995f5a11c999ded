// Our declarations of the part of the CUDA driver API (12 and 13) that is used, by the names that libcuda exports.
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
  kDeviceL2 = 38,               // bytes
  kDeviceMajor = 75,
  kDeviceMinor = 76,
  kDeviceCooperative = 95,
  kDeviceSharedPerBlock = 97,
  kDeviceVirtualMemory = 102,  // cuMemCreate and what maps it
  kDeviceFileHandles = 103,    // of such memory, as descriptors
  kDeviceNicVirtual = 110,     // of such memory, for GPUDirect RDMA
  kDeviceNic = 116,            // GPUDirect RDMA
  kDeviceNicFlushes = 117,     // how its writes can be made visible
  kDeviceNicOrdering = 118,    // to whom they are without that
  kDeviceDmaBuf = 124,
  kDeviceFabricHandles = 128,
};

enum FunctionAttribute : int { kFunctionDynamicShared = 8 };

inline constexpr unsigned kPrimaryBlockingSync = 4;  // CU_CTX_SCHED_BLOCKING_SYNC
inline constexpr unsigned kHostPortableMapped = 3;   // of cuMemHostAlloc and cuMemHostRegister
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventNoTiming = 2;
inline constexpr int kNodeCooperative = 2;  // CU_LAUNCH_ATTRIBUTE_COOPERATIVE

inline constexpr int kMemoryPinned = 1;                   // CU_MEM_ALLOCATION_TYPE_PINNED: memory of a device
inline constexpr int kLocationDevice = 1;                 // CU_MEM_LOCATION_TYPE_DEVICE
inline constexpr int kHandleFile = 1, kHandleFabric = 8;  // CUmemAllocationHandleType
inline constexpr int kAccessReadWrite = 3;                // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
inline constexpr int kGranularityMinimum = 0;             // CU_MEM_ALLOC_GRANULARITY_MINIMUM
inline constexpr std::size_t kFabricHandleBytes = 64;     // CUmemFabricHandle
inline constexpr int kRangeDmaBuf = 1;                    // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
inline constexpr int kFlushByHost = 1;                    // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
inline constexpr int kFlushCurrentContext = 0;  // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX
inline constexpr int kOrderedForOwner = 100;    // CU_(FLUSH_)GPU_DIRECT_RDMA_WRITES_(ORDERING|TO)_OWNER

// CUmemLocation.
struct MemoryLocation {
  int type = kLocationDevice;
  int id = 0;  // of the device
};
// CUmemAllocationProp.
struct MemoryProperties {
  int type = kMemoryPinned;
  int handle_types = 0;
  MemoryLocation location;
  void* windows = nullptr;
  unsigned char compression = 0, rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
// CUmemAccessDesc.
struct MemoryAccess {
  MemoryLocation location;
  int flags = kAccessReadWrite;
};

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
  // Throws Error(kUnavailable) naming a function that the driver is too old for.
  explicit DriverApi(const Library& from) : library(from) {}

  const Library& library;
  int (*init)(unsigned) = library.function("cuInit");
  int (*error_name)(int, const char**) = library.function("cuGetErrorName");
  int (*error_text)(int, const char**) = library.function("cuGetErrorString");
  int (*version)(int*) = library.function("cuDriverGetVersion");
  int (*device_count)(int*) = library.function("cuDeviceGetCount");
  int (*device_get)(DriverDevice*, int ordinal) = library.function("cuDeviceGet");
  int (*device_name)(char*, int length, DriverDevice) = library.function("cuDeviceGetName");
  int (*device_attribute)(int*, int attribute, DriverDevice) = library.function("cuDeviceGetAttribute");
  int (*device_memory)(std::size_t*, DriverDevice) = library.function("cuDeviceTotalMem_v2");
  int (*primary_flags)(DriverDevice, unsigned) = library.function("cuDevicePrimaryCtxSetFlags_v2");
  int (*primary_retain)(DriverContext*, DriverDevice) = library.function("cuDevicePrimaryCtxRetain");
  int (*primary_release)(DriverDevice) = library.function("cuDevicePrimaryCtxRelease_v2");
  int (*set_current)(DriverContext) = library.function("cuCtxSetCurrent");
  int (*allocate)(uint64_t*, std::size_t) = library.function("cuMemAlloc_v2");
  int (*release)(uint64_t) = library.function("cuMemFree_v2");
  int (*memory_info)(std::size_t* free, std::size_t* total) = library.function("cuMemGetInfo_v2");
  int (*host_allocate)(void**, std::size_t, unsigned) = library.function("cuMemHostAlloc");
  int (*host_release)(void*) = library.function("cuMemFreeHost");
  int (*host_register)(void*, std::size_t, unsigned) = library.function("cuMemHostRegister_v2");
  int (*host_unregister)(void*) = library.function("cuMemHostUnregister");
  int (*host_address)(uint64_t*, void*, unsigned) = library.function("cuMemHostGetDevicePointer_v2");
  int (*upload)(uint64_t, const void*, std::size_t) = library.function("cuMemcpyHtoD_v2");
  int (*download)(void*, uint64_t, std::size_t) = library.function("cuMemcpyDtoH_v2");
  int (*fill)(uint64_t, unsigned char, std::size_t) = library.function("cuMemsetD8_v2");
  int (*stream_create)(DriverStream*, unsigned) = library.function("cuStreamCreate");
  int (*stream_destroy)(DriverStream) = library.function("cuStreamDestroy_v2");
  int (*stream_wait)(DriverStream) = library.function("cuStreamSynchronize");
  int (*event_create)(DriverEvent*, unsigned) = library.function("cuEventCreate");
  int (*event_destroy)(DriverEvent) = library.function("cuEventDestroy_v2");
  int (*event_record)(DriverEvent, DriverStream) = library.function("cuEventRecord");
  int (*event_query)(DriverEvent) = library.function("cuEventQuery");
  int (*event_wait)(DriverEvent) = library.function("cuEventSynchronize");
  int (*module_load)(DriverModule*, const void*) = library.function("cuModuleLoadData");
  int (*module_unload)(DriverModule) = library.function("cuModuleUnload");
  int (*module_function)(DriverFunction*, DriverModule,
                         const char*) = library.function("cuModuleGetFunction");
  int (*function_set)(DriverFunction, int attribute, int) = library.function("cuFuncSetAttribute");
  int (*resident_blocks)(int*, DriverFunction, int threads, std::size_t shared) =
      library.function("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  int (*launch_cooperative)(DriverFunction, unsigned x, unsigned y, unsigned z, unsigned block_x,
                            unsigned block_y, unsigned block_z, unsigned shared, DriverStream,
                            void** arguments) = library.function("cuLaunchCooperativeKernel");
};

// Graphs: looked up only where one is asked for (CUDA 12).
struct GraphApi {
  // Throws as DriverApi does.
  explicit GraphApi(const Library& from) : library(from) {}

  const Library& library;
  int (*create)(DriverGraph*, unsigned) = library.function("cuGraphCreate");
  int (*destroy)(DriverGraph) = library.function("cuGraphDestroy");
  int (*add_kernel)(DriverGraphNode*, DriverGraph, const DriverGraphNode* after, std::size_t,
                    const KernelNode*) = library.function("cuGraphAddKernelNode_v2");
  int (*set_attribute)(DriverGraphNode, int attribute,
                       const NodeAttribute*) = library.function("cuGraphKernelNodeSetAttribute");
  int (*instantiate)(DriverGraphExec*, DriverGraph,
                     unsigned long long) = library.function("cuGraphInstantiateWithFlags");
  int (*destroy_exec)(DriverGraphExec) = library.function("cuGraphExecDestroy");
  int (*set_kernel)(DriverGraphExec, DriverGraphNode,
                    const KernelNode*) = library.function("cuGraphExecKernelNodeSetParams_v2");
  int (*launch)(DriverGraphExec, DriverStream) = library.function("cuGraphLaunch");
};

// Memory that other GPUs and processes map: looked up only where ranks exchange (CUDA 11).
struct SharingApi {
  // Throws as DriverApi does.
  explicit SharingApi(const Library& from) : library(from) {}

  const Library& library;
  int (*can_access)(int*, DriverDevice, DriverDevice peer) = library.function("cuDeviceCanAccessPeer");
  int (*granularity)(std::size_t*, const MemoryProperties*,
                     int option) = library.function("cuMemGetAllocationGranularity");
  int (*create)(uint64_t* handle, std::size_t, const MemoryProperties*,
                unsigned long long flags) = library.function("cuMemCreate");
  int (*release)(uint64_t handle) = library.function("cuMemRelease");
  int (*export_handle)(void* to, uint64_t handle, int type,
                       unsigned long long flags) = library.function("cuMemExportToShareableHandle");
  int (*import_handle)(uint64_t* handle, void* from,
                       int type) = library.function("cuMemImportFromShareableHandle");
  int (*reserve)(uint64_t*, std::size_t, std::size_t alignment, uint64_t wanted,
                 unsigned long long flags) = library.function("cuMemAddressReserve");
  int (*unreserve)(uint64_t, std::size_t) = library.function("cuMemAddressFree");
  int (*map)(uint64_t, std::size_t, std::size_t offset, uint64_t handle,
             unsigned long long flags) = library.function("cuMemMap");
  int (*unmap)(uint64_t, std::size_t) = library.function("cuMemUnmap");
  int (*set_access)(uint64_t, std::size_t, const MemoryAccess*,
                    std::size_t count) = library.function("cuMemSetAccess");
};

// Memory that NICs reach: looked up only where ranks exchange by one (CUDA 11.7).
struct NicApi {
  // Throws as DriverApi does.
  explicit NicApi(const Library& from) : library(from) {}

  const Library& library;
  int (*export_range)(void* to, uint64_t, std::size_t, int type,
                      unsigned long long flags) = library.function("cuMemGetHandleForAddressRange");
  int (*flush_writes)(int target, int scope) = library.function("cuFlushGPUDirectRDMAWrites");
};

}  // namespace ark::cuda
