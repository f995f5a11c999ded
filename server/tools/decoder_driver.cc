// A decoder's data sets through the ragged runner: padded rows become sequences of their own, given pasts go
// into pages, and what comes out is laid back into logits [B, S, V] and present caches.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "engine/ragged_runner.h"
#include "importer/decoder.h"
#include "server/tools/cache_layout.h"
#include "server/tools/run_suite.h"

namespace ark::tools {
namespace {

using Places = std::vector<int64_t>;

constexpr int32_t kPageSize = 16, kStepTokens = 64, kStepSlots = 8;

[[noreturn]] void unsupported(const std::string& why) { throw Error(Code::kUnsupported, why); }

void put(Tensor& t, int64_t i, float value) {
  if (!is_floating(t.dtype) || t.dtype == DType::kF64)
    unsupported("outputs of type " + std::string(name_of(t.dtype)) + " are not made");
  store_f32(t.dtype, t.data.get(), i, 1, &value);
}

// One row of the padded batch.
struct Row {
  std::vector<int64_t> past;     // columns of the past that mean something
  std::vector<int64_t> fresh;    // columns of input_ids that mean something
  std::vector<int64_t> present;  // where each of `fresh` lies in the present caches
  int64_t kept = 0;              // columns of the past that stand in the present caches as they are given
};

class Decoder : public GraphDriver {
 public:
  Decoder(const Graph& graph, const DriverOptions& options) : graph_(graph), options_(options) {
    auto recognised = recognise_decoder(graph, 0);
    if (const auto* no = std::get_if<NotRecognised>(&recognised))
      unsupported("no ragged decoder: " + (no->node.empty() ? "" : "node " + escaped(no->node) + ": ") +
                  no->reason);
    model_ = std::get<DecoderModel>(std::move(recognised));
    for (const DecoderSignature::Cache& c : model_.signature.caches)
      if (graph.value(graph.inputs[c.input]).shape->at(static_cast<std::size_t>(c.sequence_axis)).constant())
        unsupported("caches that are written in place do not tell what is in them; use --driver dynamic");
    const Graph& tokens = model_.tokens;
    const auto reads = [&](const Node& n) {
      return !n.removed && std::find(n.inputs.begin(), n.inputs.end(), tokens.inputs[1]) != n.inputs.end();
    };
    const auto counts_mask = [](const Node& n) { return !n.removed && n.op == Op::kCumSum; };
    counts_padding_ = model_.signature.positions.empty() &&
                      std::any_of(tokens.nodes.begin(), tokens.nodes.end(), reads) &&
                      std::none_of(graph.nodes.begin(), graph.nodes.end(), counts_mask);
  }

  std::vector<Tensor> run(const std::vector<std::optional<Tensor>>& inputs) override {
    inputs_ = &inputs;
    const DecoderSignature& s = model_.signature;
    const Tensor& ids = input(s.ids, "token ids");
    if (ids.dims.size() != 2) unsupported("token ids have " + std::to_string(ids.dims.size()) + " axes");
    batch_ = ids.dims[0], columns_ = ids.dims[1];
    past_ = 0;
    for (const DecoderSignature::Cache& c : s.caches)
      past_ = input(c.input, "a cache").dims.at(static_cast<std::size_t>(c.sequence_axis));
    check_numbers();
    make_room();
    rows_.clear();
    for (int64_t b = 0; b < batch_; ++b) rows_.push_back(row_of(b));
    outputs_.assign(graph_.outputs.size(), Tensor{});
    make_outputs();
    drop_unknown_presents();
    for (int64_t first = 0; first < batch_; first += kStepSlots)
      run_rows(first, std::min<int64_t>(batch_, first + kStepSlots));
    return std::move(outputs_);
  }

 private:
  const Tensor& input(std::size_t index, const char* what) const {
    if (index >= inputs_->size() || !(*inputs_)[index])
      throw Error(Code::kInvalidArgument, std::string("the input for ") + what + " is missing");
    return *(*inputs_)[index];
  }

