#include "engine/plain/static_driver.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "engine/plain/inputs.h"

namespace ark {
namespace {

constexpr std::size_t kMostChecked = 256;  // sizes that are remembered

}  // namespace

struct StaticDriver::Bound {
  SymbolValues most;               // the sizes that there is room for
  std::set<SymbolValues> checked;  // at which its operators fit together
  Compiled compiled;
  std::unique_ptr<HostExecutor> executor;  // points into `compiled`

  bool holds(const SymbolValues& sizes) const {
    return std::all_of(sizes.begin(), sizes.end(), [&](const auto& size) {
      const auto it = most.find(size.first);
      return it != most.end() && size.second <= it->second;
    });
  }
};

StaticDriver::StaticDriver(const Graph& graph, StaticOptions options)
    : graph_(graph), options_(options), stored_(weights_of(graph)) {
  check_plain(graph);
}

StaticDriver::~StaticDriver() = default;

SymbolValues StaticDriver::room_for(const SymbolValues& sizes) const {
  SymbolValues most = sizes;
  for (auto& [name, size] : most)
    if (varying_.contains(name))
      size = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(size, 1))));
  return most;
}

StaticDriver::Bound& StaticDriver::bound_for(const SymbolValues& sizes, int64_t most_bytes) {
  for (const auto& [name, size] : sizes)
    if (const auto it = last_.find(name); it != last_.end() && it->second != size) varying_.insert(name);
  last_ = sizes;
  const auto found =
      std::find_if(bound_.begin(), bound_.end(), [&](const Bound& b) { return b.holds(sizes); });
  if (found != bound_.end()) {
    bound_.splice(bound_.begin(), bound_, found);
    return bound_.front();
  }
  if (bound_.size() >= options_.most_bound) bound_.pop_back();
  Bound& bound = bound_.emplace_front();
  try {
    bound.most = room_for(sizes);
    bound.compiled = compile_plain(graph_, bound.most);
    ++compiled_;
    // Each size has room for at most twice of it, which two axes of a tensor may have.
    constexpr int64_t kRoom = 4;
    check_bytes(static_cast<double>(bound.compiled.bindings.at(0).act_bytes) / kRoom, {.bytes = most_bytes});
    const Program& program = bound.compiled.programs.at(0);
    if (!weights_)
      weights_ = std::make_unique<WeightStore>(program, bound.compiled.constants, options_.processors);
    bound.executor = options_.lockstep ? make_lockstep_executor() : make_loop_executor();
    bound.executor->prepare({{&program, &bound.compiled.bindings.at(0), weights_.get(), nullptr}},
                            {.processors = options_.processors, .trace_events = options_.trace_events});
  } catch (...) {
    bound_.pop_front();
    throw;
  }
  return bound;
}

std::vector<Tensor> StaticDriver::run_step(Bound& bound, const SymbolValues& sizes,
                                           std::span<const Tensor> inputs) {
  PlainStep step{.symbols = sizes};
  for (const Tensor& input : inputs) step.inputs.push_back(view_of(input));
  std::vector<Tensor> outputs;
  const Graph& graph = bound.compiled.graph;
  for (const ValueId id : graph.outputs) {
    Dims dims;
    for (const Expr& e : *graph.value(id).shape) dims.push_back(e.evaluate(sizes));
    outputs.push_back(Tensor::empty(graph.value(id).dtype, std::move(dims)));
    step.outputs.push_back(view_of(outputs.back()));
  }
  bound.executor->post_plain(step);
  while (!bound.executor->poll(std::chrono::seconds(1))) {
  }
  return outputs;
}

std::vector<Tensor> StaticDriver::run(std::span<const Tensor> inputs) {
  const SymbolValues sizes = bind_inputs(graph_, inputs);
  const RunLimits limits = limits_for(options_.limits, stored_, inputs);
  check_work(graph_, sizes, limits);
  double results = 0;
  for (const ValueId id : graph_.outputs) {
    double elements = 1;
    for (const Expr& e : *graph_.value(id).shape) elements *= static_cast<double>(e.evaluate(sizes));
    results += elements * bits_of(graph_.value(id).dtype) / 8;
  }
  check_bytes(results, limits);
  Bound& bound = bound_for(sizes, limits.bytes);
  if (!bound.checked.contains(sizes)) {
    check_sizes(bound.compiled, sizes);
    if (bound.checked.size() >= kMostChecked) bound.checked.clear();
    bound.checked.insert(sizes);
  }
  try {
    return run_step(bound, sizes, inputs);
  } catch (const Error&) {
    bound_.pop_front();  // an executor that has failed stays failed
    throw;
  }
}

Timeline StaticDriver::timeline() { return bound_.front().executor->timeline(); }
const Program& StaticDriver::program() const { return bound_.front().compiled.programs.at(0); }

}  // namespace ark
