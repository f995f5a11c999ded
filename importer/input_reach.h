// Where an input of a graph leads: what its values are used as, whatever it is called.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/ir/graph.h"

namespace ark::input_reach {

using Readers = std::vector<std::vector<NodeId>>;  // Graph::consumers()
using InputAxes = std::set<std::pair<std::string, std::size_t>>;

// Nodes whose outputs are their inputs' elements in another order or type.
bool only_moves(Op op);
// Follows an integer through casts, movement and sums to the tables of constants that it indexes: the rows of
// the largest, 0 if there is none.
int64_t table_rows(const Graph& graph, const Readers& readers, ValueId id);
// Whether the value has a score for each of `rows` tokens in its last axis. A head may be padded or cut a little;
// hidden states are far smaller than a vocabulary.
bool are_logits(const Value& value, int64_t rows);
// Whether token ids index a table and an output has a score for each of its rows, as of what generates or fills blanks;
// models that classify, embed or compare have none.
bool scores_tokens(const Graph& graph);
// Whether the value becomes angles (or an index of rotary tables) without meeting tokens.
bool makes_angles(const Graph& graph, const Readers& readers, ValueId id);
// Whether a part of the value is taken; whether its numbers are counted.
struct Parts {
  bool are_taken = false, are_counted = false;
};
Parts parts_of(const Graph& graph, const Readers& readers, ValueId id);
// Whether the last or greatest of a row's numbers is taken: of positions that tells the length, of a mask nothing.
bool tells_by_one(const Graph& graph, const Readers& readers, ValueId id);
// Whether a Range begins with the value, or it is added to one.
bool begins_range(const Graph& graph, const Readers& readers, ValueId id);
// Whether the value, or it and a constant, is the length of each row's keys that an attention operator reads:
// the constant, nullopt if it is nothing of the kind.
std::optional<int64_t> length_offset(const Graph& graph, const Readers& readers, ValueId id);

// Masks and caches whose length is called what the tokens' is, in a file with caches, and the axis. A mask also
// covers the cached tokens, and there are none of these at first, so the name is a slip of the exporter's;
// runtimes do not bind sizes by name and never notice. These need a size of their own; where it does equal
// another one, the graph shows it.
InputAxes misnamed_axes(const Graph& graph);

}  // namespace ark::input_reach
