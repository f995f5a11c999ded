#include "engine/partition/search.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>

#include "base/error.h"
#include "base/index.h"
#include "engine/partition/op_rule.h"

namespace ark {
namespace {

constexpr std::size_t kBeam = 64;

// A value that is still read later, or a constant held in some form already.
struct Live {
  ValueId value;
  FormMask forms;
};

struct State {
  std::vector<Live> live;  // ascending by value
  double seconds = 0;
  int32_t parent = -1, choice = -1;  // in the previous generation, and of the node between

  std::vector<Live>::iterator place_of(ValueId value) {
    return std::lower_bound(live.begin(), live.end(), value,
                            [](const Live& l, ValueId v) { return l.value < v; });
  }
};

struct Option {
  NodeChoice choice;
  double seconds = 0;
};

class Search {
 public:
  Search(const Graph& graph, const AxisGroups& groups, const CostModel& costs)
      : graph_(graph),
        groups_(groups),
        costs_(costs),
        per_held_byte_(held_byte_price(costs, graph)),
        last_use_(graph.values.size(), -1),
        bytes_(graph.values.size()) {
    for (std::size_t v = 0; v < graph.values.size(); ++v) {
      bytes_[v] = priced_bytes(costs, graph, static_cast<ValueId>(v));
    }
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const ValueId v : graph.nodes[n].inputs) {
        if (v != kNoValue) last_use_[v] = static_cast<int64_t>(n);
      }
    }
    for (const ValueId v : graph.outputs) last_use_[v] = static_cast<int64_t>(graph.nodes.size());
  }

  Choices run();

 private:
  std::vector<Option> options(const Node& node) const;
  bool fill(const Node& node, const Loop& loop, NodeChoice& choice) const;
  // A rank's part of a value. How evenly units can be dealt depends on the real mesh (9 heads are uneven on 2
  // ranks, not on 3; kv heads may be shared), and must not change the plan.
  static double share(Form form) { return is_split(form) ? 1.0 / kReferenceRanks : 1; }
  void price(const Node& node, Option& option) const;
  double conversion_seconds(ValueId value, const Conversion& c) const;
  // False if an operand cannot be had in the form that the option wants.
  bool apply(const Node& node, int64_t index, const Option& option, State& state) const;
  bool take(ValueId value, Form want, State& state) const;
  static void prune(std::vector<State>& states);

  const Graph& graph_;
  const AxisGroups& groups_;
  const CostModel& costs_;
  const double per_held_byte_;
  std::vector<int64_t> last_use_;
  std::vector<double> bytes_;
};

bool Search::fill(const Node& node, const Loop& loop, NodeChoice& choice) const {
  choice.sums = loop.sums;
  bool any = false;
  const auto form = [&](ValueId value, int axis) -> std::optional<Form> {
    if (value == kNoValue || axis < 0) return kWhole;
    if (axis > 28 || groups_.group(value, axis) == kNoGroup) return std::nullopt;
    any = true;
    return split_form(axis);
  };
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const auto f = form(node.inputs[i], loop.inputs[i]);
    if (!f) return false;
    // Elements that ranks share would be counted twice.
    if (loop.sums && is_split(*f) && groups_.shares(groups_.group(node.inputs[i], loop.inputs[i])))
      return false;
    choice.inputs.push_back(*f);
  }
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const auto f = form(node.outputs[i], loop.outputs[i]);
    if (!f) return false;
    choice.outputs.push_back(loop.sums ? kPartialSum : *f);
  }
  return any;
}

std::vector<Option> Search::options(const Node& node) const {
  std::vector<Option> options;
  options.push_back(
      {{std::vector<Form>(node.inputs.size(), kWhole), std::vector<Form>(node.outputs.size(), kWhole)}});
  if (rule_of(node.op).moves && !node.inputs.empty()) {
    Option sum = options[0];
    sum.choice.inputs[0] = kPartialSum;
    std::fill(sum.choice.outputs.begin(), sum.choice.outputs.end(), kPartialSum);
    options.push_back(sum);
  }
  for (const Loop& loop : loops_of(graph_, node)) {
    Option option;
    if (fill(node, loop, option.choice)) options.push_back(std::move(option));
  }
  for (Option& option : options) price(node, option);
  return options;
}

void Search::price(const Node& node, Option& option) const {
  double part = 1;  // of the work that a rank does
  const auto operand = [&](ValueId value, Form form) {
    if (value == kNoValue) return;
    const double own = share(form);
    if (is_split(form)) part = std::min(part, own);
    if (node.op == Op::kGather) return;  // a few rows of the table
    if (is_pointwise(node.op)) return;   // rides in an epilogue: its operands are in registers
    const double rate = graph_.value(value).constant ? costs_.per_weight_byte : costs_.per_activation_byte;
    option.seconds += bytes_[value] * own * rate;
  };
  for (std::size_t i = 0; i < node.inputs.size(); ++i) operand(node.inputs[i], option.choice.inputs[i]);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) operand(node.outputs[i], option.choice.outputs[i]);
  option.seconds += priced_flops(costs_, graph_, node) * part * costs_.per_flop;
}

