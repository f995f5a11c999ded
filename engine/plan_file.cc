#include "engine/plan_file.h"

#include "base/error.h"
#include "engine/program/expr_bound.h"
#include "engine/program/text.h"
#include "engine/program/unroll.h"
#include "engine/run/weight_store.h"
#include "engine/validate/validate.h"

namespace ark {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(Code::kInvalidArgument, "the plan " + why); }

// One text a rank: each starts with a line "program ...".
std::vector<std::string_view> split_ranks(std::string_view text) {
  constexpr std::string_view kHead = "program ";
  std::vector<std::size_t> starts;
  for (std::size_t line = 0; line < text.size();) {
    if (text.substr(line).starts_with(kHead)) starts.push_back(line);
    const std::size_t end = text.find('\n', line);
    line = end == std::string_view::npos ? text.size() : end + 1;
  }
  if (starts.empty()) refuse("has no line 'program ...'; ark-inspect --stage program prints one");
  starts[0] = 0;  // comments above
  std::vector<std::string_view> parts;
  for (std::size_t i = 0; i < starts.size(); ++i)
    parts.push_back(
        text.substr(starts[i], (i + 1 < starts.size() ? starts[i + 1] : text.size()) - starts[i]));
  return parts;
}

// Memory outside the program is made for the compiler's sizes.
void check_fit(const Program& plan, const Program& own, const std::vector<ConstantPtr>& constants) {
  const std::string rank = "for rank " + std::to_string(plan.rank) + " ";
  const SymbolValues known = greatest_symbols(own);
  for (std::size_t i = 0; i < plan.vals.size(); ++i) {
    for (const std::string& s : plan.vals[i].e.symbols())
      if (!known.contains(s)) refuse(rank + "uses size " + escaped(s) + ", which the model does not have");
    const int64_t need = plan.vals[i].e.evaluate(known);
    if (plan.vals[i].max != need)
      refuse(rank + "is made for " + std::to_string(plan.vals[i].max) + " in val $" + std::to_string(i) +
             " where the limits of this run give " + std::to_string(need) +
             "; print it with the options that it is run with");
  }
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const WeightUse& w = plan.weights[i];
    if (w.constant < 0 || static_cast<std::size_t>(w.constant) >= constants.size())
      refuse(rank + "uses constant " + std::to_string(w.constant) + " of " +
             std::to_string(constants.size()));
    const Constant& constant = *constants[w.constant];
    if (const std::string misfit = misfit_of(constant, w); !misfit.empty())
      refuse(rank + "has weight ^" + std::to_string(i) + " that " + misfit + " (" + escaped(constant.name) +
             ")");
  }
  for (const Buffer& b : plan.buffers) {
    if (b.kind != BufferKind::kKvPage) continue;
    bool found = false;
    for (const Buffer& mine : own.buffers)
      found = found || (mine.kind == b.kind && mine.cache == b.cache && mine.is_value == b.is_value &&
                        sizes(own, mine) == sizes(plan, b));
    if (!found) refuse(rank + "has pages " + escaped(b.name) + " that the model does not have");
  }
}

}  // namespace

std::string plan_text(const std::vector<Program>& programs, const std::vector<Binding>& bindings) {
  std::string text;
  for (std::size_t r = 0; r < programs.size(); ++r) text += program_text(programs[r], bindings[r]);
  return text;
}

int32_t ranks_of_plan(std::string_view text) { return static_cast<int32_t>(split_ranks(text).size()); }

PlanPrograms read_plan(std::string_view text) {
  PlanPrograms plan;
  for (const std::string_view part : split_ranks(text)) {
    auto [program, binding] = parse_program(part);
    plan.programs.push_back(std::move(program));
    plan.bindings.push_back(std::move(binding));
  }
  const std::vector<std::string> errors = validate(plan.programs, plan.bindings);
  if (!errors.empty()) refuse("is refused: " + errors[0]);
  return plan;
}

void force_plan(Compiled& compiled, std::string_view text) {
  const int32_t ranks = ranks_of_plan(text);
  if (ranks != std::ssize(compiled.programs))
    refuse("is for " + std::to_string(ranks) + " ranks, not " + std::to_string(compiled.programs.size()));
  PlanPrograms plan = read_plan(text);
  for (std::size_t r = 0; r < plan.programs.size(); ++r)
    check_fit(plan.programs[r], compiled.programs[r], compiled.constants);
  compiled.programs = std::move(plan.programs);
  compiled.bindings = std::move(plan.bindings);
}

}  // namespace ark
