// Semantic mutants of models: one or two attributes, sizes, types, constants, inputs or operators are changed, with no
// noise of bytes, as a broken exporter or somebody with bad intents would.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/expr.h"
#include "importer/onnx.h"

namespace ark::test {

// Whether a mutant may be refused by it: in one line that somebody can act on.
inline bool is_named(const Error& e) {
  const std::string what = e.what();
  return e.code() != Code::kInternal && e.code() != Code::kUsage && e.code() != Code::kOs &&
         what.find('\n') == what.npos && what.size() < 2000;
}

class ModelMutator {
 public:
  // A number below n: a random one, or what a fuzzer's bytes say.
  using Pick = std::function<std::size_t(std::size_t n)>;

  ModelMutator(onnx::Model& model, Pick pick) : model_(model), pick_(std::move(pick)) {}
  ModelMutator(onnx::Model& model, uint64_t seed)
      : ModelMutator(model,
                     [random = std::mt19937_64(seed)](std::size_t n) mutable { return random() % n; }) {}

  // Changes one thing and says what; "" where there was nothing to change.
  std::string change() {
    // What a change before has moved or dropped is found anew.
    graphs_.clear(), nodes_.clear(), stored_.clear(), names_.clear();
    collect(model_.graph);
    switch (pick(14)) {
      case 0:
      case 1:
      case 2:
        return change_attribute();
      case 3:
        return move_attribute();
      case 4:
      case 5:
        return change_inputs(*any(nodes_));
      case 6:
        return change_outputs(*any(nodes_));
      case 7:
        return change_operator(*any(nodes_));
      case 8:
      case 9:
        return change_stored();
      case 10:
        return change_input();
      case 11:
        return pick(3) ? change_input() : change_output();
      case 12:
        return change_nodes();
      default:
        return pick(4) ? change_stored() : change_opset();
    }
  }

 private:
  std::size_t pick(std::size_t n) { return pick_(n); }
  template <typename T>
  T& any(std::vector<T>& items) {
    return items[pick(items.size())];
  }

  void collect(onnx::Graph& graph) {
    graphs_.push_back(&graph);
    for (onnx::TensorRef& t : graph.initializers)
      if (t.constant) stored_.push_back(&t), names_.push_back(t.name);
    for (const onnx::ValueInfo& v : graph.inputs) names_.push_back(v.name);
    for (onnx::Node& n : graph.nodes) {
      nodes_.push_back(&n);
      names_.insert(names_.end(), n.outputs.begin(), n.outputs.end());
      for (onnx::Attribute& a : n.attributes) {
        if (a.t.constant) stored_.push_back(&a.t);
        if (a.g) a.g = std::make_shared<onnx::Graph>(*a.g), collect(*a.g);
      }
    }
  }

  static std::string called(const onnx::Node& n) { return n.name + " (" + n.op_type + ")"; }

  int64_t number(int64_t was) {
    // clang-format off
    const int64_t wild[] = {0, 1, -1, 2, 3, 7, 8, 16, -2, 64, 4096, 1 << 20, (int64_t{1} << 31) - 1, int64_t{1} << 31,
                            int64_t{1} << 40, INT64_MAX, INT64_MIN, INT64_MAX / 2};
    // clang-format on
    switch (pick(4)) {
      case 0:
        return wild[pick(std::size(wild))];
      case 1:
        return static_cast<int64_t>(static_cast<uint64_t>(was) + (pick(2) ? 1 : UINT64_MAX));
      case 2:
        return static_cast<int64_t>(static_cast<uint64_t>(was) * 2);
      default:
        return pick(2) ? was / 2 : static_cast<int64_t>(0 - static_cast<uint64_t>(was));
    }
  }
  double real(double was) {
    const double wild[] = {0, 1, -1, 1e30, -1e30, 1e-30, NAN, INFINITY, -INFINITY, 0.5};
    return pick(3) ? wild[pick(std::size(wild))] : -was * 2;
  }

