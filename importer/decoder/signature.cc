// Roles of a decoder's inputs and outputs: from edges and shapes, from names only where those leave a choice.
// Longer than most: one class, whose every step leaves to the next ones what it did not find.
#include <algorithm>
#include <cctype>
#include <set>

#include "base/error.h"
#include "base/ir/attention_operands.h"
#include "importer/decoder.h"
#include "importer/decoder/limits.h"
#include "importer/decoder/static_caches.h"
#include "importer/input_reach.h"

namespace ark {
namespace {

using decoder::kExportGrowing;

constexpr int64_t kMostTypes = 16;  // rows of a table of token types; one of positions has more
constexpr int kNever = -100;        // points of what an input cannot be, however much else speaks for it

bool has_word(const std::string& name, std::initializer_list<const char*> words) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return std::any_of(words.begin(), words.end(),
                     [&](const char* w) { return lower.find(w) != std::string::npos; });
}

std::size_t shared_suffix(const std::string& a, const std::string& b) {
  std::size_t n = 0;
  while (n < a.size() && n < b.size() && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  return n;
}

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), readers_(graph.consumers()) {}
  std::optional<DecoderSignature> find(std::string* why);

 private:
  const Value& input(std::size_t i) const { return graph_.value(graph_.inputs[i]); }
  bool used(std::size_t i) const {
    const ValueId id = graph_.inputs[i];
    return !readers_[id].empty() ||
           std::find(graph_.outputs.begin(), graph_.outputs.end(), id) != graph_.outputs.end();
  }
  static std::size_t rank(const Value& v) { return v.shape ? v.shape->size() : 0; }
  void find_caches();
  void pair_cache(std::size_t output);
  std::set<std::size_t> caches_behind(ValueId id) const;
  std::optional<DecoderSignature::Cache> cache_axes(std::size_t input, std::size_t output) const;
  void fix_batch_axes();
  bool is_state(std::size_t input) const;
  std::optional<std::size_t> state_behind(std::size_t output) const;
  bool is_made_of_ids(std::size_t output) const;
  void find_states();
  int64_t table_rows(std::size_t input) const;  // largest constant table that the input indexes; 0: none
  bool makes_angles(std::size_t input) const;
  bool find_ids();
  const std::string& output_name(std::size_t i) const {
    return i < graph_.output_names.size() ? graph_.output_names[i] : graph_.value(graph_.outputs[i]).name;
  }
  bool find_logits();
  bool gives_last_only() const;
  void find_lengths();
  struct Candidate {  // what an input may be, and what speaks for it
    std::size_t input;
    int mask = 0, positions = 0, types = 0;
    bool surely_positions = false;
  };
  bool are_several_positions(const Shape& shape) const;
  Candidate candidate(std::size_t input) const;
  void find_others();
  bool is_by_query(const Shape& mask) const;
  void claim_unread_mask();
  bool is_fixed_cache(std::size_t input) const;
  bool explain(std::string* why) const;

  const Graph& graph_;
  const std::vector<std::vector<NodeId>> readers_;
  DecoderSignature found_;
  std::vector<bool> known_ = std::vector<bool>(graph_.inputs.size(), false);
};

std::set<std::size_t> Finder::caches_behind(ValueId start) const {
  std::set<std::size_t> caches;
  std::vector<ValueId> work{start};
  std::set<ValueId> seen{start};
  const auto visit = [&](ValueId id) {
    if (id != kNoValue && seen.insert(id).second) work.push_back(id);
  };
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    const auto at = std::find(graph_.inputs.begin(), graph_.inputs.end(), id);
    if (at != graph_.inputs.end()) {
      const Value& v = graph_.value(id);
      if (rank(v) >= 3 && (is_floating(v.dtype) || v.dtype == DType::kI8 || v.dtype == DType::kU8))
        caches.insert(static_cast<std::size_t>(at - graph_.inputs.begin()));
      continue;
    }
    const Node* node = graph_.producer(id);
    if (!node) continue;
    if (node->op == Op::kAttention) {
      using namespace attention;
      for (const auto& [present, past, fresh] :
           {std::tuple(kPresentK, kPastK, kK), std::tuple(kPresentV, kPastV, kV)})
        if (node->output(present) == id)
          visit(node->input(past) != kNoValue ? node->input(past) : node->input(fresh));
    } else if (node->op == Op::kConcat) {
      for (const ValueId in : node->inputs) visit(in);
    } else if (input_reach::only_moves(node->op)) {
      visit(node->inputs[0]);
    }
  }
  return caches;
}

