// The plan in a few lines, for start-up logs.
#pragma once

#include <string>
#include <vector>

#include "engine/partition/plan.h"
#include "engine/program/program.h"

namespace ark {

// One line a kind of decision: "12 MatMul by columns, cut 5|4 of 9 units ...".
std::vector<std::string> plan_summary(const Sharded& sharded, const std::vector<Program>& programs);

}  // namespace ark
