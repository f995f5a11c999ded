// Each phase against its OpCode's row of engine/program/opcodes.cc: operands, element types, sizes, grid, parameters.
#include <set>

#include "base/error.h"
#include "base/index.h"
#include "engine/program/phase_view.h"
#include "engine/validate/generic_shapes.h"
#include "engine/validate/validate.h"

namespace ark::validation {
namespace {

// A kGeneric phase: what its kernel reads and writes.
std::string check_generic(const PhaseView& p) {
  const Variant& v = p.variant();
  if (v.outputs < 1 || at(v.outputs) > p.count()) return "number of outputs";
  const std::size_t inputs = p.count() - at(v.outputs);
  std::vector<GenericOperand> values;
  for (std::size_t i = 0; i < p.count(); ++i) {
    values.push_back(p.has(i) ? GenericOperand{p.buffer(i).dtype, p.shape(i)} : GenericOperand{});
    if (!p.has(i)) continue;
    const Buffer& b = p.buffer(i);
    if (i >= inputs) {
      const bool is_output =
          b.kind == BufferKind::kAct || b.kind == BufferKind::kOutput || p.id(i) == p.program().logits;
      if (!is_output || b.alias != kNone) return "writes what it may not";
    } else if (b.kind == BufferKind::kKvPage || b.kind == BufferKind::kInbox ||
               (b.kind == BufferKind::kWeight && p.weight(i).layout == Layout::kPanels)) {
      return "reads what is no dense tensor";
    }
  }
  SymbolValues most;
  for (const Val& val : p.program().vals) {
    std::set<std::string> symbols;
    val.e.collect_symbols(symbols);
    for (const std::string& s : symbols) {
      if (val.e == Expr::symbol(s)) most[s] = val.max;
    }
  }
  return ark::check_generic(v.op, v.attributes, {values.data(), inputs},
                            {values.data() + inputs, at(v.outputs)}, most);
}

// Bias and residual are there when the epilogue says so.
std::string check_epilogue(const PhaseView& p) {
  for (std::size_t i = 0; i < p.count(); ++i) {
    for (const auto& [name, bit] : {std::pair{"bias", kEpilogueBias}, {"residual", kEpilogueResidual}}) {
      if (p.info(i).name == name && p.has(i) != ((p.variant().epilogue & bit) != 0))
        return std::string(name) + " does not fit the epilogue";
    }
  }
  return "";
}

std::string problem_of(const Program& program, const Phase& phase, int32_t trip) {
  const OpCodeInfo& info = info_of(program.variants[phase.variant].code);
  PhaseView p(program, phase, trip);
  if (std::string problem = variant_problem(p.variant()); !problem.empty()) return problem;
  if (std::string problem = p.bind(); !problem.empty()) return problem;
  if (info.parts & kHasEpilogue) {
    if (std::string problem = check_epilogue(p); !problem.empty()) return problem;
  }
  const std::string problem = p.variant().code == OpCode::kGeneric ? check_generic(p)
                              : info.check                         ? info.check(p)
                                                                   : "";
  if (!problem.empty()) return problem;
  if (!info.grid) return phase.grid == kNone ? "" : "a kernel's grid is its own";
  const Expr tiles = info.grid(p);
  return phase.grid != kNone && program.vals[phase.grid].e == tiles ? "" : "its grid is not " + tiles.str();
}

}  // namespace

void check_phases(const Program& program, Report& report) {
  for (std::size_t i = 0; i < program.phases.size(); ++i) {
    const Phase& phase = program.phases[i];
    const int32_t trips = phase.repeat == kNone ? 1 : program.repeats[phase.repeat].trips;
    for (int32_t trip = 0; trip < trips; ++trip) {
      std::string problem;
      try {
        problem = problem_of(program, phase, trip);
      } catch (const Error& e) {  // of a kernel that refuses
        problem = e.what();
      }
      const std::string place = "phase " + std::to_string(i) + " (" +
                                std::string(name_of(program.variants[phase.variant].code)) + ", trip " +
                                std::to_string(trip) + ")";
      report.check(problem.empty(), place, problem);
    }
  }
}

}  // namespace ark::validation
