// Longer than most: every exporter's spelling of one loop, behind one meaning.
// The expert loop as exporters unroll it. For each expert e of a mixture: the places (token, slot) whose choice is e
// (OneHot of the router's choices, NonZero), the tokens' rows, their products with e's own weights, times the slot's
// share, scattered onto zeros; all of that added up. As one product for all experts it says the same: each place has
// one expert, so that its row meets the weights of this one only, and is added to its token once.
#include "importer/decoder/expert_loops.h"

#include <algorithm>

#include "base/ir/keys.h"
#include "base/ir/pointwise_host.h"
#include "importer/op_importer.h"
#include "importer/passes/match.h"

namespace ark::decoder {
namespace {

using passes::made_by;

// Where tokens chose this expert.
struct ExpertPlaces {
  ValueId indices = kNoValue;  // NonZero's result [2, places]
  ValueId choices = kNoValue;  // i64 [tokens, slots], all different in a row
  int64_t expert = 0;
  int token_row = 0;  // of the indices; the other one holds slots
};

// What one expert adds to the sum.
struct Addend {
  ExpertPlaces places;
  ValueId rows = kNoValue;    // [..., tokens, features], of which some are taken
  ValueId shares = kNoValue;  // [tokens, slots]
  ValueId result = kNoValue;  // [places, features], before the shares
};

class ExpertLoops {
 public:
  explicit ExpertLoops(Graph& graph) : graph_(graph) {}

  bool run() {
    bool changed = false;
    const std::size_t count = graph_.nodes.size();
    for (std::size_t n = count; n-- > 0;) {  // the whole sum before its parts
      const Op op = graph_.nodes[n].op;
      if (graph_.nodes[n].removed || !(op == Op::kAdd || op == Op::kScatterElements || op == Op::kScatterND))
        continue;
      const ValueId sum = graph_.nodes[n].outputs[0];
      std::vector<Addend> terms;
      if (!collect(sum, terms) || !is_mixture(terms)) continue;
      name_ = graph_.nodes[n].name;
      const ValueId replacement = mixture(terms);
      if (replacement == kNoValue) continue;
      graph_.replace_uses(sum, replacement);
      graph_.remove_dead();
      changed = true;
    }
    if (changed) graph_.sort();
    return changed;
  }

 private:
  const Shape* shape(ValueId id) const { return graph_.value(id).shape ? &*graph_.value(id).shape : nullptr; }
  ValueId emit(Op op, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return ark::emit(graph_, op, name_, std::move(inputs), std::move(attributes))[0];
  }

  // As many as `n` whenever there are some.
  static bool is_count(const Expr& e, const Expr& n) {
    for (const int64_t places : {1, 2, 7}) {
      SymbolValues values;
      for (const Expr& one : {e, n})
        for (const std::string& s : one.symbols()) values[s] = 5;
      const auto name = n.as_symbol();
      if (!name) return false;
      values[*name] = places;
      const auto size = e.try_evaluate(values);
      if (!size || *size != places) return false;
    }
    return true;
  }

  bool is_zeros(ValueId id) const {
    if (const Node* expand = made_by(graph_, id, Op::kExpand)) id = expand->inputs[0];
    if (const Node* fill = made_by(graph_, id, Op::kConstantOfShape))
      return fill->attributes.has(key::kValue) && fill->attributes.get(key::kValue).real(0) == 0;
    const ConstantPtr& c = graph_.value(id).constant;
    return c && c->is_small() && passes::is_all(*c, 0);
  }

  std::optional<int64_t> integer(ValueId id) const {
    const auto number = passes::number(graph_, id);
    return number ? std::optional(static_cast<int64_t>(*number)) : std::nullopt;
  }

