// Programs of all ranks as one text: what `ark-inspect --stage program` prints and `--plan FILE` forces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/compile.h"

namespace ark {

// program_text of every rank, one after the other.
std::string plan_text(const std::vector<Program>& programs, const std::vector<Binding>& bindings);

// The programs of such a text, as they were. Throws Error(kInvalidArgument) naming the line, rank or phase if it does
// not parse, or the validator refuses it.
struct PlanPrograms {
  std::vector<Program> programs;
  std::vector<Binding> bindings;
};
PlanPrograms read_plan(std::string_view text);

// How many ranks the text is for, by its first line. Throws Error(kInvalidArgument) if it is no plan.
int32_t ranks_of_plan(std::string_view text);

// Puts the programs of `text` in the place of the compiler's, which were made from the same model for as many
// ranks. Throws Error(kInvalidArgument) naming the line, rank or phase if the text does not parse, does not
// fit the model or the sizes that `compiled` was made for, or the validator refuses it.
void force_plan(Compiled& compiled, std::string_view text);

}  // namespace ark