  std::string change_attribute() {
    std::vector<onnx::Node*> having;
    for (onnx::Node* n : nodes_)
      if (!n->attributes.empty() && n->op_type != "Constant") having.push_back(n);
    if (having.empty()) return "";
    onnx::Node& n = *any(having);
    onnx::Attribute& a = any(n.attributes);
    const std::string what = "attribute " + a.name + " of " + called(n);
    switch (a.type) {
      case onnx::AttributeType::kInt:
        a.i = pick(6) ? number(a.i) : static_cast<int64_t>(1 + pick(13));
        return what + " = " + std::to_string(a.i);
      case onnx::AttributeType::kFloat:
        a.f = real(a.f);
        return what + " = " + std::to_string(a.f);
      case onnx::AttributeType::kInts:
        if (a.ints.empty() || pick(5) == 0) {
          a.ints.push_back(number(1));
        } else if (pick(4) == 0) {
          a.ints.pop_back();
        } else {
          int64_t& one = any(a.ints);
          one = number(one);
          return what + " has " + std::to_string(one);
        }
        return what + " has " + std::to_string(a.ints.size()) + " numbers";
      case onnx::AttributeType::kString:
        a.s = pick(2) ? any(words_) : a.s + "x";
        return what + " = " + a.s;
      case onnx::AttributeType::kFloats:
        if (a.floats.empty() || pick(5) == 0)
          a.floats.push_back(real(1));
        else if (pick(4) == 0)
          a.floats.pop_back();
        else
          for (double& f : a.floats) f = pick(2) ? real(f) : f;
        return what + " has " + std::to_string(a.floats.size()) + " reals";
      case onnx::AttributeType::kStrings:
        if (a.strings.empty() || pick(5) == 0)
          a.strings.push_back(any(words_));
        else if (pick(4) == 0)
          a.strings.pop_back();
        else
          any(a.strings) = any(words_);
        return what + " has " + std::to_string(a.strings.size()) + " words";
      default:
        return change_stored();
    }
  }

  std::string move_attribute() {
    onnx::Node &n = *any(nodes_), &from = *any(nodes_);
    if (!n.attributes.empty() && pick(2)) {
      const std::string name = n.attributes.back().name;
      gone_.push_back(n.attributes.back());
      n.attributes.pop_back();
      return called(n) + " loses attribute " + name;
    }
    if (from.attributes.empty()) return "";
    onnx::Attribute a = any(from.attributes);
    if (a.g) return "";
    if (pick(2) && !n.attributes.empty()) a.name = any(n.attributes).name;
    std::erase_if(n.attributes, [&](const onnx::Attribute& own) {
      return own.name == a.name && (gone_.push_back(own), true);
    });
    n.attributes.push_back(a);
    return called(n) + " gets attribute " + a.name + " of " + called(from);
  }

  std::string change_inputs(onnx::Node& n) {
    if (n.inputs.empty()) return "";
    const std::size_t i = pick(n.inputs.size());
    const std::string what = "input " + std::to_string(i) + " of " + called(n);
    switch (pick(6)) {
      case 0:
        std::swap(n.inputs[i], any(n.inputs));
        return what + " changes places";
      case 1:
        n.inputs.pop_back();
        return called(n) + " loses an input";
      case 2:
        n.inputs[i].clear();
        return what + " is empty";
      case 3:
        n.inputs.push_back(any(names_));
        return called(n) + " also reads " + n.inputs.back();
      default:
        n.inputs[i] = any(names_);
        return what + " = " + n.inputs[i];
    }
  }

  std::string change_outputs(onnx::Node& n) {
    if (n.outputs.size() > 1 && pick(2)) {
      std::swap(any(n.outputs), any(n.outputs));
      return "outputs of " + called(n) + " change places";
    }
    onnx::Node& other = *any(nodes_);
    std::swap(n.outputs.back(), other.outputs.back());
    return called(n) + " and " + called(other) + " change outputs";
  }

