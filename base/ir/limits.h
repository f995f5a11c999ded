// What a model file may ask for: one struct, all limits checked before memory is allocated.
#pragma once

#include <cstdint>

namespace ark {

struct Limits {
  int64_t max_file_bytes = int64_t{1} << 41;    // model file and each external file
  int64_t max_inline_bytes = int64_t{2} << 30;  // protobuf's own limit of one message
  int64_t max_nodes = 250'000;                  // after inlining functions and subgraphs
  int64_t max_values = 4'000'000;
  int64_t max_initializers = 1'000'000;
  int64_t max_attribute_elements = 16'000'000;  // ints, floats or strings of one attribute
  int64_t max_name_bytes = 65'536;
  int64_t max_string_bytes = 64 << 20;
  int max_rank = 8;
  int max_nesting = 64;                             // subgraphs, functions, protobuf groups, types
  int64_t max_function_nodes = 250'000;             // nodes that function expansion may produce
  int64_t max_folded_elements = 4'000'000;          // elements of one tensor made by constant folding
  int64_t max_folded_total = 12'000'000;            // and of all of them together
  double max_folded_work = 1 << 30;                 // and what computing these takes (base/ir/work.h)
  int64_t max_loop_trips = 1'000'000;               // constant trip counts of Loop
  int64_t max_structure_bytes = 128 << 20;          // nodes, attributes, names, small tensors, decoded
  int64_t max_generated_bytes = int64_t{1} << 30;   // one tensor that follows from constants alone: by
                                                    // ConstantOfShape, Expand, Tile, Range, Pad, ...
  int64_t max_generated_total = int64_t{16} << 30;  // and of all of them together
  int64_t max_tensor_bytes = int64_t{1} << 36;      // one run-time tensor whose size is known at load
};

// What constant folding may still write and compute. One object a model, shared by its graphs.
struct FoldBudget {
  int64_t max_elements = Limits{}.max_folded_elements;
  int64_t remaining = Limits{}.max_folded_total;
  double remaining_work = Limits{}.max_folded_work;

  // True if a tensor of `elements` may be folded at all; otherwise the node stays in the graph.
  bool allows(int64_t elements) const { return elements <= max_elements && elements <= remaining; }
  void take(int64_t elements) { remaining -= elements; }
  // Takes it where there is so much.
  bool take_work(double work) {
    if (work > remaining_work) return false;
    remaining_work -= work;
    return true;
  }
};

}  // namespace ark