// The one axis along which the output is longer than the input, which grows from nothing.
std::optional<DecoderSignature::Cache> Finder::cache_axes(std::size_t in, std::size_t out) const {
  const Value &a = input(in), &b = graph_.value(graph_.outputs[out]);
  if (!a.shape || !b.shape || a.shape->size() != b.shape->size()) return std::nullopt;
  std::vector<int> differ;
  for (std::size_t i = 0; i < a.shape->size(); ++i)
    if (!((*a.shape)[i] == (*b.shape)[i]) && !(*b.shape)[i].constant()) differ.push_back(static_cast<int>(i));
  if (differ.size() != 1 || (*a.shape)[static_cast<std::size_t>(differ[0])].constant()) return std::nullopt;
  return DecoderSignature::Cache{in, out, -1, differ[0]};
}

void Finder::pair_cache(std::size_t output) {
  std::vector<DecoderSignature::Cache> candidates;
  for (const std::size_t in : caches_behind(graph_.outputs[output]))
    if (const auto cache = cache_axes(in, output); cache && !known_[in]) candidates.push_back(*cache);
  if (candidates.empty()) return;
  // Several caches behind one output: the name that shares most with the output's.
  const auto shared = [&](const DecoderSignature::Cache& c) {
    return shared_suffix(input(c.input).name, output_name(output));
  };
  const auto best = std::max_element(candidates.begin(), candidates.end(),
                                     [&](const auto& x, const auto& y) { return shared(x) < shared(y); });
  known_[best->input] = true;
  found_.caches.push_back(*best);
}

void Finder::find_caches() {
  for (std::size_t i = 0; i < graph_.outputs.size(); ++i) pair_cache(i);
  std::sort(found_.caches.begin(), found_.caches.end(),
            [](const auto& a, const auto& b) { return a.input < b.input; });
}

// The batch is the axis whose size the ids share, or is a multiple of it; failing that, the first open axis beside the
// sequence.
void Finder::fix_batch_axes() {
  const Expr batch = input(found_.ids).shape->front();
  for (auto& cache : found_.caches) {
    const Shape& shape = *input(cache.input).shape;
    const auto pick = [&](auto&& fits) {
      for (std::size_t i = 0; i < shape.size() && cache.batch_axis < 0; ++i)
        if (static_cast<int>(i) != cache.sequence_axis && fits(shape[i]))
          cache.batch_axis = static_cast<int>(i);
    };
    if (!batch.constant()) {
      pick([&](const Expr& e) { return e == batch; });
      pick([&](const Expr& e) { return parts_a_row(e, batch).has_value(); });
    }
    pick([](const Expr& e) { return !e.constant(); });
    pick([](const Expr& e) { return e.is_constant(1); });
    pick([&](const Expr& e) { return e == batch; });
    if (cache.batch_axis < 0) cache.batch_axis = cache.sequence_axis == 0 ? 1 : 0;
  }
}

// Reals of a fixed size for each sequence.
bool Finder::is_state(std::size_t i) const {
  const Value& v = input(i);
  if (known_[i] || !used(i) || !is_floating(v.dtype) || rank(v) < 2) return false;
  const Expr batch = input(found_.ids).shape->front();
  return std::all_of(v.shape->begin(), v.shape->end(),
                     [&](const Expr& e) { return e.constant() || parts_a_row(e, batch); });
}

// The nearest input of the output's type and shape that the output is made of; of several the one whose name shares
// most with its own. What is written at a place that the step is told is a cache of a fixed size, not a state: which of
// its rows count, masks would have to say.
std::optional<std::size_t> Finder::state_behind(std::size_t output) const {
  const Value& result = graph_.value(graph_.outputs[output]);
  std::vector<ValueId> level{graph_.outputs[output]}, next;
  std::set<ValueId> seen{level[0]};
  std::vector<std::size_t> found;
  for (; !level.empty() && found.empty(); level.swap(next), next.clear())
    for (const ValueId id : level) {
      const auto at = std::find(graph_.inputs.begin(), graph_.inputs.end(), id);
      if (at != graph_.inputs.end()) {
        const auto i = static_cast<std::size_t>(at - graph_.inputs.begin());
        if (is_state(i) && input(i).dtype == result.dtype && result.shape && *result.shape == *input(i).shape)
          found.push_back(i);
        continue;
      }
      const Node* node = graph_.producer(id);
      if (!node || is_one_of(node->op, {Op::kScatterElements, Op::kScatterND, Op::kAttention})) continue;
      for (const ValueId in : node->inputs)
        if (in != kNoValue && seen.insert(in).second) next.push_back(in);
    }
  if (found.empty()) return std::nullopt;
  return *std::max_element(found.begin(), found.end(), [&](std::size_t a, std::size_t b) {
    return shared_suffix(input(a).name, result.name) < shared_suffix(input(b).name, result.name);
  });
}

