// Which nodes become one phase together.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ir/graph.h"
#include "engine/program/program.h"

namespace ark {

// Stands in program order where its last member stands.
struct Cluster {
  // The MatMul, AllReduce or attention; the only node; or the last of a pointwise chain.
  NodeId root = kNoNode;
  std::vector<NodeId> members;  // in the graph's order; root included
  ValueId output = kNoValue;    // of the last member, if the cluster is fused
  // Epilogue of a MatMul or AllReduce, applied in the order bias, activation, residual.
  uint32_t epilogue = 0;  // EpilogueBits
  ValueId bias = kNoValue, residual = kNoValue;
  bool is_pointwise = false;  // all members are f32 pointwise: one kPointwise phase
  // Of an attention: what rotates its queries and keys, if they are members and go with the append.
  NodeId rotary_q = kNoNode, rotary_k = kNoNode;
  // Of a product that another one of the same rows multiplies (kGatedMatMul): the clusters that it is made of, which
  // are the first product with the activation, the second, and the Mul. Else empty.
  std::vector<Cluster> apart;
};

// Every live node in exactly one cluster.
std::vector<Cluster> fuse(const Graph& graph);
// No fusion: one cluster a live node.
std::vector<Cluster> singles(const Graph& graph);

// f32 rows times a constant matrix: has a kMatMul phase. Others go through their kernel.
bool is_panel_matmul(const Graph& graph, const Node& node);
// The same of an ExpertMatMul and all of its matrices.
bool is_panel_expert_matmul(const Graph& graph, const Node& node);
// Rows of a constant table by indices that are not: has a kEmbed phase.
bool is_embedding(const Graph& graph, const Node& node);
// Rotates heads of tokens: has a kRotary phase.
bool is_token_rotary(const Graph& graph, const Node& node);
// The bytecode of a pointwise cluster; `operands` receives the values that it loads, in operand order.
std::vector<PointwiseStep> pointwise_steps(const Graph& graph, const Cluster& cluster,
                                           std::vector<ValueId>& operands);

}  // namespace ark
