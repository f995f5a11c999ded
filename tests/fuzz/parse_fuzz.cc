// libFuzzer: any bytes as a model in memory, through parse, build and passes. Only ark::Error about the model
// may come out. Seeds: small fixtures (scripts/test.sh passes their folder).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "base/error.h"
#include "importer/import.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  try {
    const ark::ImportOptions options;
    ark::Graph graph = ark::build_graph(
        ark::onnx::parse_model(nullptr, {reinterpret_cast<const std::byte*>(data), size}, "", options.limits),
        options);
    ark::run_passes(graph, options);
  } catch (const ark::Error& e) {
    if (e.code() == ark::Code::kBadModel || e.code() == ark::Code::kUnsupported) return 0;
    std::cerr << "an input may not cause: " << e.what() << '\n';
    std::abort();
  }
  return 0;
}
