#include "engine/validate/validate.h"

#include "base/error.h"

namespace ark {

std::vector<std::string> validate(std::span<const Program> programs, std::span<const Binding> bindings) {
  using namespace validation;
  std::vector<std::string> errors;
  if (programs.empty() || programs.size() != bindings.size()) {
    return {"there must be one binding for each of at least one program"};
  }
  for (std::size_t r = 0; r < programs.size(); ++r) {
    Report report(errors, static_cast<int32_t>(r));
    report.check(programs[r].rank == static_cast<int32_t>(r) &&
                     programs[r].ranks == static_cast<int32_t>(programs.size()),
                 "program", "rank and ranks do not fit its place");
    check_structure(programs[r], bindings[r], report);
  }
  if (errors.empty()) check_channels(programs, errors);
  for (std::size_t r = 0; errors.empty() && r < programs.size(); ++r) {
    Report report(errors, static_cast<int32_t>(r));
    check_phases(programs[r], report);
  }
  if (errors.empty()) check_recipes(programs, errors);
  if (errors.empty()) check_schedule(programs, bindings, errors);
  return errors;
}

void check_programs(std::span<const Program> programs, std::span<const Binding> bindings) {
  const std::vector<std::string> errors = validate(programs, bindings);
  if (!errors.empty()) throw Error(Code::kBadModel, "the model does not make a sound program: " + errors[0]);
}

}  // namespace ark
