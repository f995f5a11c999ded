#include "engine/plain/plain_runner.h"

#include <algorithm>

#include "base/error.h"
#include "engine/cpu/sampler.h"

namespace ark {
namespace {

// An integer tensor [1, n] (or any dims) of the input's own type.
Tensor integers(DType type, Dims dims, const std::function<int64_t(int64_t)>& f) {
  Tensor t = Tensor::empty(type, std::move(dims));
  for (int64_t i = 0; i < t.size(); ++i) {
    const int64_t v = f(i);
    switch (type) {
      case DType::kI64:
        t.as<int64_t>()[i] = v;
        break;
      case DType::kI32:
        t.as<int32_t>()[i] = static_cast<int32_t>(v);
        break;
      case DType::kBool:
        t.as<uint8_t>()[i] = v != 0;
        break;
      case DType::kF32:
        t.as<float>()[i] = static_cast<float>(v);
        break;
      case DType::kF16:
        t.as<uint16_t>()[i] = f32_to_f16(static_cast<float>(v));
        break;
      default:
        throw Error(Code::kUnsupported,
                    "a decoder input of type " + std::string(name_of(type)) + " cannot be driven");
    }
  }
  return t;
}

Tensor to_f32(const Tensor& x) {
  if (x.dtype == DType::kF32) return x;
  Tensor out = Tensor::empty(DType::kF32, x.dims);
  for (int64_t i = 0; i < x.size(); ++i) out.as<float>()[i] = static_cast<float>(x.real(i));
  return out;
}

}  // namespace

PlainRunner::PlainRunner(const Graph& graph, DecoderSignature signature, PlainRunnerOptions options)
    : graph_(graph),
      signature_(std::move(signature)),
      driver_(graph, options.parallel),
      slots_(static_cast<std::size_t>(options.max_slots)) {
  const auto file_length = static_cast<int32_t>(std::min<int64_t>(signature_.max_positions, 1 << 20));
  limits_.max_length = options.max_length > 0 ? options.max_length : file_length > 0 ? file_length : 2048;
  if (file_length > 0) limits_.max_length = std::min(limits_.max_length, file_length);
  limits_.max_tokens = options.max_tokens;
  limits_.max_rows = std::max(options.max_slots, options.max_tokens);
  limits_.max_slots = options.max_slots;
  limits_.page_size = options.page_size;
  limits_.pages = options.max_slots * ((limits_.max_length + options.page_size - 1) / options.page_size);
  limits_.vocabulary = static_cast<int32_t>(signature_.vocabulary);
  limits_.depth = 2;
}

uint64_t PlainRunner::post(const StepDescriptor& step) {
  if (!aborted_.empty()) throw Error(Code::kUnavailable, aborted_);
  ARK_CHECK(static_cast<int32_t>(queue_.size()) < limits_.depth, "more than two steps in flight");
  queue_.push_back(step);
  return ++posted_;
}

std::optional<StepResult> PlainRunner::poll(std::chrono::microseconds) {
  if (!aborted_.empty()) throw Error(Code::kUnavailable, aborted_);
  if (queue_.empty()) return std::nullopt;
  const StepDescriptor step = std::move(queue_.front());
  queue_.pop_front();
  return execute(step);
}

void PlainRunner::abort(const std::string& why) { aborted_ = why; }

StepResult PlainRunner::execute(const StepDescriptor& step) {
  StepResult result{++done_, std::vector<RowResult>(step.rows.size())};
  for (const StepSequence& s : step.sequences) {
    Slot& slot = slots_.at(static_cast<std::size_t>(s.slot));
    if (s.kv_length == 0) slot.past.clear(), slot.history.clear();
    ARK_CHECK(s.kv_length == static_cast<int32_t>(slot.history.size()),
              "a plain slot cannot continue at another position");
    std::vector<int32_t> tokens(step.tokens.begin() + s.first, step.tokens.begin() + s.first + s.count);
    for (int32_t& t : tokens)
      if (t == kFeedbackToken) t = slot.last;
    std::vector<std::size_t> rows;  // of this sequence
    for (std::size_t r = 0; r < step.rows.size(); ++r)
      if (step.rows[r].slot == s.slot) rows.push_back(r);
    const auto last_only = std::all_of(
        rows.begin(), rows.end(), [&](std::size_t r) { return step.rows[r].token == s.first + s.count - 1; });
    // Graphs that give the last token's logits only are run token by token where more is wanted.
    const Value& logits_value = graph_.value(graph_.outputs[signature_.logits]);
    const bool one_row =
        logits_value.shape && logits_value.shape->size() == 3 && (*logits_value.shape)[1].is_constant(1);
    const std::size_t stride = one_row && !last_only ? 1 : tokens.size();
    for (std::size_t begin = 0; begin < tokens.size(); begin += stride) {
      const Tensor logits = run_tokens(slot, std::span(tokens).subspan(begin, stride));
      const int64_t given = logits.size() / limits_.vocabulary;
      for (const std::size_t r : rows) {
        const int64_t local = step.rows[r].token - s.first - static_cast<int64_t>(begin);
        if (local < 0 || local >= static_cast<int64_t>(stride)) continue;
        const int64_t index = given - static_cast<int64_t>(stride) +
                              local;  // no cache: all positions are given; last only: one
        const int64_t position = s.kv_length + static_cast<int64_t>(begin) + local + 1;
        result.rows[r] = answer(step, step.rows[r], slot, position, logits, std::max<int64_t>(0, index));
        if (step.rows[r].flags & kWantToken) slot.last = result.rows[r].token;
      }
    }
  }
  return result;
}

RowResult PlainRunner::answer(const StepDescriptor& step, const StepRow& row, const Slot& slot,
                              int64_t position, const Tensor& logits, int64_t index) const {
  const auto v = static_cast<std::size_t>(limits_.vocabulary);
  const std::span<const float> values(logits.as<float>() + index * limits_.vocabulary, v);
  const std::span<const std::pair<int32_t, float>> bias(step.bias.data() + row.bias_first,
                                                        static_cast<std::size_t>(row.bias_count));
  return sample_row(values, row, std::span(slot.history).first(static_cast<std::size_t>(position)), position,
                    bias);
}

Tensor PlainRunner::empty_past(const DecoderSignature::Cache& cache) const {
  const Value& value = graph_.value(graph_.inputs[cache.input]);
  Dims dims;
  for (std::size_t i = 0; i < value.shape->size(); ++i) {
    const auto axis = static_cast<int>(i);
    if (axis == cache.batch_axis)
      dims.push_back(1);
    else if (axis == cache.sequence_axis)
      dims.push_back(0);
    else if (const auto c = (*value.shape)[i].constant())
      dims.push_back(*c);
    else
      throw Error(Code::kUnsupported, "input '" + escaped(value.name) + "': axis " + std::to_string(i) +
                                          " has no fixed size, so an empty cache cannot be made");
  }
  return Tensor::zeros(value.dtype, dims);
}

std::vector<Tensor> PlainRunner::inputs_for(const Slot& slot, std::span<const int32_t> tokens) const {
  const auto n = static_cast<int64_t>(tokens.size()), past = static_cast<int64_t>(slot.history.size());
  const bool cached = !signature_.caches.empty();
  const int64_t first = cached ? past : 0,
                run = cached ? n : past + n;  // without caches the whole sequence runs again
  const auto token = [&](int64_t i) {
    return int64_t{first + i < past ? slot.history[static_cast<std::size_t>(first + i)]
                                    : tokens[static_cast<std::size_t>(first + i - past)]};
  };
  std::vector<Tensor> inputs(graph_.inputs.size());
  const auto type = [&](std::size_t i) { return graph_.value(graph_.inputs[i]).dtype; };
  inputs[signature_.ids] = integers(type(signature_.ids), {1, run}, token);
  if (signature_.mask)
    inputs[*signature_.mask] =
        integers(type(*signature_.mask), {1, first + run}, [](int64_t) { return int64_t{1}; });
  if (signature_.positions)
    inputs[*signature_.positions] =
        integers(type(*signature_.positions), {1, run}, [&](int64_t i) { return first + i; });
  if (signature_.token_types)
    inputs[*signature_.token_types] =
        integers(type(*signature_.token_types), {1, run}, [](int64_t) { return int64_t{0}; });
  for (std::size_t c = 0; c < signature_.caches.size(); ++c)
    inputs[signature_.caches[c].input] = slot.past.empty() ? empty_past(signature_.caches[c]) : slot.past[c];
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].dtype == DType::kUndefined)
      throw Error(Code::kUnsupported, "input '" + escaped(graph_.value(graph_.inputs[i]).name) +
                                          "' has no role in a decoder, so it cannot be fed");
  return inputs;
}

Tensor PlainRunner::run_tokens(Slot& slot, std::span<const int32_t> tokens) {
  const std::vector<Tensor> outputs = driver_.run(inputs_for(slot, tokens));
  slot.past.clear();
  for (const DecoderSignature::Cache& cache : signature_.caches) slot.past.push_back(outputs[cache.output]);
  slot.history.insert(slot.history.end(), tokens.begin(), tokens.end());
  return to_f32(outputs[signature_.logits]);
}

}  // namespace ark
