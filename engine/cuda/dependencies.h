// What an instance of a step must wait for on a device, where it is said by instance, not by phase.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/program/program.h"
#include "engine/program/unroll.h"

namespace ark::cuda {

// By instance of a step: the earlier ones of the same step that must be complete before it runs, but for those that
// these wait for. Program::waits say less: there a processor takes part in every instance, so that one that is complete
// covers all before it; here processors without tiles neither wait nor signal. The step before is over when one begins.
// `also`: by instance, one before it that must be complete for reasons of the device's own; -1: none. `more`, `less`:
// by instance, what it accesses beside what the program says, and what it does not. `gone`: by phase, whether it has no
// instances here. `sent_by`: MergedSends::sent_by(). `left_out`: by instance, whether it does nothing, and waits for
// nobody.
std::vector<std::vector<int32_t>> dependencies(const Program& program, const Binding& binding,
                                               const std::vector<int32_t>& also,
                                               const std::map<int32_t, std::vector<Access>>& more = {},
                                               const std::vector<bool>& gone = {},
                                               const std::map<int32_t, std::vector<Access>>& less = {},
                                               const std::vector<PhaseId>& sent_by = {},
                                               const std::vector<bool>& left_out = {});

}  // namespace ark::cuda
