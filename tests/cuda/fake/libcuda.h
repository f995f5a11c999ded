// A CUDA driver without a GPU, for the tests of engine/cuda/driver: device memory is host memory, a kernel is
// a function of the test that runs on a thread. Built as a shared object; the test opens it and sets it up by
// fake_cuda().
#pragma once

#include <atomic>
#include <cstdint>

struct FakeCuda {
  // What the GPU is.
  int gpus = 1, major = 9, minor = 0, processors = 4, blocks_each = 1, shared_per_block = 232448;
  uint64_t memory = uint64_t{64} << 20;
  // The kernel; its end is what the event reports.
  void (*kernel)(const void* parameter, int blocks, int threads) = nullptr;
  int end_result = 0;      // CUresult
  int module_result = 0;   // CUresult of loading code
  int address_result = 0;  // CUresult of asking for mapped memory's address
  int node_result = 0;     // CUresult of making a kernel a node of a graph
  bool was_eager = false;  // CUDA_MODULE_LOADING when the driver was last initialised
  // What a driver may do and rarely does. Reset by each test.
  struct Hostile {
    bool waits = false;     // whatever allocates, frees, copies or loads waits for all running kernels
    bool one_grid = false;  // a launch starts when the one before has ended
    int late_ms = 0;        // launches start so much later
    int init_ms = 0, init_result = 0;
    int refuse_in = 0;  // the n-th call from now that could fail does, for lack of memory; 0: none
  } hostile;
  // Memory that GPUs share, of this process or others: what this machine can.
  struct Sharing {
    bool virtual_memory = true, files = true, fabric = false;
    bool fabric_is_up = true;   // else memory for a fabric cannot be had
    bool peers = true;          // GPUs reach each other
    bool loses_stores = false;  // a peer's memory can be mapped, but is another's
  } sharing;
  // Memory that NICs reach.
  struct Nic {
    bool rdma = true, rdma_virtual = true, dma_buf = true;
    int ordering = 0,
        flush_options = 1;  // CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING, _FLUSH_WRITES_OPTIONS
    int flush_result = 0;   // CUresult
  } nic;
  std::size_t parameter_bytes = 8;  // of the kernel
  // What has been done.
  std::atomic<uint64_t> used{0};  // bytes of device memory
  std::atomic<int> launches{0}, running{0}, modules{0}, module_loads{0}, streams{0}, events{0}, contexts{0},
      mapped{0};
  std::atomic<int> waited_in_vain{0};  // calls that gave up on a kernel that did not end
  // Of shared memory: handles, ranges of addresses, mappings, now.
  std::atomic<int> handles{0}, ranges{0}, mappings{0};
  std::atomic<int> flushes{0};  // of what NICs have written
  // Graphs: alive; instantiated, whose parameter was set, launched (which counts as a launch too).
  std::atomic<int> graphs{0}, graphs_made{0}, graph_updates{0}, graph_launches{0};
};

extern "C" FakeCuda* fake_cuda();
