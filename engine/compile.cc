#include "engine/compile.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "base/error.h"
#include "base/ir/kernel.h"
#include "base/ir/keys.h"
#include "engine/lower/complete.h"
#include "engine/lower/lowering.h"
#include "engine/partition/collectives.h"
#include "engine/partition/plan.h"
#include "engine/partition/plan_summary.h"
#include "engine/partition/prepare.h"
#include "engine/partition/search.h"
#include "engine/program/kv_codec.h"
#include "engine/validate/validate.h"

namespace ark {
namespace {

// Lowers for every rank and completes the programs.
void lower_all(const Sharded& sharded, const LoweringOptions& options, Compiled& result) {
  ConstantTable constants;
  const std::vector<Cluster> clusters = options.caches ? fuse(sharded.graph) : singles(sharded.graph);
  for (int32_t rank = 0; rank < sharded.ranks; ++rank) {
    Program program = Lowering(sharded, clusters, options, rank, constants).run();
    fold_repeats(program);
    Binding binding = plan_memory(program);
    set_waits(program, binding);
    result.programs.push_back(std::move(program));
    result.bindings.push_back(std::move(binding));
  }
  result.constants = constants.list();
}

// The matrices that programs keep as panels, or look up rows of.
std::vector<WeightMatrix> weight_matrices(const Graph& graph, int64_t vocabulary) {
  std::vector<WeightMatrix> matrices;
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    if (is_panel_matmul(graph, node)) {
      const ConstantPtr& w = graph.value(node.inputs[1]).constant;
      const int k_axis = node.attributes.get_or(key::kTransB, 0) != 0 ? 1 : 0;
      matrices.push_back({w, k_axis, w->dims[static_cast<std::size_t>(1 - k_axis)] == vocabulary});
    } else if (is_panel_expert_matmul(graph, node)) {
      for (std::size_t i = 3; i < node.inputs.size(); ++i)
        matrices.push_back({graph.value(node.inputs[i]).constant, 1, false});
    } else if (node.op == Op::kGather && graph.value(node.inputs[0]).constant) {
      matrices.push_back({graph.value(node.inputs[0]).constant, 1, true});
    }
  }
  return matrices;
}

// Which heads of each cache every rank holds.
std::vector<std::vector<Range>> kv_heads_of(const Sharded& sharded) {
  std::vector<std::vector<Range>> heads;
  for (const Node& node : sharded.graph.nodes) {
    if (node.removed || node.op != Op::kPagedAttention) continue;
    const auto cache = static_cast<std::size_t>(node.attributes.get(key::kCache));
    const ValueId keys = node.inputs[1];
    const Spec& spec = sharded.specs[keys];
    const Range all{0, *(*sharded.graph.value(keys).shape)[1].constant()};
    if (heads.size() <= cache) heads.resize(cache + 1);
    heads[cache] = spec.kind == Spec::Kind::kSplit && spec.axis == 1
                       ? spec.ranges
                       : std::vector<Range>(static_cast<std::size_t>(sharded.ranks), all);
  }
  return heads;
}

// The type that a matrix's numbers are of, or, where they are codes, of what these stand for: of the file's numbers, or
// of its scales.
DType number_type(const WeightMatrix& matrix, const StoredWeights& stored) {
  const StoredWeights::Stored as = stored.of(matrix.constant);
  if (!as.constant->quantized) return as.type;
  const Constant& own = *matrix.constant;
  return own.quantized ? own.quantized->scales->dtype : own.dtype;
}

// In 16 bits if number_type() of most numbers has 16.
DType kv_dtype_of(const std::vector<WeightMatrix>& matrices, const StoredWeights& stored) {
  std::map<DType, int64_t> numbers;
  for (const WeightMatrix& matrix : matrices) numbers[number_type(matrix, stored)] += matrix.constant->size();
  const auto most = std::max_element(numbers.begin(), numbers.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool has_16_bits =
      most != numbers.end() && (most->first == DType::kF16 || most->first == DType::kBF16);
  return has_16_bits ? most->first : DType::kF32;
}

// Whether products round the rows that they multiply, as far as is known of a whole model.
bool rounds_rows(const CompileOptions& o, const std::vector<WeightMatrix>& matrices,
                 const StoredWeights& stored) {
  if (o.activations != Activations::kAuto) return o.activations != Activations::kF32;
  return std::any_of(matrices.begin(), matrices.end(), [&](const WeightMatrix& matrix) {
    const StoredWeights::Stored as = stored.of(matrix.constant);
    return as.is_rounded && (as.constant->quantized || as.type == DType::kBF16);
  });
}

// Ranks that sum up among themselves before others join: nodes of the tree in which all are added up. 1: none.
int32_t sums_first(int32_t ranks, int32_t machine_ranks) {
  const bool are_nodes = machine_ranks > 0 && ranks % machine_ranks == 0 &&
                         std::has_single_bit(static_cast<uint32_t>(ranks / machine_ranks));
  return are_nodes ? machine_ranks : 1;
}

// What decoders are lowered by, but for what depends on the number of ranks.
LoweringOptions lowering_options(const DecoderModel& model, const CompileOptions& o,
                                 const std::vector<WeightMatrix>& matrices, const StoredWeights& stored) {
  const bool has_tiles = o.bf16 == Bf16Unit::kTiles, by_tiles = has_tiles && rounds_rows(o, matrices, stored);
  const auto best = [&] {
    return !has_tiles ? kv_dtype_of(matrices, stored) : by_tiles ? DType::kBF16 : DType::kF32;
  };
  const DType kv_dtype = o.kv_dtype == DType::kUndefined ? best() : o.kv_dtype;
  ARK_CHECK(kv_codec_of(kv_dtype), "keys and values of a type that pages cannot hold");
  return {.max_symbols = {{"tokens", o.max_tokens},
                          {"rows", o.max_rows},
                          {"items", o.max_items},
                          {"pages", o.pages}},
          .page_size = o.page_size,
          .kv_dtype = kv_dtype,
          .link = o.link,
          .caches = &model.caches,
          .stored = &stored,
          .activations = o.activations,
          .bf16 = o.bf16,
          .attention = by_tiles && kv_dtype == DType::kBF16 ? Precision::kBF16Tiles : Precision::kF32,
          .keeps_codes_of_tables = o.keeps_codes_of_tables,
          .send_zeros = o.send_zeros};
}

}  // namespace

Compiled compile_decoder(const DecoderModel& model, const CompileOptions& o) {
  if (o.ranks < 1) throw Error(Code::kUsage, "tp must be at least 1, not " + std::to_string(o.ranks));
  const Graph graph = prepare(model.tokens);
  const AxisGroups groups(graph);
  const Choices choices = search(graph, groups);
  Sharded sharded = insert_collectives(graph, groups, choices, o.ranks);
  const std::vector<WeightMatrix> matrices = weight_matrices(sharded.graph, model.vocabulary);
  const StoredWeights stored(matrices, o.storage);
  LoweringOptions options = lowering_options(model, o, matrices, stored);
  options.machine_ranks = sums_first(o.ranks, o.machine_ranks);
  Compiled result;
  result.storage = stored.summary();
  result.lacked_memory = stored.lacked_memory();
  lower_all(sharded, options, result);
  check_programs(result.programs, result.bindings);  // whoever runs them relies on it
  result.kv_heads = kv_heads_of(sharded);
  result.plan.seconds = choices.seconds;
  result.plan.summary = plan_summary(sharded, result.programs);
  result.plan.specs = std::move(sharded.specs);
  result.graph = std::move(sharded.graph);
  return result;
}

struct RankPrograms::Source {
  Source(const DecoderModel& model, const CompileOptions& o)
      : graph(prepare(model.tokens)),
        groups(graph),
        choices(search(graph, groups)),
        matrices(weight_matrices(insert_collectives(graph, groups, choices, 1).graph, model.vocabulary)),
        stored(matrices, o.storage),
        options(lowering_options(model, o, matrices, stored)) {}

