#include "engine/plain/dynamic_driver.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/ir/keys.h"
#include "base/ir/work.h"
#include "engine/cpu/kernels.h"
#include "engine/plain/inputs.h"

namespace ark {

struct DynamicDriver::Frame {
  std::vector<Tensor> values;  // by value id
  SymbolValues symbols;
  RunBudget& budget;
};

namespace {

bool is_control_flow(Op op) { return op == Op::kIf || op == Op::kLoop || op == Op::kScan; }

std::string at_node(const Node& node) { return "node " + escaped(node.name) + ": "; }

// What control flow asks of a tensor, which the graph may only promise to hold one number.
int64_t only_element(const Node& node, const char* what, const Tensor& tensor) {
  if (tensor.size() != 1)
    throw Error(Code::kInvalidArgument,
                at_node(node) + what + " has " + std::to_string(tensor.size()) + " elements, not 1");
  return tensor.integer(0);
}

constexpr double kTrip = 1000, kValue = 16;  // work of a trip, and of each value that its frame has room for

}  // namespace

DynamicDriver::DynamicDriver(const Graph& graph, ParallelFor parallel, RunLimits limits)
    : graph_(graph),
      parallel_(std::move(parallel)),
      limits_(limits),
      weights_(weights_of(graph)),
      constants_(graph.values.size()),
      last_use_(graph.values.size(), 0),
      bodies_(graph.nodes.size()) {
  if (!parallel_) parallel_ = parallel_for(1);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (node.removed) continue;
    if (!is_control_flow(node.op) && !find_kernel(node.op))
      throw Error(Code::kUnsupported, at_node(node) + "operator " + std::string(name_of(node.op)) +
                                          " has no CPU kernel in this version; export the model without it");
    const auto touch = [&](ValueId id) {
      if (id == kNoValue) return;
      last_use_[id] = n;
      const Value& value = graph.value(id);
      Tensor& constant = constants_[id];
      if (value.constant && constant.dtype == DType::kUndefined) constant = materialise(*value.constant);
    };
    for (ValueId id : node.inputs) touch(id);
    for (const auto& body : node.subgraphs) {
      for (const auto& [outer, inner] : body->captured) touch(outer);
      bodies_[n].push_back(std::make_unique<DynamicDriver>(*body, parallel_, limits_));
    }
  }
  for (ValueId id : graph.outputs) {
    last_use_[id] = graph.nodes.size();
    if (graph.value(id).constant) constants_[id] = materialise(*graph.value(id).constant);
  }
}

void DynamicDriver::take_inputs(Frame& frame, std::span<const Tensor> inputs) const {
  frame.symbols = bind_inputs(graph_, inputs, std::move(frame.symbols));
  for (std::size_t i = 0; i < inputs.size(); ++i) frame.values[graph_.inputs[i]] = inputs[i];
}

std::vector<Tensor> DynamicDriver::run(std::span<const Tensor> inputs, const std::function<bool()>& stopped,
                                       int64_t runs) const {
  RunBudget budget(limits_for(limits_, weights_, inputs, runs), stopped);
  Frame frame{constants_, {}, budget};
  take_inputs(frame, inputs);
  return run_frame(frame);
}

std::vector<Tensor> DynamicDriver::run_frame(Frame& frame) const {
  for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (node.removed) continue;
    run_node(frame, node);
    for (ValueId id : node.inputs)
      if (id != kNoValue && last_use_[id] == n) frame.values[id] = Tensor{};
  }
  std::vector<Tensor> outputs;
  for (ValueId id : graph_.outputs) outputs.push_back(frame.values[id]);
  return outputs;
}

void DynamicDriver::run_node(Frame& frame, const Node& node) const {
  switch (node.op) {
    case Op::kIf:
      return run_if(frame, node);
    case Op::kLoop:
      return run_loop(frame, node);
    case Op::kScan:
      return run_scan(frame, node);
    default:
      break;
  }
  try {
    call_kernel(frame, node);
  } catch (const Error& e) {
    throw Error(e.code(), at_node(node) + e.what());
  }
}

void DynamicDriver::set_output(Frame& frame, ValueId id, Tensor result) const {
  if (id == kNoValue) return;  // not wanted
  bind_symbols(graph_.value(id).shape, result.dims, frame.symbols);
  frame.values[id] = std::move(result);
}

