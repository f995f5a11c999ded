// How the proof ends early: thrown inside importer/decoder only, caught by recognise_decoder().
#pragma once

#include <exception>
#include <string>

#include "base/ir/graph.h"

namespace ark::decoder {

struct Refusal : std::exception {
  Refusal(std::string node, std::string reason) : node(std::move(node)), reason(std::move(reason)) {}
  const char* what() const noexcept override { return reason.c_str(); }
  std::string node, reason;
  bool is_behind_masks = false;  // some attention's mask was proven to be causal
};

// What may hold, but costs more to see than it is worth.
struct Exhausted : Refusal {
  using Refusal::Refusal;
};

// The first token sees the last one.
struct FillsBlanks : Refusal {
  using Refusal::Refusal;
};

// A mask that is not causal: of one that is given, maybe for its numbers are taken for what they are not.
struct NotCausal : Refusal {
  using Refusal::Refusal;
};

[[noreturn]] inline void refuse(const Node& node, std::string reason) {
  throw Refusal(node.name, std::move(reason));
}

}  // namespace ark::decoder