  // `choices` [tokens, slots] of OneHot(choices, depth, {0, 1}), also as Equal(choices, 0 .. depth - 1).
  ValueId hot_choices(ValueId id, int64_t& depth) const {
    const Node* hot = graph_.producer(id);
    while (hot && hot->op == Op::kCast) hot = graph_.producer(hot->inputs[0]);
    if (hot && hot->op == Op::kOneHot) {
      const ConstantPtr& values = graph_.value(hot->inputs[2]).constant;
      if (!values || values->size() != 2 || hot->attributes.get(key::kAxis) != 2) return kNoValue;
      const Tensor ends = materialise(*values);
      depth = integer(hot->inputs[1]).value_or(0);
      return ends.real(0) == 0 && ends.real(1) == 1 ? hot->inputs[0] : kNoValue;
    }
    const Node* column =
        hot && hot->op == Op::kEqual ? made_by(graph_, hot->inputs[0], Op::kReshape) : nullptr;
    const ConstantPtr* experts = column ? &graph_.value(hot->inputs[1]).constant : nullptr;
    if (!experts || !*experts || (*experts)->dims.empty() || (*experts)->dims.back() != (*experts)->size())
      return kNoValue;
    const Shape *from = shape(column->inputs[0]), *to = shape(hot->inputs[0]);
    if (!from || !to || from->size() != 2 || *to != Shape{(*from)[0], (*from)[1], 1}) return kNoValue;
    const Tensor numbers = materialise(**experts);
    for (depth = 0; depth < numbers.size(); ++depth)
      if (numbers.integer(depth) != depth) return kNoValue;
    return column->inputs[0];
  }

  // NonZero(OneHot(choices, experts, {0, 1}) turned to [experts, ...] at one expert).
  std::optional<ExpertPlaces> places_of(ValueId indices) const {
    const Node& nonzero = *graph_.producer(indices);
    ValueId mask = nonzero.inputs[0];
    while (const Node* node = graph_.producer(mask)) {
      if (node->op != Op::kCast && node->op != Op::kReshape) break;
      if (node->op == Op::kReshape && shape(node->inputs[0]) && shape(node->inputs[0])->size() != 3) break;
      mask = node->inputs[0];
    }
    const Node* pick = made_by(graph_, mask, Op::kGather);
    const Node* turn = pick ? made_by(graph_, pick->inputs[0], Op::kTranspose) : nullptr;
    if (!turn || pick->attributes.get(key::kAxis) != 0 || !shape(nonzero.inputs[0]) ||
        shape(nonzero.inputs[0])->size() != 2)
      return std::nullopt;
    const auto& perm = turn->attributes.get(key::kPerm);
    const auto expert = integer(pick->inputs[1]);
    int64_t depth = 0;
    const ValueId choices = hot_choices(turn->inputs[0], depth);
    // TopK's differ in a row.
    const Node* top = choices == kNoValue ? nullptr : made_by(graph_, choices, Op::kTopK);
    if (perm.size() != 3 || perm[0] != 2 || !expert || !top || top->outputs[1] != choices ||
        top->attributes.get(key::kAxis) != 1 || *expert < 0 || *expert >= depth)
      return std::nullopt;
    return ExpertPlaces{indices, choices, *expert, perm[1] == 0 ? 0 : 1};
  }

  // The row of NonZero's result that a list of indices is, whatever ones stand beside its length.
  ValueId list(ValueId id, int& row) const {
    const Node* node = graph_.producer(id);
    while (node && (node->op == Op::kReshape || node->op == Op::kCast))
      node = graph_.producer(id = node->inputs[0]);
    const bool slice = node && node->op == Op::kSlice && node->attributes.has(key::kStarts) && shape(id) &&
                       node->attributes.get(key::kAxes).size() == 1;
    if (!node || (node->op != Op::kSplit && node->op != Op::kGather && !slice)) return kNoValue;
    const int64_t axis = slice ? node->attributes.get(key::kAxes)[0] : node->attributes.get(key::kAxis);
    if (slice) {
      const auto start = node->attributes.get(key::kStarts)[0].constant();
      if (!start || *start < 0 || *start > 1 || !(*shape(id))[static_cast<std::size_t>(axis)].is_constant(1))
        return kNoValue;
      row = static_cast<int>(*start);
    } else if (node->op == Op::kSplit) {
      row =
          static_cast<int>(std::find(node->outputs.begin(), node->outputs.end(), id) - node->outputs.begin());
      if (node->outputs.size() != 2) return kNoValue;
    } else {
      const auto index = integer(node->inputs[1]);
      if (!index || *index < -2 || *index > 1) return kNoValue;
      row = static_cast<int>((*index + 2) % 2);
    }
    const Node* turn = made_by(graph_, node->inputs[0], Op::kTranspose);
    const Node* nonzero = made_by(graph_, turn ? turn->inputs[0] : node->inputs[0], Op::kNonZero);
    return nonzero && axis == (turn ? 1 : 0) ? nonzero->outputs[0] : kNoValue;
  }
  bool is_list(ValueId id, const ExpertPlaces& places, bool tokens) const {
    int row = 0;
    return list(id, row) == places.indices && (row == places.token_row) == tokens;
  }