// What is handed on as it came is no state: an encoder's keys and values, which nothing here makes.
bool Finder::is_made_of_ids(std::size_t output) const {
  std::vector<ValueId> work{graph_.outputs[output]};
  std::set<ValueId> seen{work[0]};
  while (!work.empty()) {
    const ValueId id = work.back();
    work.pop_back();
    if (id == graph_.inputs[found_.ids]) return true;
    const Node* node = graph_.producer(id);
    for (const ValueId in : node ? node->inputs : std::vector<ValueId>{})
      if (in != kNoValue && seen.insert(in).second) work.push_back(in);
  }
  return false;
}

void Finder::find_states() {
  for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
    const auto is_cache = [&](const auto& cache) { return cache.output == i; };
    if (i == found_.logits || std::any_of(found_.caches.begin(), found_.caches.end(), is_cache)) continue;
    const auto state = state_behind(i);
    if (!state || !is_made_of_ids(i)) continue;
    known_[*state] = true;
    found_.states.push_back({*state, i});
  }
}

int64_t Finder::table_rows(std::size_t i) const {
  return input_reach::table_rows(graph_, readers_, graph_.inputs[i]);
}
bool Finder::makes_angles(std::size_t i) const {
  return input_reach::makes_angles(graph_, readers_, graph_.inputs[i]);
}

bool Finder::find_ids() {
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < graph_.inputs.size(); ++i)
    if (!known_[i] && is_integer(input(i).dtype) && rank(input(i)) == 2 && table_rows(i) > 0)
      candidates.push_back(i);
  if (candidates.empty()) return false;
  const auto better = [&](std::size_t a, std::size_t b) {  // a < b
    const auto key = [&](std::size_t i) {
      const std::string& name = input(i).name;
      const bool other = has_word(name, {"position", "type", "segment", "mask"});
      const int64_t rows = table_rows(i);
      bool logits = false;
      for (const ValueId out : graph_.outputs)
        if (const auto& shape = graph_.value(out).shape; shape && !shape->empty())
          logits = logits || shape->back().is_constant(rows);
      return std::make_tuple(logits, !other, rows);
    };
    return key(a) < key(b);
  };
  found_.ids = *std::max_element(candidates.begin(), candidates.end(), better);
  known_[found_.ids] = true;
  return true;
}

bool Finder::find_logits() {
  const int64_t rows = table_rows(found_.ids);
  std::set<std::size_t> taken;
  for (const auto& cache : found_.caches) taken.insert(cache.output);
  int64_t best = 0;
  for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
    const Value& v = graph_.value(graph_.outputs[i]);
    if (taken.count(i) || !input_reach::are_logits(v, rows)) continue;
    const int64_t width = *v.shape->back().constant();
    // Beside heads that guess further tokens (medusa_logits) it is the one without another name.
    const std::string& name = output_name(i);
    const int64_t named = name == "logits" ? 3 : has_word(name, {"logits"}) ? 2 : 0;
    const int64_t score = (width == rows ? 2 : 1) + named;
    if (score <= best) continue;
    best = score;
    found_.logits = i;
    found_.vocabulary = width;
  }
  if (best > 0) found_.last_only = gives_last_only();
  return best > 0;
}

// A row of logits for each sequence, not for each token.
bool Finder::gives_last_only() const {
  Shape logits = *graph_.value(graph_.outputs[found_.logits]).shape;
  const Shape& ids = *input(found_.ids).shape;
  if (logits.size() == 3 && logits[1].is_constant(1)) return true;
  logits.pop_back();
  return element_count(logits) == ids[0] && !ids[1].is_constant(1);
}