  const Graph graph;
  const AxisGroups groups;
  const Choices choices;
  const std::vector<WeightMatrix> matrices;
  const StoredWeights stored;
  const LoweringOptions options;
};

RankPrograms::RankPrograms(const DecoderModel& model, const CompileOptions& options)
    : source_(std::make_unique<Source>(model, options)) {}
RankPrograms::~RankPrograms() = default;

RankPrograms::Ranks RankPrograms::lower(int32_t ranks, int32_t machine_ranks,
                                        std::span<const int32_t> which) const {
  const Sharded sharded = insert_collectives(source_->graph, source_->groups, source_->choices, ranks);
  const std::vector<Cluster> clusters = fuse(sharded.graph);
  LoweringOptions options = source_->options;
  options.machine_ranks = sums_first(ranks, machine_ranks);
  ConstantTable constants;
  Ranks result;
  for (const int32_t rank : which)
    result.programs.push_back(Lowering(sharded, clusters, options, rank, constants).run());
  result.constants = constants.list();
  return result;
}

void check_plain(const Graph& graph) {
  std::set<std::string> sizes;
  for (const Value& v : graph.values)
    if (v.dtype == DType::kString) throw Error(Code::kUnsupported, "'" + escaped(v.name) + "' holds texts");
  for (const ValueId v : graph.inputs) {
    if (!graph.value(v).shape)
      throw Error(Code::kUnsupported, "input '" + escaped(graph.value(v).name) + "' declares no rank");
    for (const Expr& e : graph.value(v).shape.value_or(Shape{})) e.collect_symbols(sizes);
  }
  for (const Node& node : graph.nodes) {
    if (node.removed) continue;
    const auto refuse = [&](const std::string& why) {
      throw Error(Code::kUnsupported,
                  "node " + escaped(node.name) + " (" + std::string(name_of(node.op)) + "): " + why);
    };
    if (!find_kernel(node.op)) refuse("no kernel for a static program");
    if (node.outputs.empty() || node.outputs[0] == kNoValue) refuse("its first output is not used");
    for (const ValueId v : node.outputs) {
      if (v == kNoValue) continue;
      if (!graph.value(v).shape) refuse("its shape is not known before it runs");
      for (const Expr& e : *graph.value(v).shape)
        for (const std::string& s : e.symbols())
          if (!sizes.contains(s)) refuse("size " + escaped(s) + " depends on data");
      if (bits_of(graph.value(v).dtype) == 0)
        refuse("element type " + std::string(name_of(graph.value(v).dtype)));
    }
  }
}

Compiled compile_plain(const Graph& graph, const SymbolValues& max_symbols) {
  Sharded sharded;
  sharded.graph = graph;
  sharded.graph.compact();
  sharded.specs.resize(sharded.graph.values.size());
  check_plain(sharded.graph);
  Compiled result;
  lower_all(sharded, {.max_symbols = max_symbols}, result);
  check_programs(result.programs, result.bindings);
  result.plan.specs = std::move(sharded.specs);
  result.graph = std::move(sharded.graph);
  return result;
}

void check_sizes(const Compiled& plain, const SymbolValues& sizes) {
  check_sizes(plain.programs.at(0), sizes);
}

}  // namespace ark