  // A Transpose that leaves all elements where they are.
  bool moves_ones(const Node& node) const {
    const Shape* from = node.op == Op::kTranspose ? shape(node.inputs[0]) : nullptr;
    if (!from) return false;
    std::vector<int64_t> kept = node.attributes.get(key::kPerm);
    std::erase_if(kept, [&](int64_t axis) { return (*from)[static_cast<std::size_t>(axis)].is_constant(1); });
    return std::ranges::is_sorted(kept);
  }

  // `rows` of Gather(rows, tokens of the places), as [places, features].
  bool takes_rows(ValueId id, const ExpertPlaces& places, ValueId& rows) const {
    const Node* node = graph_.producer(id);
    while (node && (node->op == Op::kReshape || moves_ones(*node))) node = graph_.producer(node->inputs[0]);
    if (!node || node->op != Op::kGather || !is_list(node->inputs[1], places, true)) return false;
    const Shape *data = shape(node->inputs[0]), *tokens = shape(places.choices), *own = shape(id);
    const auto axis = static_cast<std::size_t>(node->attributes.get(key::kAxis));
    if (!data || !tokens || !own || own->size() != 2 || data->size() < axis + 2 ||
        !(own->back() == data->back()) || !((*data)[axis] == tokens->front()))
      return false;
    for (std::size_t i = 0; i + 1 < data->size(); ++i)
      if (i != axis && !(*data)[i].is_constant(1)) return false;
    rows = node->inputs[0];
    return true;
  }

  // `shares` of Gather(shares as one list, slot + token * slots) or GatherND(shares, (token, slot)).
  bool takes_shares(ValueId id, const ExpertPlaces& places, ValueId& shares) const {
    const Node* node = graph_.producer(id);
    while (node && node->op == Op::kReshape) node = graph_.producer(node->inputs[0]);
    const bool pairs = node && node->op == Op::kGatherND && node->attributes.get_or(key::kBatchDims, 0) == 0;
    const Node* flat =
        node && (pairs || node->op == Op::kGather) ? made_by(graph_, node->inputs[0], Op::kReshape) : nullptr;
    if (!flat || (!pairs && node->attributes.get(key::kAxis) != 0)) return false;
    const Shape *given = shape(flat->inputs[0]), *choices = shape(places.choices), *own = shape(id);
    if (!given || !choices || !(*given == *choices) || !own || own->size() != 2 ||
        !own->back().is_constant(1))
      return false;
    if (pairs) {
      const Node* both = made_by(graph_, node->inputs[1], Op::kConcat);
      const Shape* at = shape(node->inputs[0]);
      shares = flat->inputs[0];
      return both && both->inputs.size() == 2 && at && *at == Shape{(*given)[0], (*given)[1], 1} &&
             both->attributes.get(key::kAxis) == 1 && is_list(both->inputs[0], places, true) &&
             is_list(both->inputs[1], places, false);
    }
    const Node* add = made_by(graph_, node->inputs[1], Op::kAdd);
    for (const std::size_t side : {0, 1}) {
      const Node* mul = add ? made_by(graph_, add->inputs[side], Op::kMul) : nullptr;
      if (!mul || !is_list(add->inputs[1 - side], places, false)) continue;
      for (const std::size_t factor : {0, 1}) {
        const auto slots = integer(mul->inputs[factor]);
        if (!slots || !choices->back().is_constant(*slots) || !is_list(mul->inputs[1 - factor], places, true))
          continue;
        shares = flat->inputs[0];
        return true;
      }
    }
    return false;
  }

  // What is repeated along the places not at all, and along features only where there is one of them.
  ValueId behind_expand(ValueId id, const Expr& places) const {
    const Node* expand = made_by(graph_, id, Op::kExpand);
    if (!expand) return id;
    const Shape *to = shape(id), *from = shape(expand->inputs[0]);
    const bool fits = to && from && to->size() == 2 && from->size() == 2 && is_count(to->front(), places) &&
                      is_count(from->front(), places);
    return fits ? expand->inputs[0] : kNoValue;
  }

