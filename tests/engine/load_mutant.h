// A model as ark-serve loads it, run for two tokens, or once where it is no decoder.
#pragma once

#include <set>
#include <string>
#include <variant>
#include <vector>

#include "engine/plain/dynamic_driver.h"
#include "engine/plain/plain_runner.h"
#include "engine/validate/validate.h"
#include "tests/engine/driving.h"
#include "tests/engine/models.h"

namespace ark::test {

inline std::vector<Tensor> zeros_for(const Graph& graph) {
  std::vector<Tensor> inputs;
  for (const ValueId id : graph.inputs) {
    const Value& v = graph.value(id);
    if (!v.shape) throw Error(Code::kUnsupported, "an input of unknown rank");
    Dims dims;
    for (const Expr& e : *v.shape) {
      std::set<std::string> names;
      e.collect_symbols(names);
      SymbolValues twos;
      for (const std::string& name : names) twos[name] = 2;
      dims.push_back(e.evaluate(twos));
    }
    constexpr int64_t kMost = 1 << 22;
    if (element_count(dims) > kMost) throw Error(Code::kUnsupported, "large inputs");
    inputs.push_back(Tensor::zeros(v.dtype, dims));
  }
  return inputs;
}

// Throws where the mutant is refused.
inline void load_and_run(const onnx::Model& model) {
  Graph graph = build_graph(model, {.settle_controls = true});
  run_passes(graph);
  const auto found = recognise_decoder(graph, 64);
  std::string why;
  if (const auto* decoder = std::get_if<DecoderModel>(&found)) {
    const Compiled compiled = compile_small(*decoder, 1);
    if (const auto errors = validate(compiled.programs, compiled.bindings); !errors.empty())
      throw Error(Code::kInternal, "unsound program: " + errors[0]);
    RunnerSetup setup{
        .max_tokens = 16, .max_rows = 4, .max_slots = 2, .max_length = 16, .page_size = 4, .pages = 8};
    setup.options.lockstep = true;
    setup.options.threads = 1;
    const auto runner = make_runner(*decoder, setup);
    run_greedy(*runner, {1, 2, 3}, 3, 1);
  } else if (auto signature = find_signature(graph, &why)) {
    PlainRunner runner(graph, *signature, {.max_length = 16, .max_slots = 2});
    run_greedy(runner, {1, 2, 3}, 3, 1);
  } else {
    DynamicDriver(graph).run(zeros_for(graph));
  }
}

}  // namespace ark::test
