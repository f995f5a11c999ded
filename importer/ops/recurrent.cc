// RNN, GRU and LSTM: one product of the whole input with the weights of all gates and directions, then the recurrence.
#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "importer/ops/helpers.h"
#include "importer/ops/table.h"

namespace ark::ops {
namespace {

// What differs between the three. `activations`: of one direction, where the node names none.
struct RecurrentLayer {
  Op op;
  int64_t gates;
  std::vector<std::string> activations;
};

struct ActivationLists {
  std::vector<std::string> names;
  std::vector<double> parameters;
};

// Names in any spelling of upper and lower case, as ONNX Runtime takes them.
std::string canonical_activation(OpContext& c, std::string name) {
  const auto lower = [](std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char x) { return std::tolower(x); });
    return text;
  };
  name = lower(name.substr(0, 40));
  for (const char* known : {"Relu", "Tanh", "Sigmoid", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh",
                            "HardSigmoid", "Elu", "Softsign", "Softplus"})
    if (lower(known) == name) return known;
  c.unsupported("the activation '" + escaped(name) + "'");
}

// activation_alpha and activation_beta hold, in order, only those that an activation takes.
ActivationLists activations_of(OpContext& c, const RecurrentLayer& layer, int64_t directions) {
  const onnx::Attribute* given = c.node.attribute("activations");
  if (given && given->type != onnx::AttributeType::kStrings)
    c.fail("attribute 'activations' is no list of strings");
  ActivationLists lists;
  const std::size_t wanted = layer.activations.size() * static_cast<std::size_t>(directions);
  if (given) lists.names = given->strings;
  for (int64_t d = 0; d < directions && (!given || given->strings.empty()); ++d)
    lists.names.insert(lists.names.end(), layer.activations.begin(), layer.activations.end());
  if (lists.names.size() != wanted)
    c.fail("has " + std::to_string(lists.names.size()) + " activations; " + std::to_string(wanted) +
           " are needed");
  const std::vector<double> alphas = c.attr_floats("activation_alpha"),
                            betas = c.attr_floats("activation_beta");
  std::size_t alpha = 0, beta = 0;
  for (std::string& name : lists.names) {
    name = canonical_activation(c, name);
    const pointwise::Row* row = pointwise::row_of(op_from_name(name));
    const bool affine = name == "Affine";
    double p = affine ? 1 : row->p.fallback, q = affine ? 0 : row->q.fallback;
    if ((affine || row->p.name) && alpha < alphas.size()) p = alphas[alpha++];
    if ((affine || row->q.name) && beta < betas.size()) q = betas[beta++];
    lists.parameters.insert(lists.parameters.end(), {p, q});
  }
  return lists;
}

// [N, D or T, H] <-> [D or T, N, H]: what `layout` turns.
ValueId turned(OpContext& c, ValueId x) { return transpose(c, x, {1, 0, 2}); }

// The biases of input and recurrence [D, 2 * all], added. Where the reset gate is multiplied behind the product, the
// hidden gate's second bias stays apart, in `hidden_bias`.
ValueId added_biases(OpContext& c, ValueId bias, const Expr& all, const Expr& hidden, ValueId* hidden_bias) {
  const Expr end = all + all, kept = hidden_bias ? all - hidden : all;
  const ValueId sum =
      binary(c, Op::kAdd, slice_axis(c, bias, 1, 0, kept), slice_axis(c, bias, 1, all, all + kept));
  if (!hidden_bias) return sum;
  *hidden_bias = slice_axis(c, bias, 1, all + kept, end);
  return c.emit(Op::kConcat, {sum, slice_axis(c, bias, 1, kept, all)}, {{key::kAxis, 1}});
}

