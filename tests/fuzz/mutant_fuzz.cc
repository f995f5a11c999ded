// libFuzzer: bytes as a model of the zoo and up to four semantic changes of it (tests/engine/model_mutants.h), through
// load, recognise, compile, validate and two tokens. It is refused by name or runs, and no program is unsound.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>

#include "tests/engine/load_mutant.h"
#include "tests/engine/model_mutants.h"

namespace {

using namespace ark;

// In this order for ever: inputs that were kept mean the same. What is new joins at the end.
constexpr const char* kModels[] = {
    "llama",         "gpt2",        "gpt2-stacked", "neox",           "bloom",           "gemma3",
    "cohere",        "falcon",      "phi3",         "mistral",        "qwen3",           "past-joined",
    "no-past",       "opset-21",    "llama-f16",    "quantized-int8", "quantized-nbits", "quantized-f8e4m3",
    "broken-future", "past-stacked"};
constexpr int kMostChanges = 4;

const onnx::Model& model_of(const std::string& name) {
  static std::map<std::string, onnx::Model> read;
  const auto [at, is_new] = read.try_emplace(name);
  if (is_new) at->second = onnx::parse_model(test::model_file(test::zoo() / name));
  return at->second;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  for (const char* name : kModels) {
    if (std::filesystem::exists(test::model_file(test::zoo() / name))) continue;
    std::cerr << "no " << name << " in " << test::zoo()
              << ": `.venv/bin/python models/zoo.py build/zoo` makes it\n";
    std::exit(66);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  FuzzedDataProvider bytes(data, size);
  std::string label = bytes.PickValueInArray(kModels);
  onnx::Model mutant = model_of(label);
  test::ModelMutator mutator(
      mutant, [&](std::size_t n) { return bytes.ConsumeIntegralInRange<std::size_t>(0, n - 1); });
  for (int n = 0; n < kMostChanges && bytes.remaining_bytes() > 0; ++n) label += "; " + mutator.change();
  try {
    test::load_and_run(mutant);
  } catch (const Error& e) {
    if (test::is_named(e)) return 0;
    std::cerr << label << ": an input may not cause: " << e.what() << '\n';
    std::abort();
  }
  return 0;
}