  // ScatterElements(onto, tokens of the places, result * shares) along tokens, or ScatterND of whole rows.
  std::optional<Addend> term_of(const Node& scatter) const {
    const bool whole_rows = scatter.op == Op::kScatterND;
    if (!whole_rows && scatter.attributes.get(key::kAxis) != 0) return std::nullopt;
    ValueId at = scatter.inputs[1];
    const Node* expand = made_by(graph_, at, Op::kExpand);
    int row = 0;
    const ValueId indices = whole_rows ? list(at, row) : expand ? list(expand->inputs[0], row) : kNoValue;
    const auto places = indices == kNoValue ? std::nullopt : places_of(indices);
    if (!places || row != places->token_row || !shape(indices)) return std::nullopt;
    const Expr count = shape(indices)->back();
    at = behind_expand(at, count);
    if (at == kNoValue || !shape(at)->back().is_constant(1)) return std::nullopt;
    const ValueId added = behind_expand(scatter.inputs[2], count);
    const Shape* features = added == kNoValue ? nullptr : shape(added);
    const Shape* whole = shape(scatter.inputs[0]);
    const Node* mul = added == kNoValue ? nullptr : made_by(graph_, added, Op::kMul);
    if (!mul || !whole || !features || features->size() != 2 || !(features->back() == whole->back()) ||
        (!whole_rows && !(shape(scatter.inputs[1])->back() == whole->back())) || whole->size() != 2)
      return std::nullopt;
    Addend term{.places = *places};
    for (const std::size_t side : {0, 1})
      if (takes_shares(mul->inputs[side], *places, term.shares)) term.result = mul->inputs[1 - side];
    return term.result == kNoValue ? std::nullopt : std::optional(term);
  }

  // The terms of a sum that begins with zeros; false if there is anything else in it.
  bool collect(ValueId sum, std::vector<Addend>& terms) const {
    std::vector<ValueId> work{sum};
    while (!work.empty()) {
      const ValueId id = work.back();
      work.pop_back();
      if (is_zeros(id)) continue;
      const Node* node = graph_.producer(id);
      if (!node) return false;
      if (node->op == Op::kAdd) {
        work.insert(work.end(), node->inputs.begin(), node->inputs.end());
        continue;
      }
      if (node->op != Op::kScatterElements && node->op != Op::kScatterND) return false;
      const std::string reduction = node->attributes.get_or(key::kReduction, "none");
      const auto term = term_of(*node);
      if (!term || (reduction != "add" && (reduction != "none" || !is_zeros(node->inputs[0])))) return false;
      terms.push_back(*term);
      if (reduction == "add") work.push_back(node->inputs[0]);
    }
    return !terms.empty();
  }

  // Of all experts once, by the same router.
  bool is_mixture(std::vector<Addend>& terms) const {
    std::sort(terms.begin(), terms.end(),
              [](const Addend& a, const Addend& b) { return a.places.expert < b.places.expert; });
    const Shape* width = shape(graph_.producer(terms[0].places.choices)->inputs[0]);
    if (!width || !width->back().is_constant(std::ssize(terms))) return false;
    for (std::size_t e = 0; e < terms.size(); ++e)
      if (terms[e].places.expert != static_cast<int64_t>(e) ||
          terms[e].places.choices != terms[0].places.choices || terms[e].shares != terms[0].shares)
        return false;
    return true;
  }

  // The products of all experts for all places, [tokens, slots, features], from their values [places, features];
  // kNoValue where experts do not compute alike. `shares`: the sum over slots instead, for a product.
  ValueId of_all(const std::vector<Addend>& terms, const std::vector<ValueId>& values, ValueId shares) {
    const ExpertPlaces& first = terms[0].places;
    ValueId rows = kNoValue;
    if (takes_rows(values[0], first, rows)) {
      for (std::size_t e = 1; e < terms.size(); ++e)
        if (ValueId other = kNoValue; !takes_rows(values[e], terms[e].places, other) || other != rows)
          return kNoValue;
      const Shape flat{shape(first.choices)->front(), shape(rows)->back()};
      return *shape(rows) == flat ? rows : emit(Op::kReshape, {rows}, {{key::kShape, flat}});
    }
    const Node* node = graph_.producer(values[0]);
    if (!node || (node->op != Op::kMatMul && !is_pointwise(node->op)) || node->outputs.size() != 1)
      return kNoValue;
    const Node alike = *node;  // nodes move as others are added
    for (const ValueId value : values) {
      const Node* own = graph_.producer(value);
      if (!own || own->op != alike.op || own->inputs.size() != alike.inputs.size() ||
          own->attributes.values() != alike.attributes.values())
        return kNoValue;
    }
    return alike.op == Op::kMatMul ? product(terms, values, alike, shares)
                                   : elementwise(terms, values, alike);
  }

