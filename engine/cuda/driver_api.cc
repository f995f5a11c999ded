#include "engine/cuda/driver_api.h"

namespace ark::cuda {

DriverApi DriverApi::of(const Library& library) {
  DriverApi api{};
  library.find("cuInit", api.init);
  library.find("cuGetErrorName", api.error_name);
  library.find("cuGetErrorString", api.error_text);
  library.find("cuDriverGetVersion", api.version);
  library.find("cuDeviceGetCount", api.device_count);
  library.find("cuDeviceGet", api.device_get);
  library.find("cuDeviceGetName", api.device_name);
  library.find("cuDeviceGetAttribute", api.device_attribute);
  library.find("cuDeviceTotalMem_v2", api.device_memory);
  library.find("cuDevicePrimaryCtxSetFlags_v2", api.primary_flags);
  library.find("cuDevicePrimaryCtxRetain", api.primary_retain);
  library.find("cuDevicePrimaryCtxRelease_v2", api.primary_release);
  library.find("cuCtxSetCurrent", api.set_current);
  library.find("cuMemAlloc_v2", api.allocate);
  library.find("cuMemFree_v2", api.release);
  library.find("cuMemGetInfo_v2", api.memory_info);
  library.find("cuMemHostAlloc", api.host_allocate);
  library.find("cuMemFreeHost", api.host_release);
  library.find("cuMemHostRegister_v2", api.host_register);
  library.find("cuMemHostUnregister", api.host_unregister);
  library.find("cuMemHostGetDevicePointer_v2", api.host_address);
  library.find("cuMemcpyHtoD_v2", api.upload);
  library.find("cuMemcpyDtoH_v2", api.download);
  library.find("cuMemsetD8_v2", api.clear);
  library.find("cuStreamCreate", api.stream_create);
  library.find("cuStreamDestroy_v2", api.stream_destroy);
  library.find("cuStreamSynchronize", api.stream_wait);
  library.find("cuEventCreate", api.event_create);
  library.find("cuEventDestroy_v2", api.event_destroy);
  library.find("cuEventRecord", api.event_record);
  library.find("cuEventQuery", api.event_query);
  library.find("cuEventSynchronize", api.event_wait);
  library.find("cuModuleLoadData", api.module_load);
  library.find("cuModuleUnload", api.module_unload);
  library.find("cuModuleGetFunction", api.module_function);
  library.find("cuFuncSetAttribute", api.function_set);
  library.find("cuOccupancyMaxActiveBlocksPerMultiprocessor", api.resident_blocks);
  library.find("cuLaunchCooperativeKernel", api.launch_cooperative);
  return api;
}

GraphApi GraphApi::of(const Library& library) {
  GraphApi api{};
  library.find("cuGraphCreate", api.create);
  library.find("cuGraphDestroy", api.destroy);
  library.find("cuGraphAddKernelNode_v2", api.add_kernel);
  library.find("cuGraphKernelNodeSetAttribute", api.set_attribute);
  library.find("cuGraphInstantiateWithFlags", api.instantiate);
  library.find("cuGraphExecDestroy", api.destroy_exec);
  library.find("cuGraphExecKernelNodeSetParams_v2", api.set_kernel);
  library.find("cuGraphLaunch", api.launch);
  return api;
}

}  // namespace ark::cuda
