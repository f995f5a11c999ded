// The drivers that ark-run offers, behind one interface.
#include <algorithm>

#include "base/error.h"
#include "engine/plain/dynamic_driver.h"
#include "engine/plain/parallel_for.h"
#include "engine/plain/static_driver.h"
#include "server/tools/run_suite.h"

namespace ark::tools {
namespace {

std::vector<Tensor> all_inputs(const Graph& graph, const std::vector<std::optional<Tensor>>& inputs) {
  std::vector<Tensor> out;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    if (i >= inputs.size() || !inputs[i])
      throw Error(Code::kInvalidArgument,
                  "input '" + escaped(graph.value(graph.inputs[i]).name) + "' is missing");
    out.push_back(*inputs[i]);
  }
  return out;
}

template <class Driver, class Options>
class Whole : public GraphDriver {
 public:
  Whole(const Graph& graph, Options options) : graph_(graph), driver_(graph, std::move(options)) {}
  std::vector<Tensor> run(const std::vector<std::optional<Tensor>>& inputs) override {
    return driver_.run(all_inputs(graph_, inputs));
  }

 private:
  const Graph& graph_;
  Driver driver_;
};

std::unique_ptr<GraphDriver> make_static(const Graph& graph, int threads) {
  return std::make_unique<Whole<StaticDriver, StaticOptions>>(graph, StaticOptions{.processors = threads});
}

std::unique_ptr<GraphDriver> make_dynamic(const Graph& graph, int threads) {
  return std::make_unique<Whole<DynamicDriver, ParallelFor>>(graph, parallel_for(threads));
}

std::unique_ptr<GraphDriver> make_auto(const Graph& graph, int threads) {
  try {
    return make_static(graph, threads);
  } catch (const Error& e) {
    if (e.code() != Code::kUnsupported) throw;
    return make_dynamic(graph, threads);
  }
}

}  // namespace

void check_driver(const std::string& name, int ranks) {
  if (name != "auto" && name != "static" && name != "dynamic" && name != "decoder")
    throw Error(Code::kUsage, "--driver '" + escaped(name) + "' is none of auto, static, dynamic, decoder");
  if (ranks > 1 && name != "decoder")
    throw Error(Code::kUsage, "--tp " + std::to_string(ranks) +
                                  ": only --driver decoder splits a model; the others run on one rank");
}

std::unique_ptr<GraphDriver> make_driver(const std::string& name, const Graph& graph,
                                         const DriverOptions& options) {
  check_driver(name, options.ranks);
  if (name == "decoder") return make_decoder_driver(graph, options);
  if (name == "auto") return make_auto(graph, options.threads);
  if (name == "static") return make_static(graph, options.threads);
  return make_dynamic(graph, options.threads);
}

}  // namespace ark::tools
