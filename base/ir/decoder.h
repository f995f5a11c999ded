// A decoder: how the graph of a file is driven with caches, and its token graph over ragged batches. The importer
// recognises it (importer/decoder.h), the engine compiles and drives it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/ir/graph.h"

namespace ark {

// One key/value cache pair of the file, and what the paged cache stores for it per token.
struct CacheSpec {
  std::string key_input, value_input;  // graph inputs of the plain graph (equal when one tensor holds both)
  int64_t kv_heads = 0;
  int64_t key_dim = 0, value_dim = 0;
  int64_t window = 0;  // sliding window in tokens, 0 = none
  // Of each element of a token's row in the file's cache (its axes but batch and sequence, row-major): the place
  // among the paged key's or value's elements, -1 where that is something else (the other half of a joined cache,
  // or keys that are cached before they are rotated).
  std::vector<int64_t> key_elements{}, value_elements{};
};

// How a plain decoder graph is driven with explicit past and present: roles of its inputs and outputs, derived from
// edges, shapes and, last, names. Found also for graphs that are not row-wise (PlainRunner needs only this).
struct DecoderSignature {
  struct Cache {
    std::size_t input, output;      // indices into Graph::inputs / outputs
    int batch_axis, sequence_axis;  // the batch's may hold several parts a row: batch * heads
  };
  // What a step leaves for the next one in the same size, whatever the tokens were (a convolution's last places, a
  // recurrence's matrix). Zeros before the first token.
  struct State {
    std::size_t input, output;
  };
  // What a mask's numbers say of a key. kUsual: not 0, it is seen; floating ones by query are added to scores.
  // kSelects: those are not added, either. kHides: not 0, it is hidden.
  enum class MaskMeaning : uint8_t { kUsual, kSelects, kHides };
  // An integer that counts past + S - offset, alone or one a row (GroupQueryAttention's seqlens_k); or past alone.
  struct Length {
    std::size_t input;
    int64_t offset;
    bool is_past = false;
    int64_t at(int64_t past, int64_t sequence) const { return is_past ? past : past + sequence - offset; }
  };
  std::size_t ids = 0;                           // input index of the token ids [B, S] (i32 or i64)
  std::optional<std::size_t> mask, token_types;  // [B, total] or [B, 1 or heads, S, total]; [B, S]
  MaskMeaning mask_meaning = MaskMeaning::kUsual;
  bool mask_by_query = false;          // of two axes it is [S, total], causal as those of more are
  std::vector<std::size_t> positions;  // [B, S], [S], [3, B, S] or [4, B, S]: all the same numbers
  std::vector<Length> lengths;
  std::vector<std::size_t> ignored;  // nothing reads them
  std::vector<Cache> caches;
  std::vector<State> states;  // without these and caches every step runs the whole sequence
  std::size_t logits = 0;     // output index [B, S or 1, V] or [B, V]
  bool last_only = false;     // the logits are the last token's
  int64_t vocabulary = 0;
  int64_t max_positions = 0;  // from position tables; 0 = not limited by the file
};

struct DecoderModel {
  DecoderSignature signature;
  // The token graph over symbols "tokens" (T) and "rows" (R). Inputs, in order: token_ids i32 [T], positions i32 [T].
  // Output: logits f32 [R, V]. All floating values are f32 (16-bit weights stay 16-bit constants). Attention is
  // kPagedAttention; everything else is row-wise. kSelectRows stands before the last row-wise part.
  Graph tokens;
  std::vector<CacheSpec> caches;
  int64_t vocabulary = 0;
  int64_t max_positions = 0;          // 0 = not limited by the file
  std::vector<std::string> evidence;  // what was proven, one line each, for people
};

// Of an axis as long as a multiple of the batch, how many parts of each row lie there beside each other; nullopt if it
// is none.
std::optional<int64_t> parts_a_row(const Expr& size, const Expr& batch);

// What an unpadded step of `sequence` tokens after `past` cached ones feeds to an input of dims `dims` that is
// neither ids nor cache: what shows all keys for a mask (of one by query those up to each token), past + s for
// positions, zeros for what is ignored. nullopt if the input has no role. Throws Error(kUnsupported) for types that
// cannot hold it.
std::optional<Tensor> step_input(const Graph& graph, const DecoderSignature& signature, std::size_t input,
                                 const Dims& dims, int64_t past, int64_t sequence);

}  // namespace ark
