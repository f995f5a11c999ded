#include "engine/cuda/shared_memory.h"

#include <array>

#include "base/error.h"

namespace ark::cuda {
namespace {

// A piece of the GPU's address space with memory behind it; gives back what it has got, also of half a mapping.
class Mapping {
 public:
  explicit Mapping(const Driver& driver) : driver_(driver), api_(driver.library()) {}
  ~Mapping() {
    if (driver_.is_lost()) return;
    driver_.use();
    if (is_mapped_) api_.unmap(address_, bytes_);
    if (address_ != 0) api_.unreserve(address_, bytes_);
    if (has_handle_) api_.release(handle_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void create(uint64_t bytes, const std::string& what) {
    bytes_ = whole(bytes);
    driver_.use_unless_lost();
    int result =
        driver_.attribute_or(kDeviceFabricHandles, 0) != 0 ? create_for(kHandleFile | kHandleFabric) : -1;
    has_fabric_ = result == kDriverSuccess;
    // A fabric that nobody has set up refuses memory for it.
    if (!has_fabric_) result = create_for(kHandleFile);
    driver_.check(result, "memory for " + what);
    has_handle_ = true;
  }
  void create_for_nic(uint64_t bytes, const std::string& what) {
    is_for_nic_ = true;
    bytes_ = whole(bytes);
    driver_.use_unless_lost();
    driver_.check(create_for(0), "memory for " + what);
    has_handle_ = true;
  }
  // Of the whole mapping.
  Descriptor dma_buf() const {
    int file = -1;
    refuse(NicApi(driver_.library()).export_range(&file, address_, bytes_, kRangeDmaBuf, 0),
           "a dma-buf of its memory");
    return Descriptor(file);
  }
  void import(const BlockHandle& handle, uint64_t bytes) {
    bytes_ = whole(bytes);
    driver_.use_unless_lost();
    std::array<char, kFabricHandleBytes> fabric{};
    const bool by_file = bool(handle.file);
    if (!by_file) handle.fabric.copy(fabric.data(), fabric.size());
    void* from =
        by_file ? reinterpret_cast<void*>(static_cast<std::intptr_t>(handle.file.number)) : fabric.data();
    refuse(api_.import_handle(&handle_, from, by_file ? kHandleFile : kHandleFabric), "memory of a peer");
    has_handle_ = true;
  }
  BlockHandle exported() const {
    BlockHandle handle;
    int file = -1;
    refuse(api_.export_handle(&file, handle_, kHandleFile, 0), "to share its memory");
    handle.file = Descriptor(file);
    std::array<char, kFabricHandleBytes> fabric{};
    if (has_fabric_ && api_.export_handle(fabric.data(), handle_, kHandleFabric, 0) == kDriverSuccess)
      handle.fabric.assign(fabric.data(), fabric.size());
    return handle;
  }
  void map(const std::string& what) {
    refuse(api_.reserve(&address_, bytes_, 0, 0, 0), "addresses for " + what);
    refuse(api_.map(address_, bytes_, 0, handle_, 0), "to map " + what);
    is_mapped_ = true;
    const MemoryAccess access{.location = {.id = driver_.device()}};
    refuse(api_.set_access(address_, bytes_, &access, 1), "access to " + what);
  }
  uint64_t address() const { return address_; }

 private:
  MemoryProperties properties(int handle_types) const {
    MemoryProperties wanted{.handle_types = handle_types, .location = {.id = driver_.device()}};
    wanted.rdma = is_for_nic_;
    return wanted;
  }
  int create_for(int handle_types) {
    const MemoryProperties wanted = properties(handle_types);
    return api_.create(&handle_, bytes_, &wanted, 0);
  }
  uint64_t whole(uint64_t bytes) const {
    const MemoryProperties wanted = properties(is_for_nic_ ? 0 : kHandleFile);
    std::size_t unit = 0;
    driver_.use_unless_lost();
    refuse(api_.granularity(&unit, &wanted, kGranularityMinimum), "the unit of shared memory");
    return unit == 0 ? bytes : (bytes + unit - 1) / unit * unit;
  }
  // What a GPU refuses here another may do: no fault.
  void refuse(int result, const std::string& what) const {
    if (result != kDriverSuccess)
      throw Error(Code::kUnsupported, "the GPU refuses " + what + ": " + driver_.text(result));
  }

  const Driver& driver_;
  const SharingApi api_;
  uint64_t bytes_ = 0, handle_ = 0, address_ = 0;
  bool has_handle_ = false, has_fabric_ = false, is_mapped_ = false, is_for_nic_ = false;
};

SharedBlock block_of(std::shared_ptr<Mapping> mapping, uint64_t bytes) {
  const uint64_t address = mapping->address();
  return {address, bytes, std::move(mapping)};
}

}  // namespace

std::string why_not_shared(const Driver& driver) {
  if (driver.attribute_or(kDeviceVirtualMemory, 0) == 0) return "the GPU has no virtual memory management";
  if (driver.attribute_or(kDeviceFileHandles, 0) == 0) return "the GPU's memory has no descriptors";
  return {};
}

SharedBlock allocate_shared(const Driver& driver, uint64_t bytes, const std::string& what,
                            BlockHandle& handle) {
  if (const std::string why = why_not_shared(driver); !why.empty()) throw Error(Code::kUnsupported, why);
  const auto mapping = std::make_shared<Mapping>(driver);
  mapping->create(bytes, what);
  mapping->map(what);
  handle = mapping->exported();
  return block_of(mapping, bytes);
}

SharedBlock open_shared(const Driver& driver, const BlockHandle& handle, uint64_t bytes) {
  if (const std::string why = why_not_shared(driver); !why.empty()) throw Error(Code::kUnsupported, why);
  const auto mapping = std::make_shared<Mapping>(driver);
  mapping->import(handle, bytes);
  mapping->map("memory of a peer");
  return block_of(mapping, bytes);
}

bool needs_flush(const Driver& driver) {
  return driver.attribute_or(kDeviceNicOrdering, 0) < kOrderedForOwner;
}

std::string why_not_by_nic(const Driver& driver) {
  if (driver.attribute_or(kDeviceVirtualMemory, 0) == 0) return "the GPU has no virtual memory management";
  if (driver.attribute_or(kDeviceNic, 0) == 0 || driver.attribute_or(kDeviceNicVirtual, 0) == 0)
    return "the GPU has no GPUDirect RDMA";
  if (driver.attribute_or(kDeviceDmaBuf, 0) == 0)
    return "the driver makes no dma-buf of GPU memory (its open kernel modules do)";
  if (needs_flush(driver) && (driver.attribute_or(kDeviceNicFlushes, 0) & kFlushByHost) == 0)
    return "the GPU neither sees a NIC's writes in order nor lets the host flush them";
  return {};
}

NicBlock allocate_for_nic(const Driver& driver, uint64_t bytes, const std::string& what) {
  if (const std::string why = why_not_by_nic(driver); !why.empty()) throw Error(Code::kUnsupported, why);
  const auto mapping = std::make_shared<Mapping>(driver);
  mapping->create_for_nic(bytes, what);
  mapping->map(what);
  Descriptor file = mapping->dma_buf();
  const uint64_t address = mapping->address();
  return {address, bytes, std::move(file), std::move(mapping)};
}

}  // namespace ark::cuda
