// Semantic mutants of exported decoders, loaded as ark-serve loads them and run for two tokens: refused by name, or
// run (tests/engine/mutant_runs.h). None makes an unsound program.
#include "tests/engine/model_mutants.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/plain/dynamic_driver.h"
#include "engine/plain/plain_runner.h"
#include "engine/validate/validate.h"
#include "tests/engine/driving.h"
#include "tests/engine/models.h"
#include "tests/engine/mutant_runs.h"

namespace ark::test {
namespace {

std::vector<Tensor> zeros_for(const Graph& graph) {
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
void load_and_run(const onnx::Model& model) {
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

TEST(ModelMutants, AreRefusedByNameOrRun) {
  if (!std::filesystem::exists(fixtures())) GTEST_SKIP() << fixtures() << " is missing";
  std::vector<std::string> names = kDecoders;
  names.insert(names.end(), {"llama-genai-int4", "llama-int4", "llama-int4-qdq", "llama-int8-dynamic",
                             "phi3-genai-fp32", "t5-decoder-with-past", "whisper-decoder-with-past"});
  std::vector<onnx::Model> models;
  for (const std::string& name : names) models.push_back(onnx::parse_model(model_file(fixtures() / name)));
  expect_named_or_run(rounds(200), [&](std::mt19937_64& random, const auto& say) {
    const std::size_t which = random() % names.size();
    onnx::Model mutant = models[which];
    std::string label = names[which];
    ModelMutator mutator(mutant, random());
    for (std::size_t n = 1 + random() % 2; n > 0; --n) label += "; " + mutator.change();
    say(label);
    load_and_run(mutant);
  });
}

}  // namespace
}  // namespace ark::test