void Finder::find_lengths() {
  for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
    if (known_[i] || !is_integer(input(i).dtype) || rank(input(i)) > 2) continue;
    const auto offset = input_reach::length_offset(graph_, readers_, graph_.inputs[i]);
    // One number, from which positions are counted.
    const auto& shape = input(i).shape;
    const Expr& tokens = input(found_.ids).shape->back();
    const bool is_lone = shape && (shape->empty() || (shape->size() == 1 && shape->front().is_constant(1) &&
                                                      !(shape->front() == tokens)));
    const bool is_past = !offset && is_lone && !found_.caches.empty() &&
                         input_reach::begins_range(graph_, readers_, graph_.inputs[i]) &&
                         (makes_angles(i) || table_rows(i) > kMostTypes);
    if (!offset && !is_past) continue;
    found_.lengths.push_back({i, offset.value_or(0), is_past});
    known_[i] = true;
  }
}

// [3, batch, new]: a token's places in time, height and width; of four the first is its place in the text.
bool Finder::are_several_positions(const Shape& shape) const {
  return shape.front().is_constant(3) ||
         (shape.front().is_constant(4) && !(shape.front() == input(found_.ids).shape->front()));
}

Finder::Candidate Finder::candidate(std::size_t i) const {
  const Shape& ids = *input(found_.ids).shape;
  const Value& v = input(i);
  Candidate c{i};
  const Shape& shape = *v.shape;
  const bool like_ids = shape.back() == ids.back(), angles = makes_angles(i);
  const int64_t rows = table_rows(i);
  if (!is_integer(v.dtype) && !angles) c.positions = kNever;  // which are made of numbers of any type
  if (!is_integer(v.dtype) || rank(v) != 2) c.types = kNever;
  // [batch, new, keys]; what has as many features for each token is an encoder's states.
  if (rank(v) == 3 && (are_several_positions(shape) || shape.back().constant())) c.mask = kNever;
  if (rank(v) == 4 || (rank(v) == 3 && !are_several_positions(shape))) c.positions = kNever;
  if (rank(v) == 1 &&
      (like_ids || shape[0] == ids[0] || !has_word(v.name, {"mask"}) || has_word(v.name, {"index", "len"})))
    c.mask = kNever;
  // One number beside many tokens is something else.
  if (rank(v) == 1 && shape[0].is_constant(1) && !like_ids) c.positions = kNever;
  // As long as tokens; or longer, and cut to them.
  const input_reach::Parts parts = input_reach::parts_of(graph_, readers_, graph_.inputs[i]);
  const bool is_of_tokens =
      like_ids || (!shape.back().constant() && !parts.are_counted &&
                   (angles || (rows > 0 && rows != table_rows(found_.ids) && parts.are_taken)));
  if (!found_.caches.empty())
    c.mask += is_of_tokens ? -4 : 4, c.positions += is_of_tokens ? 2 : -4, c.types += is_of_tokens ? 2 : -4;
  if (angles) c.positions += 4;
  if (rows > kMostTypes) c.positions += 3;
  if (rows > 0 && rows <= kMostTypes) c.types += 3;
  if (rows == 0 && !angles) c.mask += 2, c.types -= 2;
  if (has_word(v.name, {"position"})) c.positions += 1;
  if (has_word(v.name, {"type", "segment"})) c.types += 1;
  if (has_word(v.name, {"mask"})) c.mask += 1;
  c.surely_positions =
      angles || rows > kMostTypes || (rank(v) == 1 && like_ids) || has_word(v.name, {"position"});
  return c;
}

void Finder::find_others() {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < graph_.inputs.size(); ++i)
    if (!known_[i] && used(i) && rank(input(i)) >= 1 && rank(input(i)) <= 4)
      candidates.push_back(candidate(i));
  const auto claim = [&](int Candidate::*score, bool surely) -> std::optional<std::size_t> {
    Candidate* best = nullptr;
    for (Candidate& c : candidates) {
      const int rival = std::max({c.mask, c.positions, c.types});
      if (known_[c.input] || c.*score != rival || c.*score <= kNever / 2 || (surely && !c.surely_positions))
        continue;
      if (!best || c.*score > best->*score) best = &c;
    }
    if (!best) return std::nullopt;
    known_[best->input] = true;
    return best->input;
  };
  while (const auto positions = claim(&Candidate::positions, !found_.positions.empty()))
    found_.positions.push_back(*positions);
  found_.mask = claim(&Candidate::mask, false);
  found_.mask_by_query = found_.mask && is_by_query(*input(*found_.mask).shape);
  found_.token_types = claim(&Candidate::types, false);
  for (const std::size_t i : found_.positions)
    if (const int64_t rows = table_rows(i); rows > 0)
      found_.max_positions = found_.max_positions ? std::min(found_.max_positions, rows) : rows;
  if (!found_.mask) claim_unread_mask();
  for (std::size_t i = 0; i < graph_.inputs.size(); ++i)
    if (!known_[i] && !used(i)) found_.ignored.push_back(i);
}

