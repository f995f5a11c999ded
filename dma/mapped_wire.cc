#include "dma/mapped_wire.h"

#include <cstring>

namespace ark::dma {
namespace {

class MappedWire : public Wire {
 public:
  explicit MappedWire(const WireMap& map) : map_(map) {}

  bool is_ordered() const override { return true; }

  Submitted submit(const Transfer& transfer) override {
    if (transfer.bytes != 0) {
      std::byte* target = map_.memory[transfer.peer][transfer.target].region.base + transfer.target_offset;
      std::memcpy(target, transfer.source, transfer.bytes);
    }
    // Release, in raise: publishes the copy; pairs with Receiver::wait (arrival) or Sender::acquire (credit).
    if (transfer.raise_by != 0) map_.counters[transfer.peer][transfer.counter].raise(transfer.raise_by);
    return Submitted::kDone;
  }

  size_t poll(std::span<Completion>) override { return 0; }
  void cancel(uint64_t) override {}

 private:
  const WireMap& map_;
};

}  // namespace

std::unique_ptr<Wire> make_mapped_wire(const WireMap& map) { return std::make_unique<MappedWire>(map); }

}  // namespace ark::dma