void DynamicDriver::call_kernel(Frame& frame, const Node& node) const {
  const Kernel& kernel = *find_cpu_kernel(node.op);
  std::optional<Attributes> evaluated;
  if (node.attributes.has_symbols()) evaluated = node.attributes.evaluated(frame.symbols);
  std::vector<TensorView> inputs, outputs;
  RunBudget& budget = frame.budget;
  for (ValueId id : node.inputs) inputs.push_back(id == kNoValue ? TensorView{} : view_of(frame.values[id]));
  outputs.resize(node.outputs.size());
  KernelCall call{node.op, evaluated ? &*evaluated : &node.attributes, inputs, outputs};
  // These look for what they give to know its size.
  if (is_one_of(node.op, {Op::kNonMaxSuppression, Op::kUnique})) budget.charge(work_of(call));
  const std::vector<OutputType> types = kernel.shapes(call);
  ARK_CHECK(types.size() >= 1, "a kernel with no outputs");
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNoValue) continue;
    ARK_CHECK(i < types.size(),
              "the kernel of " + std::string(name_of(node.op)) + " has fewer outputs than the node");
    Tensor tensor = budget.make(types[i].dtype, types[i].dims);
    outputs[i] = view_of(tensor);
    set_output(frame, node.outputs[i], std::move(tensor));
  }
  Tensor scratch;
  if (outputs.empty() || !outputs[0].present()) {  // grids look at output 0
    scratch = budget.make(types[0].dtype, types[0].dims);
    outputs.resize(std::max<std::size_t>(1, outputs.size()));
    outputs[0] = view_of(scratch);
    call.outputs = outputs;
  }
  budget.charge_call(kernel, call);
  parallel_(kernel.grid(call), [&](int64_t tile) {
    budget.look();
    kernel.tile(call, tile);
  });
}

std::vector<Tensor> DynamicDriver::run_body(Frame& outer, const Node& node, std::size_t index,
                                            std::vector<Tensor> inputs) const {
  const DynamicDriver& body = *bodies_[&node - graph_.nodes.data()][index];
  Frame frame{body.constants_, outer.symbols, outer.budget};
  // Sizes that the body's own inputs name are bound anew each time: they may differ between trips. Those that they are
  // computed from are the outer graph's.
  for (ValueId id : body.graph_.inputs)
    if (body.graph_.value(id).shape)
      for (const Expr& e : *body.graph_.value(id).shape)
        if (const auto name = e.as_symbol()) frame.symbols.erase(*name);
  for (const auto& [from, to] : body.graph_.captured) frame.values[to] = outer.values[from];
  try {
    outer.budget.charge(kTrip + kValue * static_cast<double>(body.constants_.size()));
    body.take_inputs(frame, inputs);
    return body.run_frame(frame);
  } catch (const Error& e) {
    throw Error(e.code(), at_node(node) + e.what());
  }
}

void DynamicDriver::run_if(Frame& frame, const Node& node) const {
  const bool condition = only_element(node, "the condition", frame.values[node.inputs[0]]) != 0;
  std::vector<Tensor> outputs = run_body(frame, node, condition ? 0 : 1, {});
  for (std::size_t i = 0; i < node.outputs.size(); ++i)
    set_output(frame, node.outputs[i], std::move(outputs[i]));
}

namespace {

// One element of a loop without trips: of the sizes that are known, else empty.
Dims dims_of_none(const Value& element, const SymbolValues& known) {
  Dims dims;
  for (const Expr& e : element.shape.value_or(Shape{})) dims.push_back(e.try_evaluate(known).value_or(0));
  return dims;
}

// Joins equal tensors along a new axis, which may count from the end; `reverse` puts the last first. `none`: the sizes
// of one of no tensors.
Tensor stack(RunBudget& budget, const std::vector<Tensor>& parts, int64_t at, bool reverse, DType type,
             const Dims& none, const std::string& where) {
  Dims dims = parts.empty() ? none : parts[0].dims;
  const int64_t rank = static_cast<int64_t>(dims.size()) + 1;
  if (at < -rank || at >= rank)
    throw Error(Code::kInvalidArgument, where + "scan output axis is out of range");
  const auto axis = static_cast<std::size_t>(at < 0 ? at + rank : at);
  if (parts.empty()) {
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), 0);
    return budget.make(type, dims);
  }
  const int64_t outer = element_count(std::span(dims).first(axis)),
                inner = bytes_of(parts[0].dtype, element_count(std::span(dims).subspan(axis)));
  dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis), static_cast<int64_t>(parts.size()));
  Tensor out = budget.make(parts[0].dtype, dims);
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const Tensor& part = parts[reverse ? parts.size() - 1 - k : k];
    if (part.dims != parts[0].dims || part.dtype != parts[0].dtype)
      throw Error(Code::kInvalidArgument, where + "scan outputs differ in shape between trips");
    for (int64_t o = 0; o < outer && inner; ++o)
      std::memcpy(out.data.get() + (o * static_cast<int64_t>(parts.size()) + static_cast<int64_t>(k)) * inner,
                  part.data.get() + o * inner, static_cast<std::size_t>(inner));
  }
  return out;
}

// Element i along `axis`, the axis dropped.
Tensor slice_at(RunBudget& budget, const Tensor& x, std::size_t axis, int64_t i) {
  Dims dims = x.dims;
  const int64_t n = dims[axis], outer = element_count(std::span(dims).first(axis)),
                inner = bytes_of(x.dtype, element_count(std::span(dims).subspan(axis + 1)));
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
  Tensor out = budget.make(x.dtype, dims);
  for (int64_t o = 0; o < outer && inner; ++o)
    std::memcpy(out.data.get() + o * inner, x.data.get() + (o * n + i) * inner,
                static_cast<std::size_t>(inner));
  return out;
}

}  // namespace

