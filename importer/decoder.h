// What the importer recognises: a decoder whose padded [batch, sequence] graph is row-wise outside attention.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "importer/graph.h"

namespace ark {

// One key/value cache pair of the file, and what the paged cache stores for it per token.
struct CacheSpec {
  std::string key_input, value_input;  // graph inputs of the plain graph (equal when one tensor holds both)
  int64_t kv_heads = 0;
  int64_t key_dim = 0, value_dim = 0;
  int64_t window = 0;  // sliding window in tokens, 0 = none
};

// How a plain decoder graph is driven with explicit past and present: roles of its inputs and outputs, derived from
// edges, shapes and, last, names. Found also for graphs that are not row-wise (PlainDecoder needs only this).
struct DecoderSignature {
  struct Cache {
    std::size_t input, output;  // indices into Graph::inputs / outputs
    int batch_axis, sequence_axis;
  };
  std::size_t ids = 0;                        // input index of the token ids [B, S] (i32 or i64)
  std::optional<std::size_t> mask, positions, token_types;  // [B, total], [B, S], [B, S]
  std::vector<Cache> caches;                  // empty: every step runs the whole sequence
  std::size_t logits = 0;                     // output index [B, S or 1, V]
  int64_t vocabulary = 0;
  int64_t max_positions = 0;                  // from position tables; 0 = not limited by the file
};

struct DecoderModel {
  DecoderSignature signature;
  // The token graph over symbols "tokens" (T) and "rows" (R). Inputs, in order: token_ids i32 [T], positions i32 [T].
  // Output: logits f32 [R, V]. All floating values are f32 (16-bit weights stay 16-bit constants). Attention is
  // kPagedAttention; everything else is row-wise. kSelectRows stands before the last row-wise part.
  Graph tokens;
  std::vector<CacheSpec> caches;
  int64_t vocabulary = 0;
  int64_t max_positions = 0;  // 0 = not limited by the file
  std::vector<std::string> evidence;  // what was proven, one line each, for people
};

struct NotRecognised {
  std::string node;    // where the proof failed, "" if it is no decoder at all
  std::string reason;
};

// Is there a way to drive it as a decoder at all? nullopt with `why` otherwise.
std::optional<DecoderSignature> find_signature(const Graph& graph, std::string* why);
// `graph` has been through run_passes. max_length bounds tables made from positions (rotary), 0 = from the file.
std::variant<DecoderModel, NotRecognised> recognise_decoder(const Graph& graph, int64_t max_length);

}  // namespace ark
