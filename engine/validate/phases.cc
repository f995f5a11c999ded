// Each phase against its OpCode's row of engine/program/opcodes.cc: operands, element types, sizes, grid, parameters.
#include <algorithm>

#include "base/error.h"
#include "base/index.h"
#include "base/ir/kernel.h"
#include "engine/program/expr_bound.h"
#include "engine/program/phase_view.h"
#include "engine/validate/validate.h"

namespace ark::validation {
namespace {

// Whether output sizes follow from input sizes and attributes alone.
bool is_static(const PhaseView& p, std::size_t inputs) {
  int present = 0;
  for (std::size_t i = 0; i < inputs; ++i) present += p.has(i);
  return follows_from_sizes(p.variant().op, present) || is_one_of(p.variant().op, {Op::kGather, Op::kRotary});
}

// Sizes and types of the operands against what the kernel says of them, at some sizes of the program's symbols.
std::string mismatch(const PhaseView& p, std::size_t inputs, const SymbolValues& values) {
  std::vector<TensorView> views(inputs);
  const auto dims_of = [&](std::size_t i) {
    Dims dims;
    for (const Expr& e : p.shape(i)) dims.push_back(e.evaluate(values));
    return dims;
  };
  for (std::size_t i = 0; i < inputs; ++i) {
    if (!p.has(i)) continue;
    views[i].dtype = p.buffer(i).dtype;
    for (const int64_t n : dims_of(i)) views[i].dims.at(at(views[i].rank++)) = n;
  }
  const std::vector<TensorView> results(p.count() - inputs);  // only their number counts
  const Attributes attributes = p.variant().attributes.evaluated(values);
  const std::vector<OutputType> types =
      find_kernel(p.variant().op)->shapes({p.variant().op, &attributes, views, results});
  for (std::size_t i = 0; i < std::min(types.size(), results.size()); ++i) {
    if (p.has(inputs + i) &&
        (types[i].dims != dims_of(inputs + i) || types[i].dtype != p.buffer(inputs + i).dtype))
      return "output " + std::to_string(i) + " is not what the kernel writes";
  }
  return types.size() < results.size() ? "more outputs than the kernel writes" : "";
}

// A kGeneric phase: what its kernel reads and writes. A decoder's sizes are asked for at the largest and at half of
// them, unless those of the outputs follow from the values of an input; a plain graph's may fit together only as they
// come (check_sizes).
std::string check_generic(const PhaseView& p) {
  const Variant& v = p.variant();
  if (v.outputs < 1 || at(v.outputs) > p.count()) return "number of outputs";
  const std::size_t inputs = p.count() - at(v.outputs);
  for (std::size_t i = 0; i < p.count(); ++i) {
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
  if (!find_kernel(v.op)) return "no kernel for " + std::string(name_of(v.op));
  if (!is_static(p, inputs) || p.program().logits == kNone) return "";
  SymbolValues values = greatest_symbols(p.program());
  if (std::string problem = mismatch(p, inputs, values); !problem.empty()) return problem;
  for (auto& [name, value] : values) value = (value + 1) / 2;
  try {
    return mismatch(p, inputs, values);
  } catch (const Error& error) {  // halves of sizes that only fit together as they are
    if (error.code() != Code::kBadModel) throw;
    return "";
  }
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

namespace ark {

void check_sizes(const Program& program, const SymbolValues& sizes) {
  const auto problem = [&](const PhaseView& p) -> std::string {
    if (p.variant().code != OpCode::kGeneric) return "";
    const std::size_t inputs = p.count() - at(p.variant().outputs);
    try {
      return validation::is_static(p, inputs) ? validation::mismatch(p, inputs, sizes) : "";
    } catch (const Error& e) {  // of a kernel that refuses
      return e.what();
    }
  };
  for (const Phase& phase : program.phases) {
    const int32_t trips = phase.repeat == kNone ? 1 : program.repeats[phase.repeat].trips;
    for (int32_t trip = 0; trip < trips; ++trip) {
      const std::string why = problem(PhaseView(program, phase, trip));
      if (why.empty()) continue;
      std::string all;
      for (const auto& [name, size] : sizes)
        all += (all.empty() ? "" : ", ") + escaped(name) + " " + std::to_string(size);
      throw Error(Code::kUnsupported, "no static program for these sizes (" + all + "): node " +
                                          escaped(phase.name) + ": " + why);
    }
  }
}

}  // namespace ark
