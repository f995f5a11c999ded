#include "engine/cuda/launch_graph.h"

namespace ark::cuda {

LaunchGraph::LaunchGraph(const Driver& driver, DriverFunction function, const LaunchShape& shape,
                         std::span<const std::byte> parameter)
    : driver_(driver), api_(driver.library()), shape_(shape) {
  try {
    build(function, parameter);
  } catch (...) {
    release();
    throw;
  }
}

LaunchGraph::~LaunchGraph() { release(); }

void LaunchGraph::build(DriverFunction function, std::span<const std::byte> parameter) {
  driver_.use_unless_lost();
  driver_.check(api_.create(&graph_, 0), "a graph of the loop");
  void* arguments[] = {const_cast<std::byte*>(parameter.data())};
  node_.function = function;
  node_.grid_x = static_cast<unsigned>(shape_.blocks);
  node_.block_x = static_cast<unsigned>(shape_.threads);
  node_.shared_bytes = static_cast<unsigned>(shape_.shared_bytes);
  node_.arguments = arguments;
  driver_.check(api_.add_kernel(&handle_, graph_, nullptr, 0, &node_), "the loop as a node of a graph");
  NodeAttribute cooperative{};
  cooperative.cooperative = 1;
  driver_.check(api_.set_attribute(handle_, kNodeCooperative, &cooperative),
                "the loop as a cooperative node of a graph");
  driver_.check(api_.instantiate(&exec_, graph_, 0), "the graph of the loop");
}

void LaunchGraph::replay(std::span<const std::byte> parameter, DriverStream stream) {
  driver_.use_unless_lost();
  void* arguments[] = {const_cast<std::byte*>(parameter.data())};
  node_.arguments = arguments;
  driver_.check(api_.set_kernel(exec_, handle_, &node_), "another parameter of the graph's loop");
  driver_.check(api_.launch(exec_, stream), "the launch of the loop's graph");
}

void LaunchGraph::release() noexcept {
  if (driver_.is_lost()) return;
  driver_.use();
  if (exec_) api_.destroy_exec(exec_);
  if (graph_) api_.destroy(graph_);
}

}  // namespace ark::cuda
