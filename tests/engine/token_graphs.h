// Token graphs built by hand, in the form that recognise_decoder produces: what the engine's tests start
// from.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/ir/keys.h"
#include "base/ir/quantized.h"
#include "engine/program/device_contract.h"
#include "importer/decoder.h"

namespace ark::test {

struct TokenGraphOptions {
  int64_t layers = 2, hidden = 32, heads = 4, kv_heads = 4, head_dim = 8, intermediate = 64, vocabulary = 101;
  int64_t max_positions = 64;
  int64_t window = 0;        // of attention; 0: none
  bool is_parallel = false;  // of a Llama: the MLP reads what attention does, as Phi's and Falcon's do
  bool tied = true;          // the head reads the embedding table
  bool adds_own = false;     // GPT-2: behind each MLP a product to which its own x is added
  bool select_early = true;  // rows are selected behind the last attention, else before the head
  // llama: an operator over rows of features scales what each MLP adds; composed: the softmax, of other operators.
  enum class Router { kNone, kRowwise, kComposed } router = Router::kNone;
  Op router_op = Op::kSoftmax;
  DType weight = DType::kF32;
  int32_t bits = 0;                       // of quantized weights; 0: `weight`
  int64_t block = 16;                     // of these, along K
  DType floating = DType::kUndefined;     // their codes are numbers of that type
  BlockTerms terms = BlockTerms::kZeros;  // or kOffsets16, kScales16
  bool is_decoded = false;                // they are f32 constants of the same numbers
  bool is_shared = false;                 // those of one size share codes and scales, but not zeros
  // Llama's MLP: biases, and what the gate goes through; kIdentity: nothing.
  bool mlp_bias = false;
  Op activation = Op::kSilu;
  // Llama: the same numbers written so that products that multiply each other, and what rotates queries, are phases of
  // their own: a one multiplies them.
  bool is_apart = false;
  uint64_t seed = 1;
  // false: large constants hold whatever is there, and take no memory while nobody reads them.
  bool filled = true;
};

// Builds the graph line by line; random weights follow from the seed and the order of calls.
class TokenGraphBuilder {
 public:
  explicit TokenGraphBuilder(const TokenGraphOptions& options) : o(options), state_(options.seed) {
    graph.name = "tokens";
    const Shape tokens = {Expr::symbol("tokens")};
    ids = graph.add_value("token_ids", DType::kI32, tokens);
    positions = graph.add_value("positions", DType::kI32, tokens);
    graph.inputs = {ids, positions};
  }

  ValueId constant(std::vector<int64_t> dims, double spread, double centre, DType dtype,
                   const std::string& name) {
    Tensor t = Tensor::empty(dtype, dims);
    if (o.filled || t.size() < 1 << 16) {
      std::vector<float> values(static_cast<std::size_t>(t.size()));
      for (float& value : values) value = static_cast<float>(centre + spread * (uniform() * 2 - 1));
      store_f32(dtype, t.data.get(), 0, t.size(), values.data());
    }
    if (o.is_decoded) {
      Tensor wide = Tensor::empty(DType::kF32, dims);
      load_f32(dtype, t.data.get(), 0, 1, t.size(), wide.as<float>());
      t = std::move(wide);
    }
    return graph.add_constant(make_constant(std::move(t), name));
  }
  // `k_axis`: along which products add up.
  ValueId matrix(int64_t rows, int64_t columns, const std::string& name, int k_axis = 0) {
    if (o.bits != 0) return quantized(rows, columns, name, k_axis);
    return constant({rows, columns}, 1.5 / std::sqrt(static_cast<double>(rows)), 0, o.weight, name);
  }
  ValueId quantized(int64_t rows, int64_t columns, const std::string& name, int k_axis) {
    const auto bytes = [&](int64_t count) {
      Tensor t = Tensor::empty(DType::kU8, {count});
      const bool is_float = is_floating(o.floating);
      for (int64_t i = 0; i < count; ++i)
        t.as<uint8_t>()[i] = static_cast<uint8_t>(uniform() * (is_float ? 127 : 256));  // no NaN
      if (is_float) t.dtype = o.floating;
      return make_constant(std::move(t));
    };
    const int64_t fields = 8 / o.bits, k = k_axis == 0 ? rows : columns, blocks = (k + o.block - 1) / o.block;
    Quantized q{.rows = rows, .columns = columns, .bits = o.bits, .axis = k_axis, .block = o.block};
    q.code_stride = (columns + fields - 1) / fields * fields;
    q.codes = bytes(rows * q.code_stride / fields);
    q.floating = o.floating;
    const bool has_offsets = o.terms == BlockTerms::kOffsets16;
    q.default_zero = o.floating == DType::kUndefined && !has_offsets ? 1 << (o.bits - 1) : 0;
    if (o.is_shared) q.default_zero -= made_++ % 5;
    const int64_t across = k_axis == 0 ? columns : rows;
    const double spread = 1.5 / std::sqrt(static_cast<double>(k)) / (1 << (o.bits - 1));
    const auto terms = [&](double size) {
      Tensor t = Tensor::empty(o.terms == BlockTerms::kZeros ? DType::kF32 : DType::kF16,
                               k_axis == 0 ? Dims{blocks, across} : Dims{across, blocks});
      for (int64_t i = 0; i < t.size(); ++i) {
        const auto term = static_cast<float>(size * (0.5 + uniform()));
        store_f32(t.dtype, t.data.get(), i, 1, &term);
      }
      return make_constant(std::move(t));
    };
    q.scales = terms(spread);
    if (has_offsets) q.offsets = terms(-spread * (1 << (o.bits - 1)));
    if (o.is_shared) {
      const Quantized& first = first_.try_emplace({rows, columns}, q).first->second;
      q.codes = first.codes, q.scales = first.scales;
    }
    const ConstantPtr c = make_quantized(q, name);
    return graph.add_constant(o.is_decoded ? make_constant(materialise(*c), name) : c);
  }
  ValueId vector(int64_t n, double centre, const std::string& name) {
    return constant({n}, 0.1, centre, DType::kF32, name);
  }
  ValueId scalar(float value) {
    return graph.add_constant(make_constant(Tensor::of<float>(DType::kF32, {}, std::vector<float>{value})));
  }

