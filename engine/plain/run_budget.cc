#include "engine/plain/run_budget.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "base/ir/work.h"
#include "base/machine.h"

namespace ark {
namespace {

constexpr double kFreeWork = 1 << 30, kUses = 1 << 14, kMeetings = 4;
constexpr double kFreeBytes = 192 << 20, kOfWeights = 16, kOfInputs = 64;
constexpr double kCall = 1000, kTile = 16;  // work of a call, of a tile
constexpr int64_t kBesides = 128;           // bytes of a tensor beside its numbers

int64_t whole(double limit) { return static_cast<int64_t>(std::min(limit, 9e18)); }

std::string rounded(double n, double unit) {
  n = std::ceil(n / unit);
  return n < 1e15 ? std::to_string(static_cast<int64_t>(n)) : "more than 10^15";
}

}  // namespace

Weights weights_of(const Graph& graph) {
  Weights all;
  for (const Value& value : graph.values) {
    if (!value.constant) continue;
    const int64_t size = value.constant->size();
    all.elements += static_cast<double>(size);
    all.bytes += static_cast<double>(bytes_of(value.dtype, size));
  }
  for (const Node& node : graph.nodes)
    for (const auto& body : node.subgraphs) {
      const Weights more = weights_of(*body);
      all.elements += more.elements, all.bytes += more.bytes;
    }
  return all;
}

RunLimits limits_for(const RunLimits& asked, const Weights& weights, std::span<const Tensor> inputs,
                     int64_t runs) {
  const auto times = static_cast<double>(runs);
  Weights given;
  for (const Tensor& t : inputs)
    given.elements += static_cast<double>(t.size()), given.bytes += static_cast<double>(t.bytes());
  RunLimits limits = asked;
  if (limits.work == 0)
    limits.work = whole(times * (kFreeWork + kMeetings * weights.elements * given.elements +
                                 kUses * (weights.elements + given.elements)));
  if (limits.bytes == 0)
    limits.bytes = whole(times * (kFreeBytes + kOfWeights * weights.bytes + kOfInputs * given.bytes));
  return limits;
}

namespace {

void check_work(double work, const RunLimits& limits) {
  if (work <= static_cast<double>(limits.work)) return;
  throw Error(Code::kInvalidArgument, "the run takes " + rounded(work, 1e6) +
                                          " million multiply-adds or more; at most " +
                                          rounded(static_cast<double>(limits.work), 1e6) +
                                          " (--run-work): broken sizes or trips, or the limit is too low");
}

}  // namespace

void check_bytes(double bytes, const RunLimits& limits) {
  if (bytes <= static_cast<double>(limits.bytes)) return;
  throw Error(Code::kInvalidArgument, "the run holds " + rounded(bytes, 1 << 20) + " MiB at once; at most " +
                                          rounded(static_cast<double>(limits.bytes), 1 << 20) +
                                          " (--run-memory): broken sizes, or the limit is too low");
}

void RunBudget::charge(double work) {
  work_ += work;
  check_work(work_, limits_);
  look();
}

void RunBudget::charge_call(const Kernel& kernel, const KernelCall& call) {
  charge(work_of(call) + kCall);
  charge(kTile * static_cast<double>(kernel.grid(call)));
}

void RunBudget::look() const {
  if (stopped_ && stopped_()) throw Error(Code::kUnavailable, "stopped: nobody waits for it");
}

void RunBudget::check_bytes(double more) const {
  ark::check_bytes(static_cast<double>(held_->load(std::memory_order_relaxed)) + more, limits_);
}

Tensor RunBudget::make(DType type, const Dims& dims) {
  constexpr int64_t kLook = 64 << 20;  // bytes between two looks at the machine
  static std::atomic<int64_t> since{0};
  const int64_t bytes = bytes_of(type, element_count(dims));
  check_bytes(static_cast<double>(bytes));
  if (since.fetch_add(bytes, std::memory_order_relaxed) + bytes >= kLook) {
    since.store(0, std::memory_order_relaxed);
    const int64_t left = available_memory();
    if (std::max(bytes, kLook) > left)
      throw Error(Code::kExhausted, "its output takes " + std::to_string(bytes >> 20) + " MiB, and " +
                                        std::to_string(left >> 20) + " MiB of memory are left");
  }
  Tensor made = Tensor::empty(type, dims);
  if (!made.data) return made;
  held_->fetch_add(bytes + kBesides, std::memory_order_relaxed);
  std::byte* const raw = made.data.get();
  made.data =
      std::shared_ptr<std::byte>(raw, [own = std::move(made.data), held = held_, bytes](std::byte*) mutable {
        held->fetch_sub(bytes + kBesides, std::memory_order_relaxed);
        own.reset();
      });
  return made;
}

void check_work(const Graph& graph, const SymbolValues& sizes, const RunLimits& limits) {
  double all = 0, most = 0;
  std::string largest;
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    std::optional<Attributes> evaluated;
    if (node.attributes.has_symbols()) evaluated = node.attributes.evaluated(sizes);
    const double work = work_of(graph, node, evaluated ? *evaluated : node.attributes,
                                [&](const Expr& e) { return e.evaluate(sizes); });
    all += kCall + work;
    if (work >= most) most = work, largest = node.name;
    try {
      check_work(all, limits);
    } catch (const Error& e) {
      throw Error(e.code(), "node " + escaped(largest) + ": " + e.what());
    }
  }
}

}  // namespace ark