  std::vector<ValueId> operands(const std::vector<ValueId>& values, std::size_t i) const {
    std::vector<ValueId> result;
    for (const ValueId value : values) result.push_back(graph_.producer(value)->inputs[i]);
    return result;
  }
  // All of them, of one type and shape.
  bool are_constants(const std::vector<ValueId>& values, std::size_t rank) const {
    return std::all_of(values.begin(), values.end(), [&](ValueId id) {
      const Value &v = graph_.value(id), &first = graph_.value(values[0]);
      return v.constant && v.dtype == first.dtype && v.constant->dims.size() == rank &&
             v.constant->dims == first.constant->dims;
    });
  }

  ValueId product(const std::vector<Addend>& terms, const std::vector<ValueId>& values, const Node& like,
                  ValueId shares) {
    const std::vector<ValueId> weights = operands(values, 1);
    if (!are_constants(weights, 2) || like.attributes.get_or(key::kTransA, 0) != 0) return kNoValue;
    const ValueId x = of_all(terms, operands(values, 0), kNoValue);
    if (x == kNoValue) return kNoValue;
    const bool turned = like.attributes.get_or(key::kTransB, 0) != 0;
    std::vector<ValueId> inputs{x, terms[0].places.choices, shares};
    for (const ValueId w : weights)
      inputs.push_back(turned ? w : graph_.add_constant(transposed(graph_.value(w).constant, {1, 0})));
    return emit(Op::kExpertMatMul, inputs);
  }

  ValueId elementwise(const std::vector<Addend>& terms, const std::vector<ValueId>& values,
                      const Node& like) {
    std::vector<ValueId> inputs;
    for (std::size_t i = 0; i < like.inputs.size(); ++i) {
      if (like.inputs[i] == kNoValue) {
        inputs.push_back(kNoValue);
        continue;
      }
      const std::vector<ValueId> own = operands(values, i);
      const bool is_same = std::all_of(own.begin(), own.end(), [&](ValueId id) { return id == own[0]; });
      if (is_same && are_constants({own[0]}, 0))
        inputs.push_back(own[0]);
      else if (are_constants(own, 1))
        inputs.push_back(emit(Op::kGather, {stacked(own), terms[0].places.choices}, {{key::kAxis, 0}}));
      else
        inputs.push_back(of_all(terms, own, kNoValue));
      if (inputs.back() == kNoValue) return kNoValue;
    }
    return emit(like.op, inputs, like.attributes);
  }

  // Vectors, one an expert, as the rows of a table.
  ValueId stacked(const std::vector<ValueId>& vectors) {
    const Constant& first = *graph_.value(vectors[0]).constant;
    Tensor table = Tensor::empty(DType::kF32, {std::ssize(vectors), first.size()});
    for (std::size_t e = 0; e < vectors.size(); ++e) {
      const Tensor one = materialise(*graph_.value(vectors[e]).constant);
      load_f32(one.dtype, one.data.get(), 0, 1, one.size(),
               table.as<float>() + static_cast<int64_t>(e) * first.size());
    }
    return graph_.add_constant(make_constant(std::move(table), first.name));
  }

  // [tokens, features]
  ValueId mixture(const std::vector<Addend>& terms) {
    std::vector<ValueId> results;
    for (const Addend& term : terms) results.push_back(term.result);
    const Node* last = graph_.producer(results[0]);
    const bool ends_in_product = last && last->op == Op::kMatMul;
    const ValueId y = of_all(terms, results, ends_in_product ? terms[0].shares : kNoValue);
    if (y == kNoValue || ends_in_product) return y;
    Shape column = *shape(terms[0].shares);
    column.emplace_back(1);
    const ValueId shares = emit(Op::kReshape, {terms[0].shares}, {{key::kShape, column}});
    return emit(Op::kReduceSum, {emit(Op::kMul, {y, shares})},
                {{key::kAxes, std::vector<int64_t>{1}}, {key::kKeepdims, 0}});
  }

  Graph& graph_;
  std::string name_;  // of what is emitted
};

}  // namespace

bool gather_expert_loops(Graph& graph) { return ExpertLoops(graph).run(); }

}  // namespace ark::decoder
