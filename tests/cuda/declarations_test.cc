// Our own declarations of the driver API and NVRTC against the real headers, where a toolkit has them.
#include <gtest/gtest.h>

#include "engine/cuda/driver_api.h"

#if __has_include("/usr/local/cuda/include/cuda.h")
#include "/usr/local/cuda/include/cuda.h"

namespace ark::cuda {
namespace {

// Same number of parameters, each passed alike: pointers where pointers are, integers of the same size.
template <class Ours, class Theirs>
constexpr bool kPassedAlike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
template <class Ours, class Theirs>
constexpr bool kSameCall = false;
template <class... Ours, class... Theirs>
constexpr bool kSameCall<int (*)(Ours...), CUresult (*)(Theirs...)> = [] {
  if constexpr (sizeof...(Ours) == sizeof...(Theirs)) {
    return (kPassedAlike<Ours, Theirs> && ...);
  } else {
    return false;
  }
}();
#define ARK_SAME_CALL(member, function) \
  static_assert(kSameCall<decltype(DriverApi::member), decltype(&::function)>, #function)
#define ARK_SAME_GRAPH_CALL(member, function) \
  static_assert(kSameCall<decltype(GraphApi::member), decltype(&::function)>, #function)

ARK_SAME_CALL(init, cuInit);
ARK_SAME_CALL(error_name, cuGetErrorName);
ARK_SAME_CALL(error_text, cuGetErrorString);
ARK_SAME_CALL(version, cuDriverGetVersion);
ARK_SAME_CALL(device_count, cuDeviceGetCount);
ARK_SAME_CALL(device_get, cuDeviceGet);
ARK_SAME_CALL(device_name, cuDeviceGetName);
ARK_SAME_CALL(device_attribute, cuDeviceGetAttribute);
ARK_SAME_CALL(device_memory, cuDeviceTotalMem_v2);
ARK_SAME_CALL(primary_flags, cuDevicePrimaryCtxSetFlags_v2);
ARK_SAME_CALL(primary_retain, cuDevicePrimaryCtxRetain);
ARK_SAME_CALL(primary_release, cuDevicePrimaryCtxRelease_v2);
ARK_SAME_CALL(set_current, cuCtxSetCurrent);
ARK_SAME_CALL(allocate, cuMemAlloc_v2);
ARK_SAME_CALL(release, cuMemFree_v2);
ARK_SAME_CALL(memory_info, cuMemGetInfo_v2);
ARK_SAME_CALL(host_allocate, cuMemHostAlloc);
ARK_SAME_CALL(host_release, cuMemFreeHost);
ARK_SAME_CALL(host_register, cuMemHostRegister_v2);
ARK_SAME_CALL(host_unregister, cuMemHostUnregister);
ARK_SAME_CALL(host_address, cuMemHostGetDevicePointer_v2);
ARK_SAME_CALL(upload, cuMemcpyHtoD_v2);
ARK_SAME_CALL(download, cuMemcpyDtoH_v2);
ARK_SAME_CALL(fill, cuMemsetD8_v2);
ARK_SAME_CALL(stream_create, cuStreamCreate);
ARK_SAME_CALL(stream_destroy, cuStreamDestroy_v2);
ARK_SAME_CALL(stream_wait, cuStreamSynchronize);
ARK_SAME_CALL(event_create, cuEventCreate);
ARK_SAME_CALL(event_destroy, cuEventDestroy_v2);
ARK_SAME_CALL(event_record, cuEventRecord);
ARK_SAME_CALL(event_query, cuEventQuery);
ARK_SAME_CALL(event_wait, cuEventSynchronize);
ARK_SAME_CALL(module_load, cuModuleLoadData);
ARK_SAME_CALL(module_unload, cuModuleUnload);
ARK_SAME_CALL(module_function, cuModuleGetFunction);
ARK_SAME_CALL(function_set, cuFuncSetAttribute);
ARK_SAME_CALL(resident_blocks, cuOccupancyMaxActiveBlocksPerMultiprocessor);
ARK_SAME_CALL(launch_cooperative, cuLaunchCooperativeKernel);
ARK_SAME_GRAPH_CALL(create, cuGraphCreate);
ARK_SAME_GRAPH_CALL(destroy, cuGraphDestroy);
ARK_SAME_GRAPH_CALL(add_kernel, cuGraphAddKernelNode_v2);
ARK_SAME_GRAPH_CALL(set_attribute, cuGraphKernelNodeSetAttribute);
ARK_SAME_GRAPH_CALL(instantiate, cuGraphInstantiateWithFlags);
ARK_SAME_GRAPH_CALL(destroy_exec, cuGraphExecDestroy);
ARK_SAME_GRAPH_CALL(set_kernel, cuGraphExecKernelNodeSetParams_v2);
ARK_SAME_GRAPH_CALL(launch, cuGraphLaunch);

#define ARK_SAME_SHARING_CALL(member, function) \
  static_assert(kSameCall<decltype(SharingApi::member), decltype(&::function)>, #function)
ARK_SAME_SHARING_CALL(can_access, cuDeviceCanAccessPeer);
ARK_SAME_SHARING_CALL(granularity, cuMemGetAllocationGranularity);
ARK_SAME_SHARING_CALL(create, cuMemCreate);
ARK_SAME_SHARING_CALL(release, cuMemRelease);
ARK_SAME_SHARING_CALL(export_handle, cuMemExportToShareableHandle);
ARK_SAME_SHARING_CALL(import_handle, cuMemImportFromShareableHandle);
ARK_SAME_SHARING_CALL(reserve, cuMemAddressReserve);
ARK_SAME_SHARING_CALL(unreserve, cuMemAddressFree);
ARK_SAME_SHARING_CALL(map, cuMemMap);
ARK_SAME_SHARING_CALL(unmap, cuMemUnmap);
ARK_SAME_SHARING_CALL(set_access, cuMemSetAccess);
#define ARK_SAME_NIC_CALL(member, function) \
  static_assert(kSameCall<decltype(NicApi::member), decltype(&::function)>, #function)
ARK_SAME_NIC_CALL(export_range, cuMemGetHandleForAddressRange);
ARK_SAME_NIC_CALL(flush_writes, cuFlushGPUDirectRDMAWrites);
static_assert(sizeof(MemoryLocation) == sizeof(CUmemLocation) &&
              offsetof(MemoryLocation, id) == offsetof(CUmemLocation, id));
static_assert(sizeof(MemoryProperties) == sizeof(CUmemAllocationProp) &&
              offsetof(MemoryProperties, handle_types) ==
                  offsetof(CUmemAllocationProp, requestedHandleTypes) &&
              offsetof(MemoryProperties, location) == offsetof(CUmemAllocationProp, location) &&
              offsetof(MemoryProperties, rdma) ==
                  offsetof(CUmemAllocationProp, allocFlags) +
                      offsetof(decltype(CUmemAllocationProp::allocFlags), gpuDirectRDMACapable));
static_assert(sizeof(MemoryAccess) == sizeof(CUmemAccessDesc) &&
              offsetof(MemoryAccess, flags) == offsetof(CUmemAccessDesc, flags));
static_assert(kFabricHandleBytes == sizeof(CUmemFabricHandle));

#define ARK_SAME_FIELD(ours, theirs)                                                         \
  static_assert(offsetof(KernelNode, ours) == offsetof(CUDA_KERNEL_NODE_PARAMS_v2, theirs)); \
  static_assert(sizeof(KernelNode::ours) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2::theirs))
ARK_SAME_FIELD(function, func);
ARK_SAME_FIELD(grid_x, gridDimX);
ARK_SAME_FIELD(grid_y, gridDimY);
ARK_SAME_FIELD(grid_z, gridDimZ);
ARK_SAME_FIELD(block_x, blockDimX);
ARK_SAME_FIELD(block_y, blockDimY);
ARK_SAME_FIELD(block_z, blockDimZ);
ARK_SAME_FIELD(shared_bytes, sharedMemBytes);
ARK_SAME_FIELD(arguments, kernelParams);
ARK_SAME_FIELD(extra, extra);
ARK_SAME_FIELD(kernel, kern);
ARK_SAME_FIELD(context, ctx);
static_assert(sizeof(KernelNode) == sizeof(CUDA_KERNEL_NODE_PARAMS_v2));
static_assert(sizeof(NodeAttribute) == sizeof(CUlaunchAttributeValue) &&
              alignof(NodeAttribute) == alignof(CUlaunchAttributeValue));
static_assert(offsetof(NodeAttribute, cooperative) == offsetof(CUlaunchAttributeValue, cooperative) &&
              sizeof(NodeAttribute::cooperative) == sizeof(CUlaunchAttributeValue::cooperative));

TEST(Declarations, NumbersAreTheDriversOwn) {
  EXPECT_EQ(int{kDriverOutOfMemory}, int{CUDA_ERROR_OUT_OF_MEMORY});
  EXPECT_EQ(int{kDriverNotReady}, int{CUDA_ERROR_NOT_READY});
  EXPECT_EQ(int{kDeviceClockRate}, int{CU_DEVICE_ATTRIBUTE_CLOCK_RATE});
  EXPECT_EQ(int{kDeviceProcessors}, int{CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT});
  EXPECT_EQ(int{kDeviceMemoryClockRate}, int{CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE});
  EXPECT_EQ(int{kDeviceMemoryBusWidth}, int{CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH});
  EXPECT_EQ(int{kDeviceMajor}, int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR});
  EXPECT_EQ(int{kDeviceMinor}, int{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR});
  EXPECT_EQ(int{kDeviceCooperative}, int{CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH});
  EXPECT_EQ(int{kDeviceSharedPerBlock}, int{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN});
  EXPECT_EQ(int{kFunctionDynamicShared}, int{CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES});
  EXPECT_EQ(kPrimaryBlockingSync, unsigned{CU_CTX_SCHED_BLOCKING_SYNC});
  EXPECT_EQ(kHostPortableMapped, unsigned{CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP});
  EXPECT_EQ(kHostPortableMapped, unsigned{CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP});
  EXPECT_EQ(kStreamNonBlocking, unsigned{CU_STREAM_NON_BLOCKING});
  EXPECT_EQ(kEventNoTiming, unsigned{CU_EVENT_DISABLE_TIMING});
  EXPECT_EQ(int{kDeviceVirtualMemory}, int{CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED});
  EXPECT_EQ(int{kDeviceFileHandles}, int{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED});
  EXPECT_EQ(int{kDeviceFabricHandles}, int{CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED});
  EXPECT_EQ(int{kDeviceNicVirtual}, int{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED});
  EXPECT_EQ(int{kDeviceNic}, int{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED});
  EXPECT_EQ(int{kDeviceNicFlushes}, int{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS});
  EXPECT_EQ(int{kDeviceNicOrdering}, int{CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING});
  EXPECT_EQ(int{kDeviceDmaBuf}, int{CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED});
  EXPECT_EQ(kRangeDmaBuf, int{CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD});
  EXPECT_EQ(kFlushByHost, int{CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST});
  EXPECT_EQ(kFlushCurrentContext, int{CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX});
  EXPECT_EQ(kOrderedForOwner, int{CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER});
  EXPECT_EQ(kOrderedForOwner, int{CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER});
  EXPECT_EQ(kMemoryPinned, int{CU_MEM_ALLOCATION_TYPE_PINNED});
  EXPECT_EQ(kLocationDevice, int{CU_MEM_LOCATION_TYPE_DEVICE});
  EXPECT_EQ(kHandleFile, int{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR});
  EXPECT_EQ(kHandleFabric, int{CU_MEM_HANDLE_TYPE_FABRIC});
  EXPECT_EQ(kAccessReadWrite, int{CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  EXPECT_EQ(kGranularityMinimum, int{CU_MEM_ALLOC_GRANULARITY_MINIMUM});
  EXPECT_EQ(kNodeCooperative, int{CU_LAUNCH_ATTRIBUTE_COOPERATIVE});
}

}  // namespace
}  // namespace ark::cuda

#else

TEST(Declarations, NumbersAreTheDriversOwn) { GTEST_SKIP() << "no CUDA toolkit to compare with"; }

#endif
