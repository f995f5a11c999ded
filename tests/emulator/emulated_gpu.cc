#include "tests/emulator/emulated_gpu.h"

#include <dlfcn.h>

#include <cstring>
#include <utility>

#include "base/error.h"
#include "engine/cuda/nvrtc.h"

namespace ark::emulator {

World::~World() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<World::Run> World::launch(LaunchRequest request) {
  std::lock_guard lock(mutex_);
  if (failure_) throw Error(Code::kUnavailable, std::string("the emulated GPU is lost: ") + failure_->what());
  auto run = std::make_shared<Run>();
  run->request = std::move(request);
  pending_.push_back(run);
  if (!thread_.joinable()) thread_ = std::thread([this] { drive(); });
  changed_.notify_all();
  return run;
}

std::optional<Failure> World::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

Counts World::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

void World::start_pending() {
  for (auto& run : pending_) {
    run->id = machine_.launch(run->request);
    running_.push_back(run);
  }
  pending_.clear();
}

void World::drive() {
  constexpr uint64_t kSwitches = 1 << 16;  // between two looks at what the host wants
  std::unique_lock lock(mutex_);
  while (!ends_) {
    if (pending_.empty() && running_.empty()) {
      changed_.wait(lock);
      continue;
    }
    start_pending();
    lock.unlock();
    std::optional<Failure> failure;
    try {
      if (machine_.advance(kSwitches) == Machine::Progress::kIdle) machine_.nap();
    } catch (const Failure& f) {
      failure = f;
    }
    lock.lock();
    counts_ = machine_.counts();
    if (failure) failure_ = failure;
    for (size_t i = 0; i < running_.size();) {
      if (machine_.is_running(running_[i]->id)) {
        i++;
        continue;
      }
      running_[i]->is_running = false;
      running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    }
    changed_.notify_all();
  }
}

namespace {

class EmulatedLaunch final : public cuda::Launch {
 public:
  EmulatedLaunch(std::shared_ptr<World> world, std::shared_ptr<World::Run> run)
      : world_(std::move(world)), run_(std::move(run)) {}
  ~EmulatedLaunch() override {
    while (run_->is_running) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  bool is_running() override {
    if (run_->is_running) return true;
    if (auto failure = world_->failure()) throw Error(Code::kUnavailable, failure->what());
    return false;
  }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<World::Run> run_;
};

class EmulatedKernel final : public cuda::Kernel {
 public:
  EmulatedKernel(std::shared_ptr<World> world, int gpu, const cuda::GpuInfo& info, KernelFunction function,
                 const std::string& entry, double seconds)
      : world_(std::move(world)), gpu_(gpu), info_(info), entry_(entry), function_(std::move(function)) {
    facts_.compile_seconds = seconds;
  }

  const cuda::KernelFacts& facts() const override { return facts_; }
  int32_t resident_blocks(int32_t threads, int32_t shared_bytes) override {
    return threads <= 1024 && shared_bytes <= info_.shared_per_block ? info_.processors : 0;
  }
  std::unique_ptr<cuda::Launch> launch(const cuda::LaunchShape& shape,
                                       std::span<const std::byte> parameter) override {
    if (shape.as_graph) throw Error(Code::kUnavailable, "an emulated GPU has no CUDA graphs");
    cuda::refuse_unless_resident(*this, shape);
    LaunchRequest request;
    request.name = entry_;
    request.gpu = gpu_;
    request.blocks = shape.blocks;
    request.threads = shape.threads;
    request.shared_bytes = static_cast<uint64_t>(shape.shared_bytes);
    request.kernel = function_;
    request.parameter.assign(parameter.begin(), parameter.end());
    return std::make_unique<EmulatedLaunch>(world_, world_->launch(std::move(request)));
  }

