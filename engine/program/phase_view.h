// A phase against the row of its OpCode: which operand is which, and what the names of sizes stand for.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/program/opcodes.h"

namespace ark {

// A phase in one trip with its operands found, as the table's functions see it.
class PhaseView {
 public:
  PhaseView(const Program& program, const Phase& phase, int32_t trip);

  // Gives each operand its role and each name of a dim its size. What does not fit, or empty.
  std::string bind();

  const Program& program() const { return program_; }
  const Phase& phase() const { return phase_; }
  const Variant& variant() const { return variant_; }
  int32_t trip() const { return trip_; }
  std::size_t count() const { return operands_.size(); }
  bool has(std::size_t i) const { return operands_[i] != kNone; }
  BufferId id(std::size_t i) const { return operands_[i]; }
  const std::vector<BufferId>& ids() const { return operands_; }  // kNone: absent
  const Buffer& buffer(std::size_t i) const { return program_.buffers[operands_[i]]; }
  const WeightUse& weight(std::size_t i) const { return program_.weights[buffer(i).weight]; }
  Shape shape(std::size_t i) const;
  // After bind().
  const OperandInfo& info(std::size_t i) const { return *infos_[i]; }
  const Expr& operator[](std::string_view dim) const { return sizes_.at(dim); }
  Expr leading() const { return element_count(leading_); }  // product of "..."

 private:
  std::string bind_roles();
  bool is_kind(std::size_t operand) const;
  std::string bind_sizes(std::size_t operand);

  const Program& program_;
  const Phase& phase_;
  const Variant& variant_;
  const int32_t trip_;
  std::vector<BufferId> operands_;
  std::vector<const OperandInfo*> infos_;
  std::map<std::string_view, Expr> sizes_;
  Shape leading_;
  bool has_leading_ = false;
};

}  // namespace ark
