// The compiler's front door: DecoderModel or plain Graph + mesh -> one Program per rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ir/decoder.h"
#include "engine/partition/plan.h"
#include "engine/program/program.h"
#include "engine/weights/stored_weights.h"

namespace ark {

// Ranks of a model, at most: each adds channels to all others.
inline constexpr int32_t kMaxRanks = 64;

class WeightStore;

struct CompileOptions {
  int32_t ranks = 1;
  int32_t max_tokens = 512;  // T
  int32_t max_rows = 64;     // R
  int32_t max_items = 1024;  // attention work items
  int32_t page_size = 16;
  int32_t pages = 0;  // set before memory is bound; kKvPage dims
  // In which keys and values are cached, one of kv_codecs() (engine/program/kv_codec.h); kUndefined: with
  // Bf16Unit::kTiles bf16 where products round rows, else f32; without as most numbers of the matrices, or what their
  // codes stand for (the file's numbers, or its scales), if those are f16 or bf16, else f32.
  DType kv_dtype = DType::kF32;
  Link link = Link::kDirect;
  StorageOptions storage;
  Activations activations = Activations::kAuto;  // for a device: kF32
  // Of rank 0's CPU. kNone: products are of f32 where no option asks for bf16, which is faster then, and nearer to the
  // numbers. kTiles: Precision::kBF16Tiles in place of kBF16, and for attention over bf16 where products round.
  Bf16Unit bf16 = Bf16Unit::kPairs;
  bool keeps_codes_of_tables = true;  // else NF4 and FP4 become f32; for a device: false
  // So many ranks share a machine, and the next as many the next one: sums are made there first, where the ranks are a
  // power of two times as many: then the order stays. 1: all ranks are alike; so for a device.
  int32_t machine_ranks = 1;
  // Rows of partials that are zeros by the plan are sent as any others: the plain twin.
  bool send_zeros = false;
};

struct Compiled {
  Plan plan;
  Graph graph;                         // with collectives inserted
  std::vector<ConstantPtr> constants;  // WeightUse::constant indexes this
  std::vector<Program> programs;       // per rank
  std::vector<Binding> bindings;
  std::vector<std::vector<Range>> kv_heads;  // by cache, by rank: those that it holds
  std::string storage;                       // StoredWeights::summary()
  bool lacked_memory = false;                // StoredWeights::lacked_memory()
  // By rank, where they are packed already: then neither graph, specs nor constants are needed to run.
  std::vector<std::shared_ptr<WeightStore>> packed;
};

// The programs of single ranks, of any number of them: each phase of a step written out, without repeats, memory and
// waits, and not validated. For those who reckon what ranks would compute and send. `model` outlives it.
class RankPrograms {
 public:
  // Of the options, ranks and machine_ranks are not used.
  RankPrograms(const DecoderModel& model, const CompileOptions& options);
  ~RankPrograms();
  struct Ranks {
    std::vector<Program> programs;  // of the ranks that were asked for
    std::vector<ConstantPtr> constants;
  };
  // machine_ranks: as of CompileOptions.
  Ranks lower(int32_t ranks, int32_t machine_ranks, std::span<const int32_t> which) const;

 private:
  struct Source;
  std::unique_ptr<const Source> source_;
};

// Checked by the validator: throws Error(kBadModel) for what does not make sound programs.
Compiled compile_decoder(const DecoderModel& model, const CompileOptions& options);
// A plain graph all of whose shapes follow from its input symbols, on one rank. `max_symbols` bounds each
// symbol. Throws as check_plain does.
Compiled compile_plain(const Graph& graph, const SymbolValues& max_symbols);
// Shapes of a plain graph may be what its operators make at some sizes only: before a run with sizes that were not
// seen. Throws Error(kUnsupported) naming the node.
void check_sizes(const Compiled& plain, const SymbolValues& sizes);
// Throws Error(kUnsupported) naming the first node whose shape is data-dependent or that has no kernel.
void check_plain(const Graph& graph);

}  // namespace ark
