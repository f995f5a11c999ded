// Row values as linear combinations: each element as at most two terms factor * base element * table column,
// where a table is read at the position. Sees through movement, sums, signs and factors; this is what rotary
// embedding is made of, however an exporter spells it.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "importer/decoder/origins.h"
#include "importer/decoder/token_builder.h"

namespace ark::decoder {

struct Term {
  double factor = 1;
  Origin base;               // not looked into further
  ValueId table = kNoValue;  // rows of a constant gathered at the position; kNoValue: no table
  int64_t column = 0;
  bool operator==(const Term&) const = default;
};

struct Form {
  std::array<Term, 2> terms;
  int count = 0;
  bool has_table() const { return terms[0].table != kNoValue; }
  bool operator==(const Form& o) const {
    return count == o.count && terms[0] == o.terms[0] && (count < 2 || terms[1] == o.terms[1]);
  }
};
using Forms = std::vector<Form>;

// Short-lived: memoises whole rows. The builder must outlive it and not change what was asked for.
class LinearForms {
 public:
  explicit LinearForms(const TokenBuilder& out) : out_(out), origins_(out.graph) {}
  const Forms& of(ValueId id);

 private:
  Forms compute(ValueId id);
  Forms itself(ValueId id) const;
  std::optional<Forms> sum(ValueId id, const Node& node);
  std::optional<Forms> product(ValueId id, const Node& node);
  // Table and column of each element of a row, if it is nothing but table.
  std::optional<std::vector<std::pair<ValueId, int64_t>>> columns(ValueId id);
  std::optional<double> scalar(ValueId id) const;

  const TokenBuilder& out_;
  Origins origins_;
  std::unordered_map<ValueId, Forms> known_;
};

// All elements one base element each with one common factor.
struct Scaled {
  double factor = 1;
  std::vector<Origin> elements;
};
std::optional<Scaled> as_scaled(const Forms& forms);

}  // namespace ark::decoder