  ValueId node(Op op, const std::string& name, std::vector<ValueId> inputs, Shape shape,
               Attributes attributes = {}) {
    const ValueId out = graph.add_value(name, DType::kF32, std::move(shape));
    graph.add_node(op, name, std::move(inputs), {out}, std::move(attributes));
    return out;
  }
  const Shape& shape(ValueId v) const { return *graph.value(v).shape; }
  ValueId same(Op op, const std::string& name, std::vector<ValueId> inputs, Attributes attributes = {}) {
    Shape s = shape(inputs[0]);
    return node(op, name, std::move(inputs), std::move(s), std::move(attributes));
  }
  ValueId linear(ValueId x, const std::string& name, int64_t n, bool bias) {
    Shape s = shape(x);
    const int64_t k = *s.back().constant();
    s.back() = n;
    const ValueId y = node(Op::kMatMul, name, {x, matrix(k, n, name + ".weight")}, s, matmul_attributes(0));
    return bias ? node(Op::kAdd, name, {y, vector(n, 0, name + ".bias")}, s) : y;
  }
  static Attributes matmul_attributes(int64_t trans_b) {
    return {{key::kTransA, 0}, {key::kTransB, trans_b}};
  }
  ValueId reshape(ValueId x, const std::string& name, Shape to) {
    return node(Op::kReshape, name, {x}, to, {{key::kShape, to}});
  }
  ValueId gather(const std::string& name, ValueId table, ValueId indices) {
    return node(Op::kGather, name, {table, indices}, {shape(indices)[0], shape(table)[1]}, {{key::kAxis, 0}});
  }
  ValueId select(ValueId x, const std::string& name) {
    Shape s = shape(x);
    s[0] = Expr::symbol("rows");
    return node(Op::kSelectRows, name, {x}, s);
  }
  ValueId attention(const std::string& name, ValueId q, ValueId k, ValueId v, ValueId slopes = kNoValue) {
    const auto cache = static_cast<int64_t>(model.caches.size());
    model.caches.push_back({"past." + std::to_string(cache) + ".key",
                            "past." + std::to_string(cache) + ".value", o.kv_heads, o.head_dim, o.head_dim,
                            0});
    return node(Op::kPagedAttention, name, {q, k, v, slopes, kNoValue}, shape(q),
                {{key::kCache, cache},
                 {key::kScale, 1 / std::sqrt(static_cast<double>(o.head_dim))},
                 {key::kWindow, o.window},
                 {key::kSoftcap, 0.0}});
  }
  ValueId routed(ValueId x, const std::string& name) {
    if (o.router == TokenGraphOptions::Router::kRowwise)
      return same(o.router_op, name, {x}, {{key::kAxis, 1}});
    const Shape one = {shape(x)[0], 1};
    const Attributes last = {{key::kAxes, {1}}, {key::kKeepdims, 1}};
    const ValueId top = node(Op::kReduceMax, name + ".top", {x}, one, last);
    const ValueId e = same(Op::kExp, name + ".exp", {same(Op::kSub, name + ".sub", {x, top})});
    return same(Op::kDiv, name, {e, node(Op::kReduceSum, name + ".sum", {e}, one, last)});
  }
  DecoderModel finish(ValueId logits) {
    graph.outputs = {logits};
    model.vocabulary = model.signature.vocabulary = o.vocabulary;
    model.max_positions = model.signature.max_positions = o.max_positions;
    model.tokens = std::move(graph);
    return std::move(model);
  }
  Expr tokens() const { return Expr::symbol("tokens"); }