  // A runner whose sequences are long enough; made anew where a set needs longer ones.
  void make_room() {
    const int64_t need = past_ + columns_;
    if (runner_ && need <= runner_->limits().max_length) return;
    int64_t length = 64;
    while (length < need) length *= 2;
    runner_.reset();
    RaggedOptions o;
    const auto pages = static_cast<int32_t>((length + kPageSize - 1) / kPageSize * kStepSlots);
    o.limits = {kStepTokens,
                kStepTokens,
                kStepSlots,
                static_cast<int32_t>(length),
                kPageSize,
                pages,
                static_cast<int32_t>(model_.vocabulary)};
    o.max_items = most_items(kStepTokens, kStepSlots);
    o.threads = std::max(options_.threads, options_.ranks);
    CompileOptions c;
    c.ranks = std::max(1, options_.ranks);
    c.max_tokens = c.max_rows = kStepTokens;
    c.max_items = o.max_items;
    c.page_size = kPageSize, c.pages = pages;
    c.storage = {options_.weights, o.threads};
    c.activations = options_.activations;
    c.bf16 = bf16_unit();
    c.kv_dtype = options_.kv_dtype;
    runner_ = make_ragged_runner(compile_decoder(model_, c), o);
  }

  // Which columns of a row are tokens. A mask names them; positions, where given, must count them.
  Row row_of(int64_t b) const {
    const DecoderSignature& s = model_.signature;
    Row row;
    std::vector<bool> seen(static_cast<std::size_t>(past_ + columns_), true);
    if (s.mask) {
      const Tensor& mask = input(*s.mask, "the mask");
      if (s.mask_meaning != DecoderSignature::MaskMeaning::kUsual || s.mask_by_query ||
          mask.dims != Dims{batch_, past_ + columns_})
        unsupported("the mask is not [batch, past + sequence], of keys that are seen");
      for (std::size_t i = 0; i < seen.size(); ++i)
        seen[i] = mask.integer(b * (past_ + columns_) + static_cast<int64_t>(i)) != 0;
    }
    if (counts_padding_ && !std::is_sorted(seen.rbegin(), seen.rend()))
      unsupported("row " + std::to_string(b) +
                  " has padding before tokens, which the file counts in their positions; sequences are "
                  "counted from 0");
    const int64_t count = std::count(seen.begin(), seen.end(), true);
    // Ones, then zeros over all new columns: lengths, as GroupQueryAttention reads a mask. New tokens follow
    // the row's own past; what is given behind it is dropped, and zeros stand there.
    const bool lengths =
        past_ > 0 && std::is_sorted(seen.rbegin(), seen.rend()) && count >= columns_ && count <= past_;
    row.kept = lengths ? count - columns_ : past_;
    for (int64_t i = 0; i < row.kept; ++i)
      if (seen[i]) row.past.push_back(i);
    for (int64_t i = 0; i < columns_; ++i) {
      if (!lengths && !seen[past_ + i]) continue;
      row.fresh.push_back(i);
      row.present.push_back(lengths ? count - columns_ + i : past_ + i);
    }
    check_positions(b, row);
    return row;
  }

  void check_positions(int64_t b, const Row& row) const {
    for (const std::size_t index : model_.signature.positions) {
      const Tensor& positions = input(index, "positions");
      const std::size_t rank = positions.dims.size();
      const bool shared = rank == 1 || (rank > 1 && positions.dims[rank - 2] == 1);
      if (rank == 0 || positions.dims[rank - 1] != columns_ ||
          (!shared && positions.dims[rank - 2] != batch_))
        unsupported("the positions are not those of the token ids");
      const int64_t plane = (shared ? 1 : batch_) * columns_;
      for (int64_t first = 0; first < positions.size(); first += plane)
        for (std::size_t i = 0; i < row.fresh.size(); ++i) {
          const int64_t given = positions.integer(first + (shared ? 0 : b * columns_) + row.fresh[i]);
          const auto counted = static_cast<int64_t>(row.past.size() + i);
          if (given != counted)
            unsupported("row " + std::to_string(b) + ", token " + std::to_string(row.fresh[i]) +
                        " has position " + std::to_string(given) + ", but " + std::to_string(counted) +
                        " tokens stand before it; sequences are counted from 0");
        }
    }
  }

  // Lengths must say what the caches and ids do, and settled inputs what the graph was built for.
  void check_numbers() const {
    for (const DecoderSignature::Length& length : model_.signature.lengths) {
      const Tensor& given = input(length.input, "lengths");
      for (int64_t i = 0; i < given.size(); ++i)
        if (const int64_t own = length.at(past_, columns_); given.integer(i) != own)
          unsupported("row " + std::to_string(i) + " has a length of its own: " +
                      std::to_string(given.integer(i)) + " instead of " + std::to_string(own));
    }
    for (const auto& [name, value] : graph_.settled)
      for (std::size_t i = 0; i < graph_.inputs.size() && i < inputs_->size(); ++i)
        if (const auto& given = (*inputs_)[i]; given && given->size() == 1 &&
                                               graph_.value(graph_.inputs[i]).name == name &&
                                               given->integer(0) != value)
          unsupported("input " + escaped(name) + " is " + std::to_string(given->integer(0)) +
                      ", but this driver computes with " + std::to_string(value));
  }

