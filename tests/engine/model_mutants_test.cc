// Semantic mutants of exported decoders, loaded as ark-serve loads them and run for two tokens: refused by name, or
// run. Never a signal, an internal error, an unsound program, two seconds, or 300 MB.
//   ARK_MUTANTS=N       how many (a few by default)
//   ARK_MUTANT_SEED=S   of the run; each mutant depends on S and its number only
//   ARK_MUTANT=I        only number I, and what happens to it
#include "tests/engine/model_mutants.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <fstream>
#include <set>

#include "base/error.h"
#include "engine/plain/dynamic_driver.h"
#include "engine/plain/plain_runner.h"
#include "engine/validate/validate.h"
#include "tests/engine/driving.h"
#include "tests/engine/models.h"

namespace ark::test {
namespace {

int64_t setting(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text && *text ? std::atoll(text) : fallback;
}

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Megabytes of this process by /proc: "VmRSS:" now, "VmHWM:" the most since the last forget_peak().
double megabytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == key) return status >> word, std::stod(word) / 1024;
  return 0;
}
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

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
  const int64_t seed = setting("ARK_MUTANT_SEED", 1), only = setting("ARK_MUTANT", -1);
  const int64_t first = only < 0 ? 0 : only, count = only < 0 ? setting("ARK_MUTANTS", rounds(200)) : 1;
  const double slack = is_sanitized() ? 20 : 2;  // of time; tests are not optimised
  std::map<std::string, int> ends;
  double slowest = 0, largest = 0;
  for (int64_t i = first; i < first + count; ++i) {
    std::seed_seq sequence{seed, i};
    uint32_t words[2];
    sequence.generate(words, words + 2);
    std::mt19937_64 random(static_cast<uint64_t>(words[0]) << 32 | words[1]);
    const std::size_t which = random() % names.size();
    onnx::Model mutant = models[which];
    std::string label =
        "mutant " + std::to_string(i) + " of seed " + std::to_string(seed) + ", " + names[which];
    ModelMutator mutator(mutant, random());
    for (std::size_t n = 1 + random() % 2; n > 0; --n) label += "; " + mutator.change();
    if (only >= 0) std::fprintf(stderr, "%s\n", label.c_str());
    if (const char* file = std::getenv("ARK_MUTANT_LOG"))
      std::ofstream(file) << label << "\n";  // for what crashes
    const double start = processor_seconds(), before = megabytes("VmRSS:");
    forget_peak();
    std::string end = "run";
    try {
      load_and_run(mutant);
    } catch (const Error& e) {
      end = e.code() == Code::kBadModel      ? "bad model"
            : e.code() == Code::kUnsupported ? "unsupported"
                                             : "run-time error";
      const std::string what = e.what();
      EXPECT_TRUE(e.code() != Code::kInternal && e.code() != Code::kUsage && e.code() != Code::kOs)
          << label << ": " << what;
      EXPECT_TRUE(what.find('\n') == what.npos && what.size() < 2000) << label << ": " << what;
      if (only >= 0) std::fprintf(stderr, "%s: %s\n", end.c_str(), what.c_str());
    } catch (const std::exception& e) {
      ADD_FAILURE() << label << ": " << e.what();
    }
    ++ends[end];
    const double seconds = processor_seconds() - start, grown = megabytes("VmHWM:") - before;
    EXPECT_LT(seconds, 2 * slack) << label;
    if (!is_sanitized()) {
      EXPECT_LT(grown, 300) << label;
    }
    slowest = std::max(slowest, seconds), largest = std::max(largest, grown);
  }
  for (const auto& [end, n] : ends) std::printf("%s: %d\n", end.c_str(), n);
  std::printf("slowest %.2f s of processor time, most memory %.0f MB\n", slowest, largest);
}

}  // namespace
}  // namespace ark::test