  const TokenGraphOptions o;
  Graph graph;
  DecoderModel model;
  ValueId ids = kNoValue, positions = kNoValue;

 private:
  double uniform() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  uint64_t state_;
  int made_ = 0;                                            // quantized matrices
  std::map<std::pair<int64_t, int64_t>, Quantized> first_;  // of each size
};

// GPT-2: learned positions, layer norms with bias, GELU, biases everywhere.
inline DecoderModel gpt2_tokens(TokenGraphOptions options = {}) {
  options.kv_heads = options.heads;
  TokenGraphBuilder b(options);
  const TokenGraphOptions& o = b.o;
  const int64_t width = o.heads * o.head_dim;
  const auto norm = [&](ValueId x, const std::string& name) {
    return b.same(Op::kLayerNorm, name,
                  {x, b.vector(o.hidden, 1, name + ".weight"), b.vector(o.hidden, 0, name + ".bias")},
                  {{key::kAxis, 1}, {key::kEpsilon, 1e-5}});
  };
  const ValueId table = b.matrix(o.vocabulary, o.hidden, "wte", 1);
  ValueId x = b.same(Op::kAdd, "embed",
                     {b.gather("wte", table, b.ids),
                      b.gather("wpe", b.matrix(o.max_positions, o.hidden, "wpe", 1), b.positions)});
  for (int64_t layer = 0; layer < o.layers; ++layer) {
    const std::string p = "h." + std::to_string(layer) + ".";
    const ValueId y = norm(x, p + "ln_1");
    std::vector<ValueId> qkv;
    for (const char* part : {"q", "k", "v"}) qkv.push_back(b.linear(y, p + part, width, true));
    for (ValueId& v : qkv) v = b.reshape(v, p + "heads", {b.tokens(), o.heads, o.head_dim});
    ValueId a = b.reshape(b.attention(p + "attn", qkv[0], qkv[1], qkv[2]), p + "merge", {b.tokens(), width});
    if (o.select_early && layer + 1 == o.layers) {
      a = b.select(a, p + "rows");
      x = b.select(x, p + "rows_residual");
    }
    x = b.same(Op::kAdd, p + "add_1", {x, b.linear(a, p + "c_proj", o.hidden, true)});
    ValueId h = b.linear(norm(x, p + "ln_2"), p + "c_fc", o.intermediate, true);
    h = b.same(Op::kGelu, p + "gelu", {h}, {{key::kApproximate, "tanh"}});
    x = b.same(Op::kAdd, p + "add_2", {x, b.linear(h, p + "c_proj2", o.hidden, true)});
    if (o.adds_own) x = b.same(Op::kAdd, p + "add_3", {x, b.linear(x, p + "own", o.hidden, true)});
  }
  if (!o.select_early || o.layers == 0) x = b.select(x, "rows");
  x = norm(x, "ln_f");
  const ValueId head = o.tied ? table : b.matrix(o.vocabulary, o.hidden, "lm_head", 1);
  return b.finish(b.node(Op::kMatMul, "lm_head", {x, head}, {Expr::symbol("rows"), o.vocabulary},
                         TokenGraphBuilder::matmul_attributes(1)));
}

// Llama: grouped queries, rotary positions, RMS norms, gated MLP, no biases.
inline DecoderModel llama_tokens(TokenGraphOptions options = {.kv_heads = 2}) {
  TokenGraphBuilder b(options);
  const TokenGraphOptions& o = b.o;
  const int64_t width = o.heads * o.head_dim;
  const auto norm = [&](ValueId x, const std::string& name) {
    return b.same(Op::kRmsNorm, name, {x, b.vector(o.hidden, 1, name + ".weight")},
                  {{key::kAxis, 1}, {key::kEpsilon, 1e-5}});
  };
  const auto rotary_table = [&](double (*f)(double), const std::string& name) {
    Tensor t = Tensor::empty(DType::kF32, {o.max_positions, o.head_dim / 2});
    for (int64_t i = 0; i < t.size(); ++i) {
      const auto pair = static_cast<double>(i % (o.head_dim / 2));
      const double angle = static_cast<double>(i / (o.head_dim / 2)) *
                           std::pow(10000.0, -2 * pair / static_cast<double>(o.head_dim));
      t.as<float>()[i] = static_cast<float>(f(angle));
    }
    return b.graph.add_constant(make_constant(std::move(t), name));
  };
  const ValueId cosine = rotary_table([](double a) { return std::cos(a); }, "cos");
  const ValueId sine = rotary_table([](double a) { return std::sin(a); }, "sin");
  const auto rotate = [&](ValueId v, const std::string& name) {
    return b.same(Op::kRotary, name, {v, cosine, sine, b.positions},
                  {{key::kInterleaved, 0}, {key::kRotaryDim, o.head_dim}, {key::kHeadAxis, 1}});
  };
  const ValueId table = b.matrix(o.vocabulary, o.hidden, "embed_tokens", 1);
  ValueId x = b.gather("embed", table, b.ids);
  for (int64_t layer = 0; layer < o.layers; ++layer) {
    const std::string p = "layers." + std::to_string(layer) + ".";
    ValueId y = norm(x, p + "input_norm");
    const auto heads = [&](const std::string& part, int64_t n) {
      return b.reshape(b.linear(y, p + part, n * o.head_dim, false), p + part + "_heads",
                       {b.tokens(), n, o.head_dim});
    };
    const auto apart = [&](ValueId v, const std::string& name) {
      return o.is_apart ? b.same(Op::kMul, name, {v, b.scalar(1)}) : v;
    };
    const ValueId q = apart(rotate(heads("q_proj", o.heads), p + "q_rotary"), p + "q_apart");
    const ValueId k = rotate(heads("k_proj", o.kv_heads), p + "k_rotary");
    const ValueId v = heads("v_proj", o.kv_heads);
    ValueId a = b.reshape(b.attention(p + "attn", q, k, v), p + "merge", {b.tokens(), width});
    if (o.select_early && layer + 1 == o.layers) {
      a = b.select(a, p + "rows");
      x = b.select(x, p + "rows_residual");
      if (o.is_parallel) y = b.select(y, p + "rows_norm");
    }
    x = b.same(Op::kAdd, p + "add_1", {x, b.linear(a, p + "o_proj", o.hidden, false)});
    const ValueId z = o.is_parallel ? y : norm(x, p + "post_norm");
    ValueId gate = b.linear(z, p + "gate_proj", o.intermediate, o.mlp_bias);
    const Attributes exact{{key::kApproximate, "none"}};
    if (o.activation != Op::kIdentity)
      gate = b.same(o.activation, p + "act", {gate}, o.activation == Op::kGelu ? exact : Attributes{});
    const ValueId up = apart(b.linear(z, p + "up_proj", o.intermediate, o.mlp_bias), p + "up_apart");
    const ValueId h = b.same(Op::kMul, p + "mul", {gate, up});
    ValueId down = b.linear(h, p + "down_proj", o.hidden, false);
    if (o.router != TokenGraphOptions::Router::kNone) {
      const ValueId scores = b.linear(z, p + "router", o.hidden, false);
      down = b.same(Op::kMul, p + "routed", {down, b.routed(scores, p + "weights")});
    }
    x = b.same(Op::kAdd, p + "add_2", {x, down});
  }
  if (!o.select_early || o.layers == 0) x = b.select(x, "rows");
  x = norm(x, "norm");
  const ValueId head = o.tied ? table : b.matrix(o.vocabulary, o.hidden, "lm_head", 1);
  return b.finish(b.node(Op::kMatMul, "lm_head", {x, head}, {Expr::symbol("rows"), o.vocabulary},
                         TokenGraphBuilder::matmul_attributes(1)));
}

inline DecoderModel gpt2_or_llama(bool gpt2, DType weight = DType::kF32) {
  TokenGraphOptions options;
  options.weight = weight;
  if (gpt2) return gpt2_tokens(options);
  options.kv_heads = 2;
  return llama_tokens(options);
}

}  // namespace ark::test