  void make_outputs() {
    const DecoderSignature& s = model_.signature;
    const Value& logits = graph_.value(graph_.outputs[s.logits]);
    last_only_ = s.last_only;
    const int64_t each = last_only_ ? 1 : columns_;
    const bool flat = logits.shape && logits.shape->size() == 2;
    outputs_[s.logits] = Tensor::zeros(
        logits.dtype, flat ? Dims{batch_ * each, model_.vocabulary} : Dims{batch_, each, model_.vocabulary});
    for (const DecoderSignature::Cache& c : s.caches) {
      const Tensor& past = input(c.input, "a cache");
      Dims dims = past.dims;
      dims[c.sequence_axis] = past_ + columns_;
      Tensor& present = outputs_[c.output] = Tensor::zeros(past.dtype, dims);
      const CacheLayout from(past.dims, c, batch_), to(dims, c, batch_);
      for (int64_t b = 0; b < batch_; ++b)
        for (int64_t i = 0; i < rows_[b].kept; ++i)
          for (int64_t e = 0; e < from.width(); ++e)
            put(present, to.index(b, i, e), static_cast<float>(past.real(from.index(b, i, e))));
    }
  }

  int32_t pages_each() const { return runner_->limits().pages / kStepSlots; }
  RaggedRunner::CachedToken place(std::size_t cache, bool values, int64_t slot, int64_t position) const {
    return {static_cast<int32_t>(cache), values,
            static_cast<int32_t>(slot * pages_each() + position / kPageSize),
            static_cast<int32_t>(position % kPageSize)};
  }

  // Calls f(spec index, values, file cache, places of its rows' elements in pages of `width`) for each half
  // of every cache.
  template <typename F>
  void for_caches(F&& f) const {
    for (std::size_t k = 0; k < model_.caches.size(); ++k) {
      const CacheSpec& spec = model_.caches[k];
      for (const bool values : {false, true}) {
        const std::string& name = values ? spec.value_input : spec.key_input;
        for (const DecoderSignature::Cache& c : model_.signature.caches)
          if (graph_.value(graph_.inputs[c.input]).name == name)
            f(k, values, c, values ? spec.value_elements : spec.key_elements,
              spec.kv_heads * (values ? spec.value_dim : spec.key_dim));
      }
    }
  }

  void load_past(int64_t b, int64_t slot) {
    const Row& row = rows_[b];
    if (row.past.empty()) return;
    for_caches([&](std::size_t k, bool values, const DecoderSignature::Cache& c, const Places& places,
                   int64_t width) {
      const Tensor& past = input(c.input, "a cache");
      const CacheLayout layout(past.dims, c, batch_);
      std::vector<float> heads(static_cast<std::size_t>(width));
      std::vector<bool> given(heads.size());
      for (std::size_t i = 0; i < row.past.size(); ++i) {
        for (std::size_t e = 0; e < places.size(); ++e) {
          if (places[e] < 0) continue;
          const auto place = static_cast<std::size_t>(places[e]);
          heads.at(place) =
              static_cast<float>(past.real(layout.index(b, row.past[i], static_cast<int64_t>(e))));
          given[place] = true;
        }
        if (!std::all_of(given.begin(), given.end(), [](bool g) { return g; }))
          unsupported("input " + escaped(graph_.value(graph_.inputs[c.input]).name) + " caches " +
                      (values ? "values" : "keys") +
                      " before they are what attention reads; this driver starts such files without a past");
        runner_->write_cache(place(k, values, slot, static_cast<int64_t>(i)), heads);
      }
    });
  }

  void store_present(int64_t b, int64_t slot) {
    const Row& row = rows_[b];
    for_caches([&](std::size_t k, bool values, const DecoderSignature::Cache& c, const Places& places,
                   int64_t width) {
      Tensor& present = outputs_[c.output];
      if (present.dtype == DType::kUndefined) return;
      const CacheLayout layout(present.dims, c, batch_);
      std::vector<float> heads(static_cast<std::size_t>(width));
      for (std::size_t i = 0; i < row.fresh.size(); ++i) {
        runner_->read_cache(place(k, values, slot, static_cast<int64_t>(row.past.size() + i)), heads);
        for (std::size_t e = 0; e < places.size(); ++e)
          if (places[e] >= 0)
            put(present, layout.index(b, row.present[i], static_cast<int64_t>(e)),
                heads.at(static_cast<std::size_t>(places[e])));
      }
    });
  }

