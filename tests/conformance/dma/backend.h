// What the DMA conformance suite is run over: every transport of the list, and each with faults.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "dma/faults.h"
#include "dma/group.h"
#include "dma/mixed/setup.h"
#include "dma/shm/setup.h"
#include "dma/transports.h"
#include "tests/dma/deadline.h"

namespace ark::dma::test {

struct Backend {
  std::string name;
  std::function<std::vector<std::unique_ptr<Transport>>(int first, int ranks)> make = {};
  bool posted = false;  // even where links could be direct
  std::optional<FaultPlan> faults = {};

  std::vector<std::unique_ptr<Transport>> transports(int size) const {
    std::vector<std::unique_ptr<Transport>> all = make(0, size);
    if (faults)
      for (auto& transport : all) transport = with_faults(std::move(transport), *faults);
    return all;
  }
};
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

// Any two ranks in succession are taken for such of two machines; every other one shares a machine.
inline std::vector<std::unique_ptr<Transport>> make_for_two_machines(const TransportKind& far, int first,
                                                                     int ranks) {
  std::vector<std::unique_ptr<Transport>> all = far.make(first, ranks);
  for (auto& transport : all)
    transport = make_mixed_transport(std::to_string(first++ % 2), make_shm_transport(), std::move(transport));
  return all;
}

inline std::vector<Backend> all_backends() {
  const FaultPlan late{.seed = 11, .delay_polls = 6, .reorder = true};
  const FaultPlan lossy{.seed = 12, .drop = 0.01, .refuse = 0.05, .delay_polls = 2, .reorder = true};
  std::vector<Backend> all;
  for (const TransportKind& kind : transports()) {
#ifdef __SANITIZE_THREAD__
    if (kind.name.ends_with("ucx")) continue;  // TSan does not see what UCX orders
#endif
    if (!kind.works_here()) continue;
    std::string name(kind.name);
    decltype(Backend::make) make = kind.make;
    if (kind.is_mixed) {
      const TransportKind& far = transport_named(kind.name.substr(kind.name.find('+') + 1));
      name = "two_machines_" + std::string(far.name);
      make = [&far](int first, int count) { return make_for_two_machines(far, first, count); };
    }
    std::replace(name.begin(), name.end(), '-', '_');  // as names of tests must be
    all.push_back({name + "_direct", make});
    // Within one process, shm maps each counter twice. TSan goes by address: it does not see that a raise at
    // one mapping orders a load at the other, and reports the reuse of outboxes. Under TSan the posted path is
    // tested over local (the same code), and over shm between processes.
#ifdef __SANITIZE_THREAD__
    if (name == "shm" || kind.is_mixed) continue;
#endif
    all.push_back({name + "_posted", make, true});
    // What is lost above an ordered wire the pump repeats, after it has called the first attempt back. What this one
    // has under way, for longer than the pump's patience, cannot be: a raise would count twice. It is for what the
    // network loses (verbs_guest.sh).
    if (kind.name.ends_with("verbs-ud")) continue;
    all.push_back({name + "_late", make, true, late});
    all.push_back({name + "_lossy", make, true, lossy});
  }
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