double Search::conversion_seconds(ValueId value, const Conversion& c) const {
  const double bytes = bytes_[value];
  double seconds = 0;
  if (c.reduce) seconds += costs_.all_reduce(bytes, kReferenceRanks);
  if (is_split(c.gather)) seconds += costs_.all_gather(bytes, kReferenceRanks);
  if (c.slice) seconds += costs_.per_activation_byte * bytes;
  return seconds;
}

bool Search::take(ValueId value, Form want, State& state) const {
  const auto it = state.place_of(value);
  const bool found = it != state.live.end() && it->value == value;
  if (graph_.value(value).constant) {
    if (found && (it->forms & bit(want))) return true;
    if (rank_of(graph_, value) > 1) state.seconds += per_held_byte_ * bytes_[value] * share(want);
    if (found)
      it->forms |= bit(want);
    else
      state.live.insert(it, {value, bit(want)});
    return true;
  }
  const FormMask have = found ? it->forms : bit(kWhole);  // graph inputs are whole
  if (have & bit(want)) return true;
  if (want == kPartialSum) return false;
  const Conversion c = convert(have, want);
  if (is_split(c.gather) && groups_.shares(groups_.group(value, axis_of(c.gather)))) return false;
  state.seconds += conversion_seconds(value, c);
  const FormMask now = have | bit(kWhole) | bit(want);
  if (found)
    it->forms = now;
  else
    state.live.insert(it, {value, now});
  return true;
}

bool Search::apply(const Node& node, int64_t index, const Option& option, State& state) const {
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    if (node.inputs[i] != kNoValue && !take(node.inputs[i], option.choice.inputs[i], state)) return false;
  }
  state.seconds += option.seconds;
  std::erase_if(state.live, [&](const Live& l) { return last_use_[l.value] <= index; });
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId out = node.outputs[i];
    if (out == kNoValue || last_use_[out] <= index) continue;
    state.live.insert(state.place_of(out), {out, bit(option.choice.outputs[i])});
  }
  return true;
}

void Search::prune(std::vector<State>& states) {
  // One state per way in which live values lie, the cheapest; ties keep the order of generation.
  std::stable_sort(states.begin(), states.end(),
                   [](const State& a, const State& b) { return a.seconds < b.seconds; });
  std::unordered_map<std::string, bool> seen;
  std::vector<State> kept;
  for (State& state : states) {
    std::string key(state.live.size() * sizeof(Live), '\0');
    if (!key.empty()) std::memcpy(key.data(), state.live.data(), key.size());
    if (kept.size() < kBeam && seen.emplace(std::move(key), true).second) kept.push_back(std::move(state));
  }
  states = std::move(kept);
}

Choices Search::run() {
  std::vector<std::vector<State>> generations = {{State{}}};
  std::vector<std::vector<Option>> all_options;
  for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    all_options.push_back(options(node));
    std::vector<State> next;
    std::vector<State>& now = generations.back();
    for (std::size_t s = 0; s < now.size(); ++s) {
      for (std::size_t o = 0; o < all_options.back().size(); ++o) {
        State state = now[s];
        state.parent = static_cast<int32_t>(s);
        state.choice = static_cast<int32_t>(o);
        if (apply(node, static_cast<int64_t>(n), all_options.back()[o], state))
          next.push_back(std::move(state));
      }
    }
    prune(next);
    for (State& state : now) state.live.clear();  // only the way back is needed
    ARK_CHECK(!next.empty(), "no sharding of " + escaped(node.name));
    generations.push_back(std::move(next));
  }
  std::vector<State>& last = generations.back();
  for (State& state : last) {
    for (const ValueId v : graph_.outputs) {
      if (!graph_.value(v).constant && !take(v, kWhole, state)) state.seconds = 1e30;
    }
  }
  auto best = std::min_element(last.begin(), last.end(),
                               [](const State& a, const State& b) { return a.seconds < b.seconds; });
  Choices choices{std::vector<NodeChoice>(graph_.nodes.size()), best->seconds};
  int32_t s = static_cast<int32_t>(best - last.begin());
  for (std::size_t n = graph_.nodes.size(); n-- > 0;) {
    const State& state = generations[n + 1][s];
    choices.nodes[n] = all_options[n][state.choice].choice;
    s = state.parent;
  }
  return choices;
}

}  // namespace

Conversion convert(FormMask have, Form want) {
  Conversion c;
  if (have & bit(want)) return c;
  if (!(have & bit(kWhole))) {
    for (Form form = split_form(0); form < 32; ++form) {
      if (have & bit(form)) {
        c.gather = form;
        break;
      }
    }
    c.reduce = !is_split(c.gather);
  }
  c.slice = is_split(want);
  return c;
}

Choices search(const Graph& graph, const AxisGroups& groups, const CostModel& costs) {
  return Search(graph, groups, costs).run();
}

}  // namespace ark
