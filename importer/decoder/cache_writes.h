// Where a graph writes new rows into caches of a fixed size, and which of its inputs say so.
#pragma once

#include <optional>
#include <utility>

#include "base/ir/graph.h"

namespace ark::decoder {

// What a graph does with a cache that ends the attempt to let it grow.
struct GivenUp {};

const Shape& known_shape(const Graph& graph, ValueId id);  // throws GivenUp

// The input that lists the places of new rows, or says where the first one is.
struct WrittenPlaces {
  std::size_t input;
  bool is_first;
};
// Of indices along `axis` of `count` new rows: the positions of all, or the first's and those behind it.
std::optional<WrittenPlaces> written_places(const Graph& graph, ValueId indices, std::size_t axis,
                                            const Expr& count);

// The graph input behind `data`, and which of its own axes is `axis` there.
std::optional<std::pair<std::size_t, std::size_t>> cache_behind(const Graph& graph, ValueId data,
                                                                std::size_t axis);

}  // namespace ark::decoder
