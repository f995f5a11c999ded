// What the DMA conformance suite is run over. A new transport adds one line to all_backends().
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "dma/faults.h"
#include "dma/group.h"
#include "dma/local/setup.h"
#include "dma/shm/setup.h"
#include "tests/dma/deadline.h"

namespace ark::dma::test {

using Transports = std::vector<std::unique_ptr<Transport>>;

struct Backend {
  std::string name;
  std::function<Transports(int size)> transports;
  bool posted = false;
};
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

inline Transports shm_transports(int size) {
  Transports all;
  for (int rank = 0; rank < size; ++rank) all.push_back(make_shm_transport());
  return all;
}

inline Transports faulty(Transports transports, const FaultPlan& plan) {
  for (auto& transport : transports) transport = with_faults(std::move(transport), plan);
  return transports;
}

inline std::vector<Backend> all_backends() {
  const FaultPlan late{.seed = 11, .delay_polls = 6, .reorder = true};
  const FaultPlan lossy{.seed = 12, .drop = 0.01, .refuse = 0.05, .delay_polls = 2, .reorder = true};
  std::vector<Backend> all = {
      {"LocalDirect", make_local_transports, false},
      {"LocalPosted", make_local_transports, true},
      {"LocalLate", [late](int size) { return faulty(make_local_transports(size), late); }, true},
      {"ShmDirect", shm_transports, false}};
  // Within one process, shm maps each counter twice. TSan goes by address: it does not see that a raise at
  // one mapping orders a load at the other, and reports the reuse of outboxes. Under TSan the posted path is
  // tested over local (the same code), and over shm between processes.
#ifndef __SANITIZE_THREAD__
  all.push_back({"ShmPosted", shm_transports, true});
  all.push_back({"ShmLossy", [lossy](int size) { return faulty(shm_transports(size), lossy); }, true});
#else
  all.push_back(
      {"LocalLossy", [lossy](int size) { return faulty(make_local_transports(size), lossy); }, true});
#endif
  return all;
}

class Conformance : public ::testing::TestWithParam<Backend> {
 protected:
  std::vector<std::unique_ptr<Group>> make_groups(int size, EndpointSpec spec) const {
    spec.force_posted |= GetParam().posted;
    spec.pump.retry_after = std::chrono::milliseconds(10);
    spec.pump.attempts = 10;  // a slow machine must not look like a cut wire
    return make_local_groups(
        size, [&](int) { return spec; }, soon(), GetParam().transports(size));
  }

  static WaitContext context_of(Group& group) { return {&group.abort(), soon(), SpinPolicy{16}}; }

  // Runs `body` on a thread per rank. A fault that it returns fails the test and aborts all ranks.
  static void run_ranks(std::vector<std::unique_ptr<Group>>& groups,
                        const std::function<Fault(Group&, const WaitContext&)>& body) {
    std::vector<std::jthread> threads;
    for (auto& group : groups) {
      threads.emplace_back([&groups, &body, &group = *group] {
        const Fault fault = body(group, context_of(group));
        if (!fault) return;
        ADD_FAILURE() << fault.text() << "; pump: " << group.fault().text();
        for (auto& other : groups) other->abort().raise(AbortReason::kFault, group.rank());
      });
    }
  }
};

}  // namespace ark::dma::test
