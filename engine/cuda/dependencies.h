// What an instance of a step must wait for on a device, where it is said by instance, not by phase.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/cuda/appended.h"
#include "engine/cuda/merged_sends.h"
#include "engine/program/program.h"
#include "engine/program/unroll.h"

namespace ark::cuda {

// What instances of a step do on a device that the program does not say.
struct OnDevice {
  // By instance: one before it that must be complete for reasons of the device's own; kNone: there is none. May be
  // empty.
  std::vector<int32_t> also;
  std::map<int32_t, std::vector<Access>> more;  // by instance: what it accesses beside
  std::map<int32_t, std::vector<Access>> less;  // by instance: what it does not access
  std::vector<bool> gone;                       // by phase: whether it has no instances; may be empty
  std::vector<PhaseId> sent_by;                 // MergedSends::sent_by(); may be empty
  std::vector<bool> left_out;  // by instance: whether it does nothing, and waits for nobody; may be empty
};

// What products that append and merged sends change.
OnDevice on_device(const Program& program, const Binding& binding, const Appended& appended,
                   const MergedSends& sends);

// By instance of a step: the earlier ones of the same step that must be complete before it runs, but for those that
// these wait for. Program::waits say less: there a processor takes part in every instance, so that one that is complete
// covers all before it; here processors without tiles neither wait nor signal. The step before is over when one begins.
std::vector<std::vector<int32_t>> dependencies(const Program& program, const Binding& binding,
                                               const OnDevice& device);

}  // namespace ark::cuda