  std::string change_operator(onnx::Node& n) {
    const std::string was = called(n);
    if (pick(2)) {
      const onnx::Node& other = *any(nodes_);
      n.op_type = other.op_type, n.domain = other.domain;
    } else {
      n.op_type = kOperators[pick(std::size(kOperators))], n.domain.clear();
    }
    return was + " becomes " + n.op_type;
  }

  std::string change_nodes() {
    onnx::Graph& g = *graphs_[pick(graphs_.size())];
    if (g.nodes.empty()) return "";
    const std::size_t at = pick(g.nodes.size());
    onnx::Node& n = g.nodes[at];
    const std::string was = called(n);
    if (pick(2) && !n.inputs.empty() && !n.outputs.empty()) {  // bypassed
      n = {.name = n.name, .op_type = "Identity", .inputs = {n.inputs[0]}, .outputs = {n.outputs[0]}};
      return was + " becomes an Identity";
    }
    onnx::Node& other = any(g.nodes);
    std::swap(n.inputs, other.inputs);
    return was + " and " + called(other) + " change inputs";
  }

  // Shape, type or content of an initializer, or of a Constant's value.
  std::string change_stored() {
    if (stored_.empty()) return "";
    onnx::TensorRef& t = *any(stored_);
    const Constant& was = *t.constant;
    const std::string what = "stored " + t.name + " " + str(Shape(was.dims.begin(), was.dims.end()));
    constexpr int64_t kMost = 1 << 20;
    if (was.size() > kMost) return "";
    Tensor x = materialise(was);
    Dims dims = x.dims;
    DType type = x.dtype;
    std::string how;
    switch (pick(8)) {
      case 0:
      case 1:
        if (dims.empty()) return "";
        dims[pick(dims.size())] = static_cast<int64_t>(pick(70));
        break;
      case 2: {
        if (dims.empty()) return "";
        int64_t& d = any(dims);
        d = pick(2) ? d / 2 : d * 2;
        break;
      }
      case 3:
        if (dims.empty()) return "";
        pick(2) ? std::reverse(dims.begin(), dims.end()) : dims.pop_back();
        break;
      case 4:
        dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(pick(dims.size() + 1)), 1);
        break;
      case 5: {
        constexpr DType kTypes[] = {DType::kF32, DType::kU8,   DType::kI8,  DType::kI32, DType::kI64,
                                    DType::kF16, DType::kBool, DType::kF64, DType::kU4};
        type = kTypes[pick(std::size(kTypes))];
        break;
      }
      default: {
        const std::size_t n = static_cast<std::size_t>(x.size());
        if (n == 0) return "";
        const bool all = pick(3) == 0;
        const std::size_t at = pick(n);
        Tensor y = Tensor::empty(type, dims);
        if (y.bytes()) std::memcpy(y.data.get(), x.data.get(), static_cast<std::size_t>(x.bytes()));
        for (std::size_t i = all ? 0 : at; i < (all ? n : at + 1); ++i) {
          const auto k = static_cast<int64_t>(i);
          if (type == DType::kI64)
            y.as<int64_t>()[i] = number(x.integer(k));
          else if (type == DType::kI32)
            y.as<int32_t>()[i] = static_cast<int32_t>(number(x.integer(k)));
          else if (type == DType::kF32)
            y.as<float>()[i] = static_cast<float>(real(x.real(k)));
          else
            std::memset(y.data.get(), static_cast<int>(pick(256)), static_cast<std::size_t>(y.bytes()));
        }
        t.constant = make_constant(std::move(y), t.name);
        return what + (all ? " other numbers" : " another number at " + std::to_string(at));
      }
    }
    if (element_count(dims) > kMost) return "";
    Tensor y = Tensor::zeros(type, dims);
    for (int64_t at = 0; at < y.bytes() && x.bytes() > 0; at += x.bytes())
      std::memcpy(y.data.get() + at, x.data.get(),
                  static_cast<std::size_t>(std::min(x.bytes(), y.bytes() - at)));
    t.constant = make_constant(std::move(y), t.name);
    return what + " becomes " + std::string(name_of(type)) + str(Shape(dims.begin(), dims.end()));
  }