// [new, keys] instead of [batch, keys].
bool Finder::is_by_query(const Shape& mask) const {
  const Shape& ids = *input(found_.ids).shape;
  return mask.size() == 2 && mask[0].as_symbol() && mask[0] == ids[1] && !(mask[0] == ids[0]);
}

// Of a mask whose size alone is read nothing is left but that size.
void Finder::claim_unread_mask() {
  const Expr& tokens = input(found_.ids).shape->back();
  for (const bool named : {true, false})
    for (std::size_t i = 0; i < graph_.inputs.size() && !found_.caches.empty() && !found_.mask; ++i) {
      const Value& v = input(i);
      if (!known_[i] && !used(i) && rank(v) == 2 && v.shape->back().as_symbol() &&
          !(v.shape->back() == tokens) && (!named || has_word(v.name, {"mask"})))
        found_.mask = i, known_[i] = true;
    }
}

// As far as shapes tell: an output that is made of tokens may be what it is after the step.
bool Finder::is_fixed_cache(std::size_t i) const {
  const Value& v = input(i);
  const Expr batch = input(found_.ids).shape->front();
  const auto is_fixed = [&](const Expr& e) { return e.constant() || e == batch; };
  if (rank(v) < 4 || !is_floating(v.dtype) || !std::all_of(v.shape->begin(), v.shape->end(), is_fixed))
    return false;
  for (std::size_t o = 0; o < graph_.outputs.size(); ++o) {
    const Value& after = graph_.value(graph_.outputs[o]);
    bool fits = o != found_.logits && after.dtype == v.dtype && rank(after) == rank(v);
    for (std::size_t d = 0; fits && d < rank(v); ++d)
      fits = (*after.shape)[d] == (*v.shape)[d] || !(*after.shape)[d].constant();
    if (fits && is_made_of_ids(o)) return true;
  }
  return false;
}

bool Finder::explain(std::string* why) const {
  for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
    if (known_[i] || !used(i)) continue;
    const std::string name = "input " + escaped(input(i).name);
    if (why && is_fixed_cache(i))
      *why = name + " " + str(*input(i).shape) +
             " looks like a cache of a fixed size, and nothing shows where tokens are written; " +
             kExportGrowing;
    else if (why)
      *why = name + " is neither token ids, mask, positions, lengths nor a cache that an output continues";
    return false;
  }
  return true;
}

std::optional<DecoderSignature> Finder::find(std::string* why) {
  const auto fail = [&](const char* reason) {
    if (why) *why = reason;
    return std::nullopt;
  };
  find_caches();
  if (!find_ids()) return fail("no integer input [batch, sequence] indexes an embedding table");
  if (!find_logits())
    return fail(
        "no floating output [batch, sequence, vocabulary] is as wide as the embedding table has rows");
  fix_batch_axes();
  find_states();
  find_lengths();
  find_others();
  if (!explain(why)) return std::nullopt;
  if (found_.mask && !found_.states.empty() && input(*found_.mask).shape->back().constant())
    return fail(
        "it has states, and its mask is of a fixed size: nothing tells which of its places are in use");
  return found_;
}

}  // namespace

std::optional<DecoderSignature> find_signature(const Graph& graph, std::string* why) {
  auto found = Finder(graph).find(why);
  if (!found) return found;
  try {  // where the file's own tables end, whatever its positions are made of
    Graph copy = graph;
    const decoder::Roles roles = decoder::unify_sizes(copy, *found);
    const int64_t reach = decoder::reachable_length(copy, roles, decoder::kProbedLength);
    found->max_positions = reach < decoder::kProbedLength ? reach : 0;
  } catch (const std::exception&) {  // the rows of the position table, as found
  }
  return found;
}

}  // namespace ark