 private:
  std::shared_ptr<World> world_;
  int gpu_;
  cuda::GpuInfo info_;
  std::string entry_;
  cuda::KernelFacts facts_;
  KernelFunction function_;
};

std::byte* pointer(uint64_t address) { return reinterpret_cast<std::byte*>(address); }
uint64_t address_of(const std::byte* p) { return reinterpret_cast<uint64_t>(p); }

// As the CUDA C++ Programming Guide's table of technical specifications has it.
int32_t shared_per_block_of(int arch) {
  if (arch == 860 || arch == 890 || arch >= 1200) return 99 << 10;
  return arch < 900 ? 163 << 10 : 227 << 10;
}

}  // namespace

EmulatedGpu::EmulatedGpu(std::shared_ptr<World> world, const EmulatedGpuOptions& options)
    : world_(std::move(world)), options_(options), number_(world_->add_gpu()) {
  info_.name = "emulated GPU " + std::to_string(number_);
  info_.arch = "sm_" + std::to_string(options.arch / 10) + (options.arch == 900 ? "a" : "");
  info_.versions = "emulator";
  info_.processors = options.processors;
  info_.shared_per_block = shared_per_block_of(options.arch);
  info_.memory = options.memory;
  info_.l2 = options.l2;
  info_.is_emulated = true;
}

uint64_t EmulatedGpu::allocate(uint64_t bytes, const std::string& what) {
  std::lock_guard lock(mutex_);
  if (used_ + bytes > static_cast<uint64_t>(options_.memory)) {
    throw Error(Code::kExhausted,
                info_.name + ": no room for " + std::to_string(bytes) + " bytes of " + what);
  }
  const uint64_t address = address_of(world_->memory().allocate(bytes, number_, what));
  sizes_[address] = bytes;
  used_ += bytes;
  return address;
}

void EmulatedGpu::release(uint64_t address) {
  std::lock_guard lock(mutex_);
  auto found = sizes_.find(address);
  ARK_CHECK(found != sizes_.end(), "emulated GPU: release of memory that is not allocated");
  used_ -= found->second;
  sizes_.erase(found);
  world_->memory().release(pointer(address));
}

uint64_t EmulatedGpu::free_bytes() {
  std::lock_guard lock(mutex_);
  return static_cast<uint64_t>(options_.memory) - used_;
}

cuda::MappedMemory EmulatedGpu::allocate_mapped(uint64_t bytes, const std::string& what) {
  std::byte* p = world_->memory().allocate(bytes, kHost, what);
  return {p, address_of(p), bytes};
}

void EmulatedGpu::release(const cuda::MappedMemory& memory) { world_->memory().release(memory.host); }

uint64_t EmulatedGpu::map(std::byte* host, uint64_t bytes) {
  world_->memory().map(host, bytes, "mapped memory");
  return address_of(host);
}

void EmulatedGpu::unmap(std::byte* host) { world_->memory().unmap(host); }

cuda::SharedBlock EmulatedGpu::shared_block(std::byte* begin, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  shared_[address_of(begin)] = bytes;
  return {address_of(begin), bytes, std::shared_ptr<void>(begin, [this](void* block) {
            std::lock_guard release(mutex_);
            shared_.erase(address_of(static_cast<std::byte*>(block)));
            world_->memory().release(static_cast<std::byte*>(block));
          })};
}

cuda::SharedBlock EmulatedGpu::allocate_shared(uint64_t bytes, const std::string& what,
                                               cuda::BlockHandle& handle) {
  if (!options_.shares) return Gpu::allocate_shared(bytes, what, handle);
  int file = -1;
  std::byte* begin = world_->memory().share(bytes, number_, what, file);
  handle.file = Descriptor(file);
  return shared_block(begin, bytes);
}

cuda::SharedBlock EmulatedGpu::open_shared(const cuda::BlockHandle& handle, uint64_t bytes) {
  if (!handle.file) throw Error(Code::kUnsupported, info_.name + " has no fabric");
  return shared_block(world_->memory().open(handle.file.number, bytes, "a peer's inboxes"), bytes);
}

cuda::NicBlock EmulatedGpu::allocate_for_nic(uint64_t bytes, const std::string& what) {
  if (!options_.flush) return Gpu::allocate_for_nic(bytes, what);
  int file = -1;
  std::byte* begin = world_->memory().share(bytes, number_, what, file);
  cuda::SharedBlock block = shared_block(begin, bytes);
  return {block.address, bytes, Descriptor(file), std::move(block.owner)};
}

bool EmulatedGpu::flush_nic_writes() noexcept { return options_.flush && options_.flush(); }

void EmulatedGpu::check_device(uint64_t address, uint64_t bytes) const {
  {
    std::lock_guard lock(mutex_);
    const auto next = shared_.upper_bound(address);
    if (next != shared_.begin()) {
      const auto& [begin, size] = *std::prev(next);
      if (address - begin <= size && bytes <= size - (address - begin)) return;
    }
  }
  const Memory& memory = world_->memory();
  const bool inside = !bytes || (memory.owner(pointer(address)) == number_ &&
                                 memory.owner(pointer(address + bytes - 1)) == number_);
  ARK_CHECK(inside, "emulated GPU: a copy of " + std::to_string(bytes) + " bytes at " +
                        memory.describe(pointer(address)));
}

void EmulatedGpu::upload(uint64_t to, std::span<const std::byte> from) {
  if (from.empty()) return;
  check_device(to, from.size());
  std::memcpy(pointer(to), from.data(), from.size());
  world_->memory().initialise(pointer(to), from.size());
}

void EmulatedGpu::download(std::span<std::byte> to, uint64_t from) {
  if (to.empty()) return;
  check_device(from, to.size());
  std::memcpy(to.data(), pointer(from), to.size());
}

void EmulatedGpu::fill(uint64_t address, uint64_t bytes, std::byte value) {
  if (!bytes) return;
  check_device(address, bytes);
  std::memset(pointer(address), std::to_integer<int>(value), bytes);
  world_->memory().initialise(pointer(address), bytes);
}

KernelFunction load_kernel(const std::string& library, const std::string& entry) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) throw Error(Code::kInternal, std::string("emulator: ") + dlerror());
  const auto function = reinterpret_cast<void (*)(const void*)>(dlsym(handle, entry.c_str()));
  if (!function) throw Error(Code::kInternal, "emulator: no entry " + entry + " in " + library);
  return function;
}

