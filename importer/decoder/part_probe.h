// Parts of what Probe evaluates: masks of files without caches grow as the square of the length, and a proof
// that has to reach far needs only some rows of them.
#pragma once

#include <map>

#include "importer/decoder/probe.h"
#include "importer/decoder/refusal.h"

namespace ark::decoder {

// A range of each axis.
struct Box {
  Dims begin, size;
  auto operator<=>(const Box&) const = default;
};

// The proof cannot be carried as far as asked; it may hold for shorter sequences.
struct OutOfReach : Refusal {
  using Refusal::Refusal;
};

class PartProbe {
 public:
  // All must outlive the object.
  PartProbe(const Graph& graph, const Roles& roles, Probe& probe)
      : graph_(graph), roles_(roles), probe_(probe) {}

  // The dims of the value at `step`.
  Dims dims(ValueId id, const Step& step);
  // A part of the value at `step`. Throws Refusal as Probe does, and where the whole would be needed and is
  // too large.
  Tensor part(ValueId id, const Step& step, const Box& box);

 private:
  Tensor whole(ValueId id, const Step& step, const Box& box);
  std::optional<Tensor> through(const Node& node, const Step& step, const Box& box);
  Tensor pointwise(const Node& node, const Step& step, const Box& box);
  std::optional<Tensor> slice(const Node& node, const Step& step, Box box);
  std::optional<Tensor> reshape(const Node& node, const Step& step, const Box& box);
  std::optional<Tensor> gather(const Node& node, const Step& step, const Box& box);
  Tensor run(Node node, std::vector<Tensor> inputs, Attributes attributes);
  Tensor broadcast_part(ValueId id, const Step& step, const Box& box);

  const Graph& graph_;
  const Roles& roles_;
  Probe& probe_;
  Step now_;  // that `memo_` is about
  std::map<std::pair<ValueId, Box>, Tensor> memo_;
  int depth_ = 0;
  int64_t work_ = 0;  // elements evaluated so far, a budget against graphs built to exhaust it
};

}  // namespace ark::decoder
