// Semantic mutants of single operators, with mutants of their inputs, by both drivers of plain graphs: refused by name,
// or run (tests/engine/mutant_runs.h); what both run gives the same bytes.
//   ARK_MUTANT_MODELS=A:B  folders of NAME/model.onnx, NAME/test_data_set_0/input_N.pb: what `onnx_nodes.py` writes
//   ARK_MUTANT_OPS=A,B     only models of these operators
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <sstream>

#include "engine/plain/dynamic_driver.h"
#include "engine/plain/static_driver.h"
#include "importer/import.h"
#include "tests/engine/model_mutants.h"
#include "tests/engine/mutant_runs.h"

namespace ark::test {
namespace {

namespace fs = std::filesystem;

struct OperatorCase {
  std::string name;
  onnx::Model model;
  std::vector<onnx::TensorRef> inputs;
};

std::vector<std::string> parts_of(const char* text, char between) {
  std::vector<std::string> parts;
  std::istringstream in(text ? text : "");
  for (std::string part; std::getline(in, part, between);) parts.push_back(part);
  return parts;
}

// By operator, so that one with many cases counts no more than others.
std::map<std::string, std::vector<OperatorCase>> read_cases() {
  const std::vector<std::string> wanted = parts_of(std::getenv("ARK_MUTANT_OPS"), ',');
  std::map<std::string, std::vector<OperatorCase>> cases;
  for (const std::string& root : parts_of(std::getenv("ARK_MUTANT_MODELS"), ':'))
    for (const auto& entry : fs::recursive_directory_iterator(root)) {
      const fs::path folder = entry.path().parent_path();
      if (entry.path().filename() != "model.onnx" || folder.string().find("_expanded") != std::string::npos)
        continue;
      try {
        OperatorCase one{folder.filename(), onnx::parse_model(entry.path()), {}};
        if (one.model.graph.nodes.empty()) continue;
        const std::string op = one.model.graph.nodes[0].op_type;
        if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), op) == wanted.end()) continue;
        for (std::size_t i = 0; i < one.model.graph.inputs.size(); ++i)
          one.inputs.push_back(
              onnx::parse_tensor(folder / "test_data_set_0" / ("input_" + std::to_string(i) + ".pb")));
        const bool are_numbers =
            std::all_of(one.inputs.begin(), one.inputs.end(),
                        [](const onnx::TensorRef& t) { return t.constant->dtype != DType::kString; });
        if (are_numbers) cases[op].push_back(std::move(one));
      } catch (const Error&) {  // sequences, strings
      }
    }
  return cases;
}

double wild_number(std::mt19937_64& random) {
  constexpr double kWild[] = {0,      1,   -1,       2,         -2,  1e9,   -1e9, 5e37, -5e37,  1e300,
                              -1e300, NAN, INFINITY, -INFINITY, 0.5, 1e-30, 64,   4096, 1 << 20};
  return kWild[random() % std::size(kWild)];
}

// None that may be a size of more memory than a test should take, and is not refused.
int64_t wild_integer(std::mt19937_64& random) {
  constexpr int64_t kWild[] = {0,        1, -1, 2, 3, -2, 64, 4096, INT64_MAX, INT64_MIN, int64_t{1} << 40,
                               INT32_MIN};
  return kWild[random() % std::size(kWild)];
}

void poke(Tensor& t, int64_t i, std::mt19937_64& random) {
  const double value = wild_number(random);
  switch (t.dtype) {
    case DType::kF32:
      t.as<float>()[i] = static_cast<float>(value);
      break;
    case DType::kF64:
      t.as<double>()[i] = value;
      break;
    case DType::kI64:
      t.as<int64_t>()[i] = wild_integer(random);
      break;
    case DType::kI32:
      t.as<int32_t>()[i] = static_cast<int32_t>(wild_integer(random));
      break;
    case DType::kBool:
      t.as<bool>()[i] = random() % 2;
      break;
    default: {  // some bits, NaN too
      const int64_t size = t.bytes() / std::max<int64_t>(t.size(), 1);
      if (size > 0)
        std::memset(t.data.get() + i * size, static_cast<int>(random() % 256),
                    static_cast<std::size_t>(size));
    }
  }
}

