// The drivers that ark-run offers, behind one interface.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "engine/plain/dynamic_driver.h"
#include "engine/plain/parallel_for.h"
#include "engine/plain/static_driver.h"
#include "server/tools/run_suite.h"
#include "server/tools/step_profile.h"

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

template <class Driver>
class Whole : public GraphDriver {
 public:
  template <class... Options>
  explicit Whole(const Graph& graph, Options... options)
      : graph_(graph), driver_(graph, std::move(options)...) {}
  std::vector<Tensor> run(const std::vector<std::optional<Tensor>>& inputs) override {
    return driver_.run(all_inputs(graph_, inputs));
  }

 protected:
  const Graph& graph_;
  Driver driver_;
};

class WholeStatic : public Whole<StaticDriver> {
 public:
  using Whole::Whole;
  std::string profile(int64_t runs) override {
    return profile_text(step_profile(driver_.timeline(), driver_.program(), runs, {}), 0);
  }
};

// Events of one run, at most: a wait, a turn and an end for each phase, and room for the run before.
int32_t events_of(const Graph& graph, const DriverOptions& options) {
  const auto most = static_cast<std::size_t>(std::numeric_limits<int32_t>::max());
  return options.profile ? static_cast<int32_t>(std::min(8 * (graph.nodes.size() + 8), most)) : 0;
}

std::unique_ptr<GraphDriver> make_static(const Graph& graph, const DriverOptions& options) {
  return std::make_unique<WholeStatic>(graph, StaticOptions{.processors = options.threads,
                                                            .limits = options.limits,
                                                            .trace_events = events_of(graph, options)});
}

std::unique_ptr<GraphDriver> make_dynamic(const Graph& graph, const DriverOptions& options) {
  return std::make_unique<Whole<DynamicDriver>>(graph, parallel_for(options.threads), options.limits);
}

// The static driver while it can run the graph, and its inputs' sizes; then the dynamic one.
class Auto : public GraphDriver {
 public:
  Auto(const Graph& graph, const DriverOptions& options) : graph_(graph), options_(options) {
    or_else_dynamic([&] { driver_ = make_static(graph_, options_); });
  }
  std::vector<Tensor> run(const std::vector<std::optional<Tensor>>& inputs) override {
    std::vector<Tensor> outputs;
    if (or_else_dynamic([&] { outputs = driver_->run(inputs); })) outputs = driver_->run(inputs);
    return outputs;
  }
  std::string profile(int64_t runs) override { return driver_->profile(runs); }

 private:
  // Whether that was unsupported, and the driver is another one now.
  bool or_else_dynamic(const auto& attempt) {
    try {
      attempt();
      return false;
    } catch (const Error& e) {
      if (e.code() != Code::kUnsupported || is_dynamic_) throw;
    }
    driver_ = make_dynamic(graph_, options_);
    return is_dynamic_ = true;
  }

  const Graph& graph_;
  const DriverOptions options_;
  std::unique_ptr<GraphDriver> driver_;
  bool is_dynamic_ = false;
};

}  // namespace

std::string GraphDriver::profile(int64_t) { return {}; }

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
  if (name == "auto") return std::make_unique<Auto>(graph, options);
  if (name == "static") return make_static(graph, options);
  return make_dynamic(graph, options);
}

}  // namespace ark::tools
