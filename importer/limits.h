// What a model file may ask for: one struct, all limits checked before memory is allocated.
#pragma once

#include <cstdint>

namespace ark {

struct Limits {
  int64_t max_file_bytes = int64_t{1} << 41;           // model file and each external file
  int64_t max_inline_bytes = int64_t{2} << 30;         // protobuf's own limit of one message
  int64_t max_nodes = 1'000'000;                       // after inlining functions and subgraphs
  int64_t max_values = 4'000'000;
  int64_t max_initializers = 1'000'000;
  int64_t max_attribute_elements = 16'000'000;         // ints, floats or strings of one attribute
  int64_t max_name_bytes = 65'536;
  int64_t max_string_bytes = 64 << 20;
  int max_rank = 8;
  int max_nesting = 64;                                // subgraphs, functions, protobuf groups, types
  int64_t max_function_nodes = 1'000'000;              // nodes that function expansion may produce
  int64_t max_folded_elements = 16'000'000;            // elements of one tensor made by constant folding
  int64_t max_folded_total = 64'000'000;               // and of all of them together
  int64_t max_loop_trips = 1'000'000;                  // constant trip counts of Loop
  int64_t max_tensor_bytes = int64_t{1} << 40;         // one run-time tensor whose size is known at load
};

}  // namespace ark
