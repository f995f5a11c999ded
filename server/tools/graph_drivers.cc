// The drivers that ark-run offers, behind one interface.
#include <algorithm>

#include "base/error.h"
#include "engine/plain/dynamic_driver.h"
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

class Dynamic : public GraphDriver {
 public:
  explicit Dynamic(const Graph& graph) : graph_(graph), driver_(graph) {}
  std::vector<Tensor> run(const std::vector<std::optional<Tensor>>& inputs) override {
    return driver_.run(all_inputs(graph_, inputs));
  }

 private:
  const Graph& graph_;
  DynamicDriver driver_;
};

}  // namespace

std::unique_ptr<GraphDriver> make_driver(const std::string& name, const Graph& graph, int ranks,
                                         int threads) {
  (void)ranks;
  (void)threads;
  if (name == "dynamic" || name == "auto") return std::make_unique<Dynamic>(graph);
  throw Error(Code::kUsage, "--driver '" + escaped(name) + "' is none of auto, static, dynamic, decoder");
}

}  // namespace ark::tools
