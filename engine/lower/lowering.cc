#include "engine/lower/lowering.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/keys.h"
#include "base/ir/quantized.h"
#include "engine/partition/op_rule.h"
#include "engine/program/expr_bound.h"
#include "engine/program/phase_view.h"
#include "engine/program/text.h"
#include "engine/program/weight_codec.h"

namespace ark {
namespace {

template <typename... Parts>
std::string key_of(const Parts&... parts) {
  std::string key;
  ((key += parts, key += '|'), ...);
  return key;
}

}  // namespace

int32_t ConstantTable::add(const ConstantPtr& constant) {
  const auto [it, is_new] = index_.try_emplace(constant.get(), static_cast<int32_t>(list_.size()));
  if (is_new) list_.push_back(constant);
  return it->second;
}

Lowering::Lowering(const Sharded& sharded, const std::vector<Cluster>& clusters,
                   const LoweringOptions& options, int32_t rank, ConstantTable& constants)
    : sharded_(sharded), clusters_(clusters), options_(options), rank_(rank), constants_(constants) {
  program_.rank = rank;
  program_.ranks = sharded.ranks;
  for (const Node& node : graph().nodes) {
    if (is_panel_matmul(graph(), node) && node.attributes.get_or(key::kTransB, 0) != 0) {
      panel_tables_.insert(node.inputs[1]);
    }
  }
  for (std::size_t i = 0; i < graph().outputs.size(); ++i) {
    outputs_.try_emplace(graph().outputs[i], static_cast<int32_t>(i));
  }
}

Program Lowering::run() {
  for (const auto& [name, most] : options_.max_symbols) val(Expr::symbol(name));
  bind_inputs();
  for (const Cluster& cluster : clusters_) lower(cluster);
  finish_outputs();
  return std::move(program_);
}

void Lowering::bind_inputs() {
  for (std::size_t i = 0; i < graph().inputs.size(); ++i) {
    const ValueId v = graph().inputs[i];
    const Value& value = graph().value(v);
    Buffer buffer{.kind = is_decoder() ? BufferKind::kIo : BufferKind::kInput,
                  .dtype = value.dtype,
                  .name = value.name};
    if (!is_decoder()) buffer.cache = static_cast<int32_t>(i);
    buffers_[v] = add_buffer(std::move(buffer), local_shape(v));
  }
  if (!is_decoder()) return;
  ARK_CHECK(graph().inputs.size() == 2 && graph().outputs.size() == 1,
            "a token graph has two inputs and one output");
  program_.token_ids = buffers_[graph().inputs[0]];
  program_.positions = buffers_[graph().inputs[1]];
}

void Lowering::finish_outputs() {
  if (is_decoder()) {
    const ValueId v = graph().outputs[0];
    ARK_CHECK(program_.logits != kNone && buffers_[v] == program_.logits,
              "the logits of a token graph are not computed");
    emit("sample", {.code = OpCode::kSample}, {read(v)});
    return;
  }
  for (std::size_t i = 0; i < graph().outputs.size(); ++i) {  // inputs, constants and repeated outputs
    const ValueId v = graph().outputs[i];
    const auto it = buffers_.find(v);
    const bool is_done = it != buffers_.end() && program_.buffers[it->second].kind == BufferKind::kOutput &&
                         program_.buffers[it->second].cache == static_cast<int32_t>(i);
    if (is_done) continue;
    const Value& value = graph().value(v);
    const BufferId out = add_buffer({.kind = BufferKind::kOutput,
                                     .dtype = value.dtype,
                                     .cache = static_cast<int32_t>(i),
                                     .name = value.name},
                                    local_shape(v));
    emit(value.name, {.op = Op::kIdentity}, {read(v), {out}});
  }
}

void Lowering::lower(const Cluster& cluster) {
  cluster_ = &cluster;
  const Node& node = graph().node(cluster.root);
  if (cluster.is_pointwise)
    lower_pointwise(cluster);
  else if (const auto rule = rule_of(node.op).lower)
    rule(*this, node);
  else
    emit_generic(node);
  cluster_ = nullptr;
}

void Lowering::lower_pointwise(const Cluster& cluster) {
  std::vector<ValueId> loads;
  Variant variant{.code = OpCode::kPointwise, .pointwise = pointwise_steps(graph(), cluster, loads)};
  std::vector<Operand> operands;
  for (const ValueId v : loads) operands.push_back(read(v));
  operands.push_back(write(cluster.output));
  emit(graph().node(cluster.root).name, std::move(variant), std::move(operands));
}

void Lowering::emit_generic(const Node& node) { emit_generic(node, node.attributes); }

void Lowering::emit_generic(const Node& node, const Attributes& attributes) {
  std::vector<Operand> operands;
  for (const ValueId v : node.inputs) operands.push_back(read(v));
  for (const ValueId v : node.outputs) operands.push_back(v == kNoValue ? Operand{} : write(v));
  emit(node.name,
       {.op = node.op, .outputs = static_cast<int32_t>(node.outputs.size()), .attributes = attributes},
       std::move(operands));
}

Phase& Lowering::emit(const std::string& name, Variant variant, std::vector<Operand> operands) {
  const OpCodeInfo& info = info_of(variant.code);
  const auto [it, is_new] =
      variants_.try_emplace(variant_text(variant), static_cast<int32_t>(program_.variants.size()));
  if (is_new) program_.variants.push_back(std::move(variant));
  Phase phase{.name = name, .variant = it->second, .operands = std::move(operands)};
  if (info.grid) {
    PhaseView view(program_, phase, 0);
    const std::string problem = view.bind();
    ARK_CHECK(problem.empty(), std::string(info.name) + " of node " + escaped(name) + ": " + problem);
    phase.grid = val(info.grid(view));
  }
  return program_.phases.emplace_back(std::move(phase));
}

Range Lowering::part(ValueId value, int axis, int32_t rank) const {
  const Spec& spec = sharded_.specs[value];
  if (spec.kind == Spec::Kind::kSplit && spec.axis == axis) return spec.ranges[rank];
  return {0, shape_of(graph(), value)[axis].constant().value_or(0)};
}

Shape Lowering::local_shape(ValueId value, int32_t rank) const {
  Shape shape = shape_of(graph(), value);
  const Spec& spec = sharded_.specs[value];
  if (spec.kind == Spec::Kind::kSplit) shape[spec.axis] = spec.ranges[rank].size();
  return shape;
}

ValId Lowering::val(const Expr& e) {
  const auto [it, is_new] = vals_.try_emplace(e.str(), static_cast<ValId>(program_.vals.size()));
  if (is_new) program_.vals.push_back({e, upper_bound(e, options_.max_symbols)});
  return it->second;
}

BufferId Lowering::add_buffer(Buffer buffer, const Shape& shape) {
  for (const Expr& e : shape) buffer.dims.push_back(val(e));
  program_.buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(program_.buffers.size() - 1);
}

Operand Lowering::read(ValueId value) {
  if (value == kNoValue) return {};
  const Value& v = graph().value(value);
  if (v.constant)
    return weight(value, {v.constant, is_decoder() && is_narrow_float(v.dtype) ? DType::kF32 : v.dtype},
                  Layout::kRaw, false);
  const auto it = buffers_.find(value);
  ARK_CHECK(it != buffers_.end(), "read before it is written: " + escaped(v.name));
  return {it->second};
}

Operand Lowering::write(ValueId value) {
  const Value& v = graph().value(value);
  Buffer buffer{.dtype = v.dtype, .name = v.name};
  if (const auto it = outputs_.find(value); it != outputs_.end()) {
    buffer.kind = is_decoder() ? BufferKind::kIo : BufferKind::kOutput;
    if (!is_decoder()) buffer.cache = it->second;
  }
  const BufferId id = add_buffer(std::move(buffer), local_shape(value));
  ARK_CHECK(buffers_.emplace(value, id).second, "written twice: " + escaped(v.name));
  if (program_.buffers[id].kind == BufferKind::kIo) program_.logits = id;
  return {id};
}

bool Lowering::alias(ValueId value, ValueId source) {
  const auto it = buffers_.find(source);
  if (it == buffers_.end() || outputs_.contains(value)) return false;
  const BufferId from = it->second;
  if (program_.buffers[from].kind != BufferKind::kAct) return false;
  Buffer buffer = program_.buffers[from];
  if (buffer.alias == kNone) buffer.alias = from;
  Shape owner;
  for (const ValId dim : program_.buffers[buffer.alias].dims) owner.push_back(program_.vals[dim].e);
  // Sizes that only a run can compare (of a file made for one size of image): a copy, which does.
  if (!(element_count(owner) == element_count(local_shape(value)))) return false;
  buffer.dims.clear();
  buffer.name = graph().value(value).name;
  buffers_[value] = add_buffer(std::move(buffer), local_shape(value));
  return true;
}

Operand Lowering::weight(ValueId value, const StoredWeights::Stored& as, Layout layout, bool transposed,
                         int32_t block) {
  const ConstantPtr& constant = as.constant;
  const DType stored = block > 0 ? codec_of(*constant->quantized).type : as.type;
  WeightUse use{.constant = constants_.add(constant),
                .layout = layout,
                .transposed = transposed,
                .stored = stored,
                .block = block,
                .terms = block > 0 ? terms_of(*constant->quantized) : BlockTerms::kZeros};
  if (layout == Layout::kPanels) use.panel = kPanelWidth;
  for (std::size_t axis = 0; axis < constant->dims.size(); ++axis) {
    use.ranges.push_back(part(value, static_cast<int>(axis), rank_));
  }
  std::string key = key_of("weight", std::to_string(use.constant), std::to_string(static_cast<int>(layout)),
                           std::to_string(transposed), std::string(name_of(stored)), std::to_string(block));
  for (const Range& r : use.ranges) key += std::to_string(r.begin) + ":" + std::to_string(r.end) + " ";
  const auto it = shared_.find(key);
  if (it != shared_.end()) return {it->second};
  Shape shape = local_shape(value);
  if (transposed) std::swap(shape[0], shape[1]);
  const BufferId id = add_buffer({.kind = BufferKind::kWeight,
                                  .dtype = stored,
                                  .weight = static_cast<int32_t>(program_.weights.size()),
                                  .name = constant->name},
                                 shape);
  program_.weights.push_back(std::move(use));
  shared_[key] = id;
  return {id};
}

StoredWeights::Stored Lowering::stored(ValueId value) const {
  const ConstantPtr& constant = graph().value(value).constant;
  if (options_.stored) return options_.stored->of(constant);
  return {constant, constant->dtype};
}

std::vector<Operand> Lowering::panels(const Node& matmul, std::size_t first, bool transposed) {
  const ValueId value = matmul.inputs[first];
  const auto rows = sharded_.row_parallel.find(static_cast<NodeId>(&matmul - graph().nodes.data()));
  std::vector<int32_t> borders = {0};
  for (int32_t r = 0; rows != sharded_.row_parallel.end() && r < ranks(); ++r)
    for (const int32_t border : slab_borders(rows->second, ranks(), r))
      borders.push_back(static_cast<int32_t>(part(value, transposed ? 1 : 0, r).begin) + border);
  if (borders.size() > 1) borders.pop_back();  // the end of K
  const std::span<const ValueId> values = std::span(matmul.inputs).subspan(first);
  // As the options say; as the file has them, where that differs from one to another; as f32.
  for (const int form : {0, 1, 2}) {
    std::vector<StoredWeights::Stored> as;
    std::vector<int32_t> blocks;
    std::set<std::tuple<DType, int32_t, BlockTerms>> ways;
    for (const ValueId v : values) {
      const ConstantPtr& constant = graph().value(v).constant;
      as.push_back(form == 0   ? stored(v)
                   : form == 1 ? StoredWeights::Stored{constant, constant->dtype}
                               : StoredWeights::Stored{constant, DType::kF32});
      const Constant& c = *as.back().constant;
      blocks.push_back(form == 2 ? 0 : panel_block(c, transposed, borders));
      const bool is_coded = blocks.back() > 0;
      ways.emplace(is_coded ? codec_of(*c.quantized).type : as.back().type, blocks.back(),
                   is_coded ? terms_of(*c.quantized) : BlockTerms::kZeros);
    }
    if (ways.size() > 1) continue;
    std::vector<Operand> operands;
    for (std::size_t i = 0; i < values.size(); ++i)
      operands.push_back(weight(values[i], as[i], Layout::kPanels, transposed, blocks[i]));
    return operands;
  }
  ARK_CHECK(false, "weights of node " + escaped(matmul.name) + " have no common form");
}

bool Lowering::are_stored_alike(Operand panels, Operand others) const {
  const auto use = [&](Operand o) { return program_.weights[at(program_.buffers[at(o.buffer)].weight)]; };
  return ark::are_stored_alike(use(panels), use(others));
}

// A quantized table becomes panels, which can hold it as it is; rows are gathered from them.
Operand Lowering::table(ValueId value) {
  const StoredWeights::Stored as = stored(value);
  std::vector<int32_t> borders;
  for (int32_t r = 0; r < ranks(); ++r) borders.push_back(static_cast<int32_t>(part(value, 1, r).begin));
  const int32_t block = panel_block(*as.constant, true, borders);
  const bool panels = block > 0 || panel_tables_.contains(value);
  return weight(value, as, panels ? Layout::kPanels : Layout::kRaw, panels, block);
}

// Rows of K that a block of panels takes, so that it lies inside one block of the constant and does not pass one of the
// `borders` in K; 0: the weight is kept as numbers.
int32_t Lowering::panel_block(const Constant& constant, bool transposed,
                              std::span<const int32_t> borders) const {
  if (!constant.quantized || constant.dims.size() != 2) return 0;
  const Quantized& q = *constant.quantized;
  if (numbers_of(q.floating) && !options_.keeps_codes_of_tables) return 0;
  const std::size_t axis = transposed ? 1 : 0;  // of the view: K
  const int64_t stored_axis = constant.perm.empty() ? static_cast<int64_t>(axis) : constant.perm[axis];
  const bool is_one = q.scales->size() == 1;
  if (!is_one && q.axis != stored_axis) return 0;
  // 0: whatever divides it.
  int64_t common = is_one || q.block >= (stored_axis == 0 ? q.rows : q.columns) ? 0 : q.block;
  const int64_t first = constant.begin.empty() ? 0 : constant.begin[axis];
  for (const int32_t border : borders) common = std::gcd(common, first + border);
  int64_t block = codec_of(q).max_block();
  if (common > 0) block = std::min(block, common);
  while (block >= kMinPanelBlock && (common % block != 0 || block % 2 != 0)) --block;
  return block >= kMinPanelBlock ? static_cast<int32_t>(block) : 0;
}

Operand Lowering::pages(int64_t cache, bool values, int64_t kv_heads) {
  const std::string key = key_of("pages", std::to_string(cache), std::to_string(values));
  if (const auto it = shared_.find(key); it != shared_.end()) return {it->second};
  const CacheSpec& spec = options_.caches->at(static_cast<std::size_t>(cache));
  const Shape shape = {Expr::symbol("pages"), kv_heads, options_.page_size,
                       values ? spec.value_dim : spec.key_dim};
  const BufferId id = add_buffer({.kind = BufferKind::kKvPage,
                                  .dtype = options_.kv_dtype,
                                  .cache = static_cast<int32_t>(cache),
                                  .is_value = values,
                                  .name = values ? spec.value_input : spec.key_input},
                                 shape);
  shared_[key] = id;
  return {id};
}

int32_t Lowering::channel(int32_t peer, bool outgoing, const Shape& message) {
  const int64_t bytes = bytes_of(DType::kF32, upper_bound(element_count(message), options_.max_symbols));
  const int32_t from = outgoing ? rank_ : peer, to = outgoing ? peer : rank_;
  const std::string name = std::to_string(from) + "->" + std::to_string(to);
  for (std::size_t i = 0; i < program_.channels.size(); ++i) {
    Channel& c = program_.channels[i];
    if (c.name != name) continue;
    c.bytes = std::max(c.bytes, bytes);
    return static_cast<int32_t>(i);
  }
  program_.channels.push_back({peer, outgoing, options_.link, bytes, name});
  return static_cast<int32_t>(program_.channels.size() - 1);
}

void Lowering::send_to_peers(const std::string& name, const Variant& variant,
                             const std::vector<Operand>& operands, const Shape& message,
                             const std::vector<int32_t>& peers) {
  for (int32_t i = 1; i < ranks(); ++i) {  // each rank starts with its right neighbour: no inbox is hot
    const int32_t peer = (rank_ + i) % ranks();
    if (std::find(peers.begin(), peers.end(), peer) == peers.end()) continue;
    const int32_t c = channel(peer, true, message);
    emit(name + " to " + std::to_string(peer), variant, operands).channel = c;
  }
}

Operand Lowering::inbox(int32_t peer, const Shape& shape) {
  const int32_t c = channel(peer, false, shape);
  const std::string key = key_of("inbox", std::to_string(c), str(shape));
  if (const auto it = shared_.find(key); it != shared_.end()) return {it->second};
  const BufferId id = add_buffer(
      {.kind = BufferKind::kInbox, .channel = c, .name = "inbox " + program_.channels[c].name}, shape);
  shared_[key] = id;
  return {id};
}

Attributes rotary_attributes(const Node& rotary) {
  const Attributes& a = rotary.attributes;
  return {{key::kInterleaved, a.get_or(key::kInterleaved, 0)},
          {key::kRotaryDim, a.get(key::kRotaryDim)},
          {key::kHeadAxis, a.get(key::kHeadAxis)}};
}

Precision Lowering::precision(const Node& matmul, Operand weight) const {
  const int64_t level = matmul.attributes.get_or(key::kAccuracyLevel, 0);
  for (const auto& [precision, asked, wanted] :
       {std::tuple{Precision::kBF16, Activations::kBF16, 3}, {Precision::kInt8, Activations::kInt8, 4}}) {
    const bool is_bf16 = precision == Precision::kBF16, is_slow = is_bf16 && options_.bf16 == Bf16Unit::kNone;
    const bool wants = options_.activations == Activations::kAuto
                           ? !is_slow && (level == wanted || stored(matmul.inputs[1]).is_rounded)
                           : options_.activations == asked;
    if (!wants || !can_multiply(precision, program_.weights[program_.buffers[weight.buffer].weight]))
      continue;
    return is_bf16 && options_.bf16 == Bf16Unit::kTiles ? Precision::kBF16Tiles : precision;
  }
  return Precision::kF32;
}

Recipe Lowering::recipe(const Node& matmul) const {
  const NodeId id = static_cast<NodeId>(&matmul - graph().nodes.data());
  if (const auto it = sharded_.row_parallel.find(id); it != sharded_.row_parallel.end()) {
    return {slab_borders(it->second, ranks(), rank_)};
  }
  return {{0, static_cast<int32_t>(*local_shape(matmul.inputs[0]).back().constant())}};
}

}  // namespace ark