void recurrent_layer(OpContext& c, const RecurrentLayer& layer) {
  const std::string direction = c.attr_word("direction", {"forward", "reverse", "bidirectional"});
  const int64_t directions = direction == "bidirectional" ? 2 : 1;
  const bool batch_first = c.attr_int("layout", 0) != 0;
  const bool reset_behind = layer.op == Op::kGru && c.attr_int("linear_before_reset", 0) != 0;
  for (const std::size_t i : {0, 1, 2})
    if (c.rank(i) != 3)
      c.fail("input " + std::to_string(i) + " has rank " + std::to_string(c.rank(i)) + ", not 3");
  const ValueId x = batch_first ? turned(c, c.input(0)) : c.input(0), w = c.input(1), r = c.input(2);
  const Shape x_shape = shape_of(c, x), w_shape = shape_of(c, w), r_shape = shape_of(c, r);
  const Expr hidden = r_shape[2], all = hidden * Expr(layer.gates);
  if (c.has_attr("hidden_size"))
    c.require_equal(hidden, Expr(c.attr_int("hidden_size", 0)), "R's hidden size");
  c.require_equal(w_shape[0], Expr(directions), "W's number of directions");
  c.require_equal(w_shape[1], all, "W's number of gates times units");
  c.require_equal(x_shape[2], w_shape[2], "the size of the input, by W's,");

  const ValueId flat = reshape(c, w, {Expr(directions) * all, w_shape[2]});
  ValueId gates = c.emit(Op::kMatMul, {x, flat}, {{key::kTransB, 1}}), hidden_bias = kNoValue;
  if (c.has_input(3)) {
    const Shape& shape = shape_of(c, c.inputs[3]);
    if (shape.size() != 2) c.fail("B has rank " + std::to_string(shape.size()) + ", not 2");
    c.require_equal(shape[0], Expr(directions), "B's number of directions");
    c.require_equal(shape[1], all + all, "the size of B");
    const ValueId bias = added_biases(c, c.inputs[3], all, hidden, reset_behind ? &hidden_bias : nullptr);
    gates = binary(c, Op::kAdd, gates, reshape(c, bias, {Expr(directions) * all}));
  }
  gates = reshape(c, gates, {x_shape[0], x_shape[1], Expr(directions), all});

  const auto state = [&](std::size_t i) {
    return !c.has_input(i) ? kNoValue : batch_first && c.rank(i) == 3 ? turned(c, c.inputs[i]) : c.inputs[i];
  };
  std::vector<ValueId> in{gates, r, optional_input(c, 4), state(5)};
  if (layer.op == Op::kGru) in.push_back(hidden_bias);
  if (layer.op == Op::kLstm) in.insert(in.end(), {state(6), optional_input(c, 7)});
  const ActivationLists activations = activations_of(c, layer, directions);
  Attributes attributes{{key::kDirection, direction},
                        {key::kActivations, activations.names},
                        {key::kActivationParameters, activations.parameters}};
  if (const double clip = c.attr_float("clip", 0); clip > 0)
    attributes.set(key::kClip, clip);
  else if (c.has_attr("clip"))
    c.fail("clip must be positive");
  if (reset_behind) attributes.set(key::kLinearBeforeReset, 1);
  if (layer.op == Op::kLstm && c.attr_int("input_forget", 0)) attributes.set(key::kInputForget, 1);
  std::vector<ValueId> out = c.emit_many(layer.op, in, attributes, layer.op == Op::kLstm ? 3 : 2);
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (batch_first) out[i] = i == 0 ? transpose(c, out[i], {2, 0, 1, 3}) : turned(c, out[i]);
    c.outputs[i] = out[i];
  }
}

void rnn(OpContext& c) { recurrent_layer(c, {Op::kRnn, 1, {"Tanh"}}); }
void gru(OpContext& c) { recurrent_layer(c, {Op::kGru, 3, {"Sigmoid", "Tanh"}}); }
void lstm(OpContext& c) { recurrent_layer(c, {Op::kLstm, 4, {"Sigmoid", "Tanh", "Tanh"}}); }

// Weights [D, K, all] in 8 bits with a scale for each direction, or for each of its columns, as f32 [D, all, K].
ValueId widened(OpContext& c, std::size_t i, std::size_t scale, std::size_t zero) {
  const auto spread = [&](ValueId x) {
    Shape shape = shape_of(c, x);
    if (shape.size() != 1 && shape.size() != 2) c.fail("scales or zero points of another rank than 1 or 2");
    shape.insert(shape.begin() + 1, 1);
    if (shape.size() == 2) shape.emplace_back(1);
    return reshape(c, cast(c, x, DType::kF32), shape);
  };
  if (c.rank(i) != 3)
    c.fail("input " + std::to_string(i) + " has rank " + std::to_string(c.rank(i)) + ", not 3");
  ValueId x = cast(c, c.input(i), DType::kF32);
  if (c.has_input(zero)) x = binary(c, Op::kSub, x, spread(c.inputs[zero]));
  return transpose(c, binary(c, Op::kMul, x, spread(c.input(scale))), {0, 2, 1});
}

// What ONNX Runtime's dynamic quantizer makes of LSTM. The input is rounded as there, by one scale; the state, which is
// rounded anew in each step there, is not.
void dynamic_quantize_lstm(OpContext& c) {
  std::vector<ValueId> in(c.inputs.begin(),
                          c.inputs.begin() + static_cast<int64_t>(std::min<std::size_t>(8, c.inputs.size())));
  const ValueId w = widened(c, 1, 8, 9), r = widened(c, 2, 10, 11);
  const auto codes = c.emit_many(Op::kDynamicQuantizeLinear, {c.input(0)}, {}, 3);
  in[0] = c.emit(Op::kDequantizeLinear, codes,
                 {{key::kAxis, 0}, {key::kBlockSize, 0}, {key::kTo, static_cast<int64_t>(DType::kF32)}});
  in[1] = w, in[2] = r;
  OpContext plain(c.graph, c.node, c.opset, c.label, in);
  lstm(plain);
  c.outputs = plain.outputs;
}

}  // namespace

std::span<const Entry> recurrent_table() {
  static constexpr Entry kTable[] = {{kOnnx, "RNN", rnn},
                                     {kOnnx, "GRU", gru},
                                     {kOnnx, "LSTM", lstm},
                                     {kMicrosoft, "DynamicQuantizeLSTM", dynamic_quantize_lstm}};
  return kTable;
}

}  // namespace ark::ops