KernelFunction load_ptx(const cuda::KernelSource& source, const std::string& arch,
                        std::shared_ptr<const ptx::Module>* module, std::shared_ptr<ptx::WorkLog> work) {
  static const std::unique_ptr<cuda::Compiler> compiler = cuda::open_nvrtc();
  if (!compiler) throw Error(Code::kUnavailable, "emulator: no NVRTC to make PTX of the kernel");
  const std::vector<std::byte> text = compiler->compile(source, arch).cubin;
  auto parsed = ptx::parse({reinterpret_cast<const char*>(text.data()), text.size() - 1}, arch);
  if (module) *module = parsed;
  return ptx::kernel(parsed, source.entry, std::move(work));
}

std::unique_ptr<cuda::Kernel> EmulatedGpu::load(const cuda::KernelSource& source) {
  if (options_.as_ptx) {
    const std::string arch = "compute_" + info_.arch.substr(3);
    cuda::KernelSource changed = source;
    if (options_.change) options_.change(changed);
    return std::make_unique<EmulatedKernel>(world_, number_, info_,
                                            load_ptx(changed, arch, nullptr, options_.work), source.entry, 0);
  }
  std::vector<std::string> flags = {"-DARK_EMULATED_ARCH=" + std::to_string(options_.arch)};
  if (world_->options().detector) {
    flags.insert(flags.end(), {"-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"});
  }
  if (options_.seeded_bugs) flags.push_back("-DARK_SEEDED_BUGS");
  double seconds = 0;
  const std::string library = compile_kernel(source, flags, &seconds);
  return std::make_unique<EmulatedKernel>(world_, number_, info_, load_kernel(library, source.entry),
                                          source.entry, seconds);
}

}  // namespace ark::emulator
