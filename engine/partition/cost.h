// What a step costs: the figures that the search compares. All constants stand here.
#pragma once

#include <cstdint>

#include "base/ir/graph.h"

namespace ark {

// Seconds. The figures are those of one CPU rank of a few cores; only their ratios decide, and those that
// matter (a collective against the weights of a layer) are alike on a GPU with NVLink: 100 times the memory
// bandwidth, 100 times the link, a few microseconds of latency as well.
struct CostModel {
  double per_weight_byte = 1.0 / 10e9;      // read each step: 10 GB/s is what a rank gets of a DDR4/5 socket
  double per_activation_byte = 1.0 / 20e9;  // from the last-level cache
  double per_flop = 1.0 / 40e9;             // f32 FMA, a few AVX2 cores, small M
  double per_link_byte = 1.0 / 5e9;  // peer stores through shared memory: write, read, and the reduction
  double per_message = 2e-6;         // signal, wake-up, wait: two futex-free hand-overs
  // What memory is worth: a mesh is asked for so that the model is shared out. Holding one more matrix of
  // median size costs as much as this many all-reduces of its output, on top of the time to read it. The
  // scale is the model's own, so that test models of hidden size 16 are split like large ones; and small
  // enough that GPT-2's position table (1.33 such matrices, of which two ranks save half) is not worth a
  // collective. Vectors (norms, biases) are a thousandth of a model and count nothing.
  double collectives_per_matrix = 0.9;
  // The step that is priced: a decode batch.
  int64_t tokens = 8, rows = 8;

  // Collectives over n ranks of a value of `bytes` in all.
  double all_reduce(double bytes, int n) const;  // one message of all bytes to each peer
  double all_gather(double bytes, int n) const;  // one message of 1/n to each peer
};

// Sizes under the priced step; symbols other than tokens and rows count as tokens.
double priced_elements(const CostModel& costs, const Graph& graph, ValueId value);
double priced_bytes(const CostModel& costs, const Graph& graph, ValueId value);
// Seconds per byte of a matrix that a rank holds.
double held_byte_price(const CostModel& costs, const Graph& graph);
// Floating-point operations of one node, whole.
double priced_flops(const CostModel& costs, const Graph& graph, const Node& node);

}  // namespace ark