  // Present caches that the pages do not hold as they are stored are not made.
  void drop_unknown_presents() {
    std::map<std::size_t, std::vector<bool>> made;  // by output, of a row's elements
    for_caches([&](std::size_t, bool, const DecoderSignature::Cache& c, const Places& places, int64_t) {
      auto& elements = made[c.output];
      elements.resize(std::max(elements.size(), places.size()));
      for (std::size_t e = 0; e < places.size(); ++e) elements[e] = elements[e] || places[e] >= 0;
    });
    for (const DecoderSignature::Cache& c : model_.signature.caches) {
      const auto& elements = made[c.output];
      if (elements.empty() || !std::all_of(elements.begin(), elements.end(), [](bool m) { return m; }))
        outputs_[c.output] = Tensor{};
    }
  }

  // Rows [begin, end) as sequences in slots 0, 1, ..., mixed in the same steps.
  void run_rows(int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) load_past(b, b - begin);
    std::vector<std::size_t> done(static_cast<std::size_t>(end - begin), 0);
    for (bool first = true;; first = false) {
      StepDescriptor step;
      std::vector<std::pair<int64_t, int64_t>> wanted;  // (row, column) of each logits row
      for (int64_t b = begin; b < end; ++b) {
        const auto slot = static_cast<int32_t>(b - begin);
        for (int32_t p = 0; first && p < pages_each(); ++p)
          step.page_deltas.push_back({slot, p, slot * pages_each() + p});
        add_tokens(b, slot, done[slot], step, wanted);
      }
      if (step.tokens.empty()) break;
      take(step, wanted);
    }
    for (int64_t b = begin; b < end; ++b) store_present(b, b - begin);
  }

  void add_tokens(int64_t b, int32_t slot, std::size_t& done, StepDescriptor& step,
                  std::vector<std::pair<int64_t, int64_t>>& wanted) const {
    const Row& row = rows_[b];
    const Tensor& ids = input(model_.signature.ids, "token ids");
    const auto first = static_cast<int32_t>(step.tokens.size());
    const std::size_t count =
        std::min(row.fresh.size() - done, static_cast<std::size_t>(kStepTokens) - step.tokens.size());
    if (count == 0) return;
    step.sequences.push_back(
        {slot, first, static_cast<int32_t>(count), static_cast<int32_t>(row.past.size() + done)});
    for (std::size_t i = 0; i < count; ++i) {
      const int64_t column = row.fresh[done + i];
      step.tokens.push_back(static_cast<int32_t>(ids.integer(b * columns_ + column)));
      if (last_only_ && column + 1 != columns_) continue;
      StepRow want;
      want.token = first + static_cast<int32_t>(i);
      want.slot = slot;
      want.flags = kWantLogits;
      step.rows.push_back(want);
      wanted.emplace_back(b, last_only_ ? 0 : column);
    }
    done += count;
  }

  void take(const StepDescriptor& step, const std::vector<std::pair<int64_t, int64_t>>& wanted) {
    for (const int32_t id : step.tokens)
      if (id < 0 || id >= model_.vocabulary)
        unsupported("token id " + std::to_string(id) + " is not in the vocabulary");
    runner_->post(step);
    std::optional<StepResult> result;
    while (!result) result = runner_->poll(std::chrono::seconds(1));
    Tensor& logits = outputs_[model_.signature.logits];
    for (std::size_t r = 0; r < wanted.size(); ++r) {
      const auto [b, column] = wanted[r];
      const int64_t first = (b * (last_only_ ? 1 : columns_) + column) * model_.vocabulary;
      for (int64_t v = 0; v < model_.vocabulary; ++v) put(logits, first + v, result->rows[r].logits[v]);
    }
  }

  const Graph& graph_;
  const DriverOptions options_;
  DecoderModel model_;
  bool counts_padding_ = false;  // the file makes positions of sizes alone, and reads them
  std::unique_ptr<RaggedRunner> runner_;
  // Of the run that goes on.
  const std::vector<std::optional<Tensor>>* inputs_ = nullptr;
  int64_t batch_ = 0, columns_ = 0, past_ = 0;
  bool last_only_ = false;
  std::vector<Row> rows_;
  std::vector<Tensor> outputs_;
};

}  // namespace

std::unique_ptr<GraphDriver> make_decoder_driver(const Graph& graph, const DriverOptions& options) {
  return std::make_unique<Decoder>(graph, options);
}

}  // namespace ark::tools
