#include "dma/local/setup.h"

#include <charconv>
#include <map>
#include <mutex>

#include "base/error.h"
#include "dma/mapped_wire.h"

namespace ark::dma {
namespace {

// Memory by token. Peers exchange tokens instead of addresses, and each takes a share in the owner, so that
// a rank that leaves early does not pull its memory from under a peer's last store.
class Exchange {
 public:
  uint64_t publish(const Memory& memory) {
    std::lock_guard lock(mutex_);
    memory_.emplace(++last_, memory);
    return last_;
  }
  Memory find(uint64_t token) {
    std::lock_guard lock(mutex_);
    const auto found = memory_.find(token);
    return found == memory_.end() ? Memory{} : found->second;
  }
  void withdraw(const std::vector<uint64_t>& tokens) {
    std::lock_guard lock(mutex_);
    for (uint64_t token : tokens) memory_.erase(token);
  }

 private:
  std::mutex mutex_;
  std::map<uint64_t, Memory> memory_;
  uint64_t last_ = 0;
};

class LocalTransport : public Transport {
 public:
  explicit LocalTransport(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  ~LocalTransport() override { exchange_->withdraw(tokens_); }

  std::string_view name() const override { return "local"; }

  Memory allocate(const std::string& name, uint64_t bytes) override { return allocate_private(bytes, name); }

  Memory adopt(const std::string&, void* base, uint64_t bytes) override {
    return {{static_cast<std::byte*>(base), bytes}, 0, nullptr};
  }

  std::string describe(const Memory& memory) override {
    tokens_.push_back(exchange_->publish(memory));
    return std::to_string(tokens_.back());
  }

  Memory attach(int peer, std::string_view description, uint64_t bytes) override {
    uint64_t token = 0;
    std::from_chars(description.data(), description.data() + description.size(), token);
    Memory memory = exchange_->find(token);
    if (memory.region.base == nullptr || memory.region.bytes != bytes) {
      throw Error(Code::kUnavailable, "rank " + std::to_string(peer) +
                                          ": its memory is not in this process; " +
                                          "transport local joins threads only, use shm between processes");
    }
    return memory;
  }

  void connected() override {
    exchange_->withdraw(tokens_);
    tokens_.clear();
  }

  std::unique_ptr<Wire> open_wire(const WireMap& map, Bootstrap&, Deadline) override {
    return make_mapped_wire(map);
  }

 private:
  std::shared_ptr<Exchange> exchange_;
  std::vector<uint64_t> tokens_;  // published by us
};

}  // namespace

std::vector<std::unique_ptr<Transport>> make_local_transports(int size) {
  auto exchange = std::make_shared<Exchange>();
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank) transports.push_back(std::make_unique<LocalTransport>(exchange));
  return transports;
}

}  // namespace ark::dma