// inputs: M?, cond?, carried...; body: (i, cond, carried...) -> (cond, carried..., scans...).
void DynamicDriver::run_loop(Frame& frame, const Node& node) const {
  const auto input = [&](std::size_t i) -> const Tensor* {
    return i < node.inputs.size() && node.inputs[i] != kNoValue ? &frame.values[node.inputs[i]] : nullptr;
  };
  const int64_t trips = input(0) ? only_element(node, "the number of trips", *input(0)) : INT64_MAX;
  bool go = input(1) ? only_element(node, "the condition", *input(1)) != 0 : true;
  std::vector<Tensor> carried;
  for (std::size_t i = 2; i < node.inputs.size(); ++i) carried.push_back(*input(i));
  const Graph& body = *node.subgraphs[0];
  const std::size_t scans = body.outputs.size() - 1 - carried.size();
  std::vector<std::vector<Tensor>> collected(scans);
  for (int64_t trip = 0; go && trip < trips; ++trip) {
    std::vector<Tensor> inputs{Tensor::of<int64_t>(DType::kI64, {}, std::span(&trip, 1)),
                               Tensor::zeros(DType::kBool, {})};
    inputs[1].as<uint8_t>()[0] = 1;
    inputs.insert(inputs.end(), carried.begin(), carried.end());
    std::vector<Tensor> outputs = run_body(frame, node, 0, std::move(inputs));
    go = only_element(node, "the body's condition", outputs[0]) != 0;
    for (std::size_t i = 0; i < carried.size(); ++i) carried[i] = std::move(outputs[i + 1]);
    for (std::size_t i = 0; i < scans; ++i)
      collected[i].push_back(std::move(outputs[i + 1 + carried.size()]));
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNoValue) continue;
    const std::size_t scan = i - carried.size();
    const Value& element = body.value(body.outputs[i + 1]);
    Tensor result = i < carried.size() ? carried[i]
                                       : stack(frame.budget, collected[scan], 0, false, element.dtype,
                                               dims_of_none(element, frame.symbols), at_node(node));
    set_output(frame, node.outputs[i], std::move(result));
  }
}

// Scan (opset 9 on): inputs: states..., scanned...; attributes num_scan_inputs,
// scan_{input,output}_{axes,directions}.
void DynamicDriver::run_scan(Frame& frame, const Node& node) const {
  const auto scanned = static_cast<std::size_t>(node.attributes.get(key::kNumScanInputs));
  const std::size_t states = node.inputs.size() - scanned, scans = node.outputs.size() - states;
  const auto list = [&](Key<std::vector<int64_t>> key, std::size_t i) {
    const std::vector<int64_t> values = node.attributes.get_or(key, {});
    return i < values.size() ? values[i] : 0;
  };
  std::vector<Tensor> carried, inputs;
  for (std::size_t i = 0; i < states; ++i) carried.push_back(frame.values[node.inputs[i]]);
  std::vector<std::size_t> axes;
  int64_t trips = -1;
  for (std::size_t i = 0; i < scanned; ++i) {
    inputs.push_back(frame.values[node.inputs[states + i]]);
    const auto rank = static_cast<int64_t>(inputs[i].dims.size());
    int64_t axis = list(key::kScanInputAxes, i);
    axis += axis < 0 ? rank : 0;
    if (axis < 0 || axis >= rank)
      throw Error(Code::kInvalidArgument, at_node(node) + "scan_input_axes is out of range");
    axes.push_back(static_cast<std::size_t>(axis));
    const int64_t n = inputs[i].dims[axes[i]];
    if (trips >= 0 && n != trips)
      throw Error(Code::kInvalidArgument, at_node(node) + "scanned inputs differ in length");
    trips = n;
  }
  std::vector<std::vector<Tensor>> collected(scans);
  for (int64_t trip = 0; trip < trips; ++trip) {
    std::vector<Tensor> body_inputs = carried;
    for (std::size_t i = 0; i < scanned; ++i)
      body_inputs.push_back(slice_at(frame.budget, inputs[i], axes[i],
                                     list(key::kScanInputDirections, i) ? trips - 1 - trip : trip));
    std::vector<Tensor> outputs = run_body(frame, node, 0, std::move(body_inputs));
    for (std::size_t i = 0; i < states; ++i) carried[i] = std::move(outputs[i]);
    for (std::size_t i = 0; i < scans; ++i) collected[i].push_back(std::move(outputs[i + states]));
  }
  const Graph& body = *node.subgraphs[0];
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNoValue) continue;
    const std::size_t k = i - states;
    Tensor result = i < states ? carried[i] : Tensor{};
    if (i >= states) {
      const Value& element = body.value(body.outputs[i]);
      result = stack(frame.budget, collected[k], list(key::kScanOutputAxes, k),
                     list(key::kScanOutputDirections, k) != 0, element.dtype,
                     dims_of_none(element, frame.symbols), at_node(node));
    }
    set_output(frame, node.outputs[i], std::move(result));
  }
}

}  // namespace ark