  std::string change_type(onnx::ValueInfo& v, const char* kind) {
    const std::string what = std::string(kind) + " " + v.name;
    std::vector<onnx::Dimension>& dims = v.type.dims;
    if (pick(4) == 0) {
      v.type.element_type = static_cast<int32_t>(1 + pick(16));
      return what + " of type " + std::to_string(v.type.element_type);
    }
    if (dims.empty() || pick(8) == 0) {
      pick(2) || dims.empty() ? dims.push_back({"", static_cast<int64_t>(pick(5))}) : dims.pop_back();
      return what + " of rank " + std::to_string(dims.size());
    }
    onnx::Dimension& d = any(dims);
    if (pick(3) == 0 && !model_.graph.inputs.empty()) {
      const onnx::ValueInfo& other = any(model_.graph.inputs);
      d = other.type.dims.empty() ? onnx::Dimension{"batch", -1}
                                  : other.type.dims[pick(other.type.dims.size())];
    } else {
      d = {"", d.value >= 0 ? number(d.value) : static_cast<int64_t>(pick(9))};
    }
    return what + " has size " + d.parameter + std::to_string(d.value);
  }

  std::string change_input() {
    return model_.graph.inputs.empty() ? change_stored() : change_type(any(model_.graph.inputs), "input");
  }

  std::string change_output() {
    std::vector<onnx::ValueInfo>& outputs = model_.graph.outputs;
    if (outputs.size() > 1 && pick(2)) {
      std::swap(any(outputs), any(outputs));
      return "graph outputs change places";
    }
    onnx::ValueInfo& v = any(outputs);
    if (pick(2)) return change_type(v, "output");
    v.name = any(names_);
    return "graph output is " + v.name;
  }

  std::string change_opset() {
    if (model_.opsets.empty()) return "";
    auto it = model_.opsets.begin();
    std::advance(it, pick(model_.opsets.size()));
    it->second = static_cast<int64_t>(pick(30));
    return "opset " + std::to_string(it->second) + " of " + it->first;
  }

  // clang-format off
  static constexpr const char* kOperators[] = {
      "Add", "Mul", "Div", "MatMul", "Gather", "Concat", "Slice", "Softmax", "Transpose", "Shape", "Range", "Expand",
      "Where", "Unsqueeze", "Squeeze", "Cast", "Reshape", "Tile", "Pad", "TopK", "CumSum", "ReduceSum",
      "LayerNormalization", "Mod", "Einsum", "ScatterND", "GatherND", "OneHot", "Resize", "Conv", "Split", "Trilu",
      "IsNaN", "Pow", "NonZero", "Compress", "Unique", "ConstantOfShape", "Gemm"};
  std::vector<std::string> words_{"", "none", "tanh", "LEFT", "ij,jk->ik", "bhqd,bhkd->bhqk", "constant", "reflect",
                                  "wrap", "linear", "add", "NOTSET", "SAME_UPPER", "reverse", "bidirectional", "Affine",
                                  "Elu", "border", "reflection", "nearest", "cubic", "max", "output_half_pixel", "sum",
                                  "mean", "LEAF", "BRANCH_EQ", "BRANCH_GT", "LOGISTIC", "SOFTMAX", "MIN", "AVERAGE"};
  // clang-format on

  onnx::Model& model_;
  Pick pick_;
  std::vector<onnx::Graph*> graphs_;
  std::vector<onnx::Node*> nodes_;
  std::vector<onnx::Attribute> gone_;  // whose subgraphs' nodes are listed still
  std::vector<onnx::TensorRef*> stored_;
  std::vector<std::string> names_;
};

}  // namespace ark::test
