// What the importer recognises: a decoder whose padded [batch, sequence] graph is row-wise outside attention.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "base/ir/decoder.h"

namespace ark {

struct NotRecognised {
  std::string node;  // where the proof failed, "" if it is no decoder at all
  std::string reason;
  // There is no cache, and the first token sees the last one: a masked model, no generator.
  bool fills_blanks = false;
  // How it is driven plain where find_signature() is mistaken, which takes a mask's numbers to say what is usual.
  std::optional<DecoderSignature> signature{};
};

// Is there a way to drive it as a decoder at all? nullopt with `why` otherwise.
std::optional<DecoderSignature> find_signature(const Graph& graph, std::string* why);
// `graph` has been through run_passes. max_length bounds tables made from positions (rotary), 0 = from the file.
std::variant<DecoderModel, NotRecognised> recognise_decoder(const Graph& graph, int64_t max_length);

}  // namespace ark