// Another number, all others, or other sizes of the same numbers.
Tensor changed(const Tensor& was, std::mt19937_64& random) {
  Dims dims = was.dims;
  switch (random() % 6) {
    case 0:
      if (!dims.empty()) dims[random() % dims.size()] = static_cast<int64_t>(random() % 5);
      break;
    case 1:
      if (!dims.empty() && random() % 2)
        dims.pop_back();
      else if (dims.size() < 8)
        dims.push_back(1);
      break;
    default:
      break;
  }
  Tensor t = Tensor::zeros(was.dtype, dims);
  for (int64_t at = 0; at < t.bytes() && was.bytes() > 0; at += was.bytes())
    std::memcpy(t.data.get() + at, was.data.get(),
                static_cast<std::size_t>(std::min(was.bytes(), t.bytes() - at)));
  if (dims != was.dims || t.size() == 0) return t;
  const bool all = random() % 4 == 0;
  const auto at = static_cast<int64_t>(random() % static_cast<uint64_t>(t.size()));
  for (int64_t i = all ? 0 : at; i < (all ? t.size() : at + 1); ++i) poke(t, i, random);
  return t;
}

Tensor input_for(const Graph& graph, ValueId id, const std::map<std::string, Tensor>& given) {
  const Value& v = graph.value(id);
  if (const auto it = given.find(v.name); it != given.end()) return it->second;
  if (!v.shape) throw Error(Code::kUnsupported, "an input of unknown rank");
  return Tensor::zeros(v.dtype, Dims(v.shape->size(), 2));
}

bool has_random_numbers(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& n) {
    return n.op == Op::kRandom || std::any_of(n.subgraphs.begin(), n.subgraphs.end(),
                                              [](const auto& body) { return has_random_numbers(*body); });
  });
}

void load_and_run_plain(const onnx::Model& model, const std::map<std::string, Tensor>& given) {
  Graph graph = build_graph(model);
  run_passes(graph);
  std::vector<Tensor> inputs;
  for (const ValueId id : graph.inputs) inputs.push_back(input_for(graph, id, given));
  const std::vector<Tensor> outputs = DynamicDriver(graph).run(inputs);
  std::vector<Tensor> compiled;
  try {
    compiled = StaticDriver(graph, {.lockstep = true}).run(inputs);
  } catch (const Error& e) {
    if (e.code() == Code::kUnsupported) return;  // the sizes are the data's
    throw Error(Code::kInternal, std::string("only the dynamic driver runs it: ") + e.what());
  }
  const bool has_halves = std::any_of(outputs.begin(), outputs.end(), [](const Tensor& t) {
    return bits_of(t.dtype) < 8;  // the last byte may hold one element
  });
  if (!(outputs == compiled) && !has_halves && !has_random_numbers(graph))
    throw Error(Code::kInternal, "the drivers differ");
}

TEST(OperatorMutants, AreRefusedByNameOrRun) {
  const auto cases = read_cases();
  if (cases.empty()) GTEST_SKIP() << "ARK_MUTANT_MODELS names no folder of models";
  std::vector<std::string> ops;
  for (const auto& [op, some] : cases) ops.push_back(op);
  expect_named_or_run(rounds(2000), [&](std::mt19937_64& random, const auto& say) {
    const auto& some = cases.at(ops[random() % ops.size()]);
    const OperatorCase& one = some[random() % some.size()];
    onnx::Model mutant = one.model;
    std::string label = one.name;
    std::map<std::string, Tensor> given;
    const bool are_stored = random() % 3 == 0, are_symbolic = random() % 2;
    std::vector<onnx::ValueInfo> inputs = std::move(mutant.graph.inputs);
    mutant.graph.inputs.clear();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      Tensor t = materialise(*one.inputs[i].constant);
      if (random() % 4 == 0) t = changed(t, random), label += "; input " + inputs[i].name + " changes";
      const bool is_stored = are_stored || random() % 6 == 0;
      if (is_stored) {
        mutant.graph.initializers.push_back({inputs[i].name, make_constant(t, inputs[i].name)});
        label += "; " + inputs[i].name + " is stored";
      } else {
        given[inputs[i].name] = t;
        std::vector<onnx::Dimension>& dims = inputs[i].type.dims;
        for (std::size_t a = 0; a < dims.size() && are_symbolic; ++a)
          dims[a] = {inputs[i].name + std::to_string(a), -1};
        mutant.graph.inputs.push_back(inputs[i]);
      }
    }
    ModelMutator mutator(mutant, random());
    for (std::size_t n = random() % 3; n > 0; --n) label += "; " + mutator.change();
    say(label);
    load_and_run_plain(mutant, given);
  });
}

}  // namespace
}  // namespace ark::test
