#include "engine/program/phase_view.h"

#include <algorithm>

#include "base/index.h"
#include "engine/program/kv_codec.h"
#include "engine/program/unroll.h"
#include "engine/program/weight_codec.h"

namespace ark {
PhaseView::PhaseView(const Program& program, const Phase& phase, int32_t trip)
    : program_(program), phase_(phase), variant_(program.variants[phase.variant]), trip_(trip) {
  for (const Operand& o : phase.operands) operands_.push_back(resolve(program, phase, o, trip));
}

Shape PhaseView::shape(std::size_t i) const { return sizes(program_, buffer(i)); }

std::string PhaseView::bind_roles() {
  const std::vector<OperandInfo>& all = info_of(variant_.code).operands;
  const auto many =
      std::find_if(all.begin(), all.end(), [](const OperandInfo& o) { return o.flags & kMany; });
  const std::size_t fixed = all.size() - (many != all.end());
  const bool enough = many == all.end() ? count() == fixed
                      : variant_.code == OpCode::kRecvReduce
                          ? count() > fixed && count() < fixed + at(program_.ranks)
                      : many->kind == OperandKind::kInbox ? count() == fixed + at(program_.ranks) - 1
                                                          : count() >= fixed;
  if (!enough) return "has " + std::to_string(count()) + " operands, which are too few or too many";
  infos_.clear();
  for (const OperandInfo& o : all) {
    const std::size_t copies = o.flags & kMany ? count() - fixed : 1;
    infos_.insert(infos_.end(), copies, &o);
  }
  return "";
}

std::string PhaseView::bind_sizes(std::size_t operand) {
  const OperandInfo& info = *infos_[operand];
  Shape shape = this->shape(operand);
  if (info.kind == OperandKind::kTable && shape.size() == 2 && weight(operand).layout == Layout::kPanels)
    std::swap(shape[0], shape[1]);
  std::vector<std::string_view> words;
  for (std::string_view rest = info.dims; !rest.empty();) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    words.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  const std::string problem =
      in_single_quotes(info.name) + " is " + str(shape) + ", not [" + std::string(info.dims) + "]";
  const bool open = std::find(words.begin(), words.end(), "...") != words.end();
  if (open ? shape.size() + 1 < words.size() : shape.size() != words.size()) return problem;
  auto size = shape.begin();
  for (const std::string_view word : words) {
    if (word == "...") {
      const Shape dims(size, size + std::ssize(shape) - (std::ssize(words) - 1));
      if (has_leading_ && !(leading_ == dims)) return problem;
      leading_ = dims;
      has_leading_ = true;
      size += std::ssize(dims);
      continue;
    }
    const bool is_symbol = word[0] >= 'a' && word[0] <= 'z';
    const Expr& wanted =
        is_symbol ? Expr::symbol(std::string(word)) : sizes_.try_emplace(word, *size).first->second;
    if (!(*size++ == wanted)) return problem;
  }
  return "";
}

bool PhaseView::is_kind(std::size_t i) const {
  using enum OperandKind;
  const Buffer& b = buffer(i);
  const bool is_weight = b.kind == BufferKind::kWeight;
  const bool is_panels = is_weight && weight(i).layout == Layout::kPanels;
  const bool is_pages = b.kind == BufferKind::kKvPage, is_inbox = b.kind == BufferKind::kInbox;
  const bool is_f32 = b.dtype == DType::kF32, is_kv = kv_codec_of(b.dtype) != nullptr;
  const bool is_dense = !is_pages && !is_inbox && !is_panels;
  switch (infos_[i]->kind) {
    case kInput:
      return is_dense && is_f32;
    case kIndices:
      return is_dense && (b.dtype == DType::kI32 || b.dtype == DType::kI64);
    case kVector:
      return is_weight && !is_panels && is_f32;
    case kPanels:
      return is_panels;
    case kTable:
      return is_weight && codec_of(b.dtype);
    case kKeys:
    case kValues:
      return is_pages && is_kv && b.is_value == (infos_[i]->kind == kValues);
    case kInbox: {
      // Of peers in rank order; where there are as many as peers, of all.
      if (!is_inbox || !is_f32 || program_.channels[b.channel].peer == program_.rank) return false;
      if (infos_[i - 1]->kind != kInbox) return true;
      return has(i - 1) && buffer(i - 1).kind == BufferKind::kInbox &&
             program_.channels[buffer(i - 1).channel].peer < program_.channels[b.channel].peer;
    }
    case kOutput:
      return is_f32 && b.alias == kNone &&
             (b.kind == BufferKind::kAct || b.kind == BufferKind::kOutput || operands_[i] == program_.logits);
    case kAnything:
      return true;
  }
  return false;
}

std::string PhaseView::bind() {
  if (std::string problem = bind_roles(); !problem.empty()) return problem;
  for (std::size_t i = 0; i < count(); ++i) {
    if (!has(i) && !(infos_[i]->flags & kOptional)) return in_single_quotes(infos_[i]->name) + " is absent";
    if (!has(i)) continue;
    if (!is_kind(i)) return in_single_quotes(infos_[i]->name) + " is of another kind or type";
    if (infos_[i]->dims.empty()) continue;
    if (std::string problem = bind_sizes(i); !problem.empty()) return problem;
  }
  return "";
}

}  // namespace ark
