#include "engine/run/weight_store.h"

#include "base/cores.h"
#include "base/error.h"
#include "base/parallel.h"

namespace ark {
namespace {

constexpr int64_t kPage = 4096;  // a weight's first panel starts a page
constexpr int64_t kTail = 4096;  // readable bytes behind the last weight: vectors may load past a row's end

struct Part {
  int32_t weight = 0;
  int64_t part = 0, parts = 1;
};

}  // namespace

WeightLayout::WeightLayout(const Program& program) {
  for (const WeightUse& use : program.weights) {
    offsets.push_back(total);
    bytes.push_back(packed_bytes(use));
    total += (bytes.back() + kPage - 1) / kPage * kPage;
  }
}

WeightStore::WeightStore(const Program& program, int node)
    : layout_(program),
      memory_(dma::allocate_private(static_cast<uint64_t>(layout_.total + kTail), "weights")) {
  place_on_node({memory_.region.base, memory_.region.bytes}, node);
}

std::shared_ptr<WeightStore> WeightStore::filled(const Program& program,
                                                 const std::function<bool(std::span<std::byte> arena)>& fill,
                                                 int node) {
  std::shared_ptr<WeightStore> store(new WeightStore(program, node));
  return fill({store->memory_.region.base, store->memory_.region.bytes}) ? store : nullptr;
}

WeightStore::WeightStore(const Program& program, std::span<const ConstantPtr> constants, int threads,
                         int node)
    : WeightStore(program, node) {
  std::vector<Part> parts;
  for (std::size_t w = 0; w < program.weights.size(); ++w) {
    const WeightUse& use = program.weights[w];
    ARK_CHECK(use.constant >= 0 && static_cast<std::size_t>(use.constant) < constants.size(),
              "weight of a constant that the compiler did not return");
    const int64_t count = pack_parts(use);
    for (int64_t p = 0; p < count; ++p) parts.push_back({static_cast<int32_t>(w), p, count});
  }
  parallel_for(std::ssize(parts), threads, [&](int64_t i) {
    const Part& part = parts[static_cast<std::size_t>(i)];
    const WeightUse& use = program.weights[part.weight];
    pack_weight(*constants[use.constant], use, address(part.weight), part.part, part.parts);
  });
}

}  // namespace ark
