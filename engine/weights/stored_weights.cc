#include "engine/weights/stored_weights.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "base/ir/quantized.h"
#include "base/machine.h"
#include "base/parallel.h"
#include "engine/weights/encoded_matrix.h"

namespace ark {
namespace {

constexpr int64_t kCheckedBytes = 1 << 20;  // bytes of numbers that a thread checks at a time
constexpr int64_t kReserve = 64 << 20;      // bytes that threads' windows and the process may take meanwhile
constexpr int64_t kLeast = 512;             // elements of a matrix that is worth it

// A payload, which several constants may see through views.
struct Payload {
  std::shared_ptr<Constant> numbers;  // without a view
  int k_axis = 0;                     // stored
  bool is_table = false, has_axis = true;
  // How it is stored.
  DType type = DType::kUndefined;  // kUndefined: as it is
  ConstantPtr codes;               // [N, K], or null
  bool lacked_memory = false;      // for codes that it might have

  bool is_coded() const { return codes != nullptr; }
};

std::shared_ptr<Constant> without_view(const Constant& constant) {
  auto whole = std::make_shared<Constant>(constant);
  whole->dims = constant.stored_dims.empty() ? constant.dims : constant.stored_dims;
  whole->perm.clear();
  whole->begin.clear();
  return whole;
}

int stored_axis(const Constant& constant, int axis) {
  return constant.perm.empty() ? axis : static_cast<int>(constant.perm[static_cast<std::size_t>(axis)]);
}

float rounded(float v, DType type) { return type == DType::kBF16 ? rounded_to_bf16(v) : rounded_to_f16(v); }
bool fits_exactly(float v, DType type) {
  return std::bit_cast<uint32_t>(rounded(v, type)) == std::bit_cast<uint32_t>(v);
}
bool fits_in_size(float v, DType type) { return !std::isfinite(v) || std::isfinite(rounded(v, type)); }

// Whether `holds` is true of 0 .. count - 1; once it is not, no more are begun.
template <class F>
bool all_parts(int64_t count, int threads, F holds) {
  std::atomic<bool> ok = true;
  parallel_for(count, threads, [&](int64_t part) {
    if (ok.load(std::memory_order_relaxed) && !holds(part)) ok = false;
  });
  return ok;
}

// Whether `holds` is true of each number; reads as little as it can.
template <class F>
bool all_of(const Constant& numbers, int threads, F holds) {
  const int64_t rows = numbers.dims[0], row_bytes = numbers.dims[1] * 4;
  const int64_t step = std::max<int64_t>(1, kCheckedBytes / std::max<int64_t>(1, row_bytes));
  return all_parts((rows + step - 1) / step, threads, [&](int64_t part) {
    const int64_t first = part * step, count = std::min(step, rows - first);
    const Tensor window = materialise_rows(numbers, first, count);
    std::vector<float> floats(static_cast<std::size_t>(window.size()));
    load_f32(window.dtype, window.data.get(), 0, 1, window.size(), floats.data());
    return std::all_of(floats.begin(), floats.end(), holds);
  });
}

double bits_a_number(const CodeForm& form) {
  return form.bits + 8.0 * terms_bytes(form.terms) / static_cast<double>(form.block);
}

// Null if the numbers cannot be had in this form, or if there is no room for the codes beside what they are packed
// into: what then does not fit is named where the rest is counted.
ConstantPtr encoded(Payload& payload, const CodeForm& form, CodeRule rule, int threads) {
  const double bytes = bits_a_number(form) / 8 * static_cast<double>(payload.numbers->size());
  if (2 * bytes > static_cast<double>(available_memory() - kReserve)) {
    payload.lacked_memory = true;
    return nullptr;
  }
  EncodedMatrix matrix(payload.numbers, payload.k_axis, form);
  const bool ok = all_parts(matrix.parts(), threads, [&](int64_t part) { return matrix.encode(part, rule); });
  return ok ? matrix.finish(payload.numbers->name) : nullptr;
}

// All forms that codes can have, those of the fewest bits first.
std::vector<CodeForm> forms() {
  std::vector<CodeForm> list;
  for (const int bits : {4, 8})
    for (const int64_t block : {16, 32, 64, 128})
      for (const BlockTerms terms :
           {BlockTerms::kScales16, BlockTerms::kOffsets16, BlockTerms::kZeros, BlockTerms::kOffsets})
        list.push_back({bits, block, terms});
  std::stable_sort(list.begin(), list.end(),
                   [](const CodeForm& a, const CodeForm& b) { return bits_a_number(a) < bits_a_number(b); });
  return list;
}

void store_exactly(Payload& payload, const StorageOptions& options) {
  if (payload.numbers->dtype != DType::kF32) return;
  if (payload.has_axis) {
    MatrixSamples samples(payload.numbers, payload.k_axis);
    for (const CodeForm& form : forms()) {
      CodeRule rule{.keeps_signs = payload.is_table};
      if (!samples.fit(form, rule)) continue;
      payload.codes = encoded(payload, form, rule, options.threads);
      if (payload.codes) return;
    }
  }
  for (const DType type : {DType::kBF16, DType::kF16})
    if (all_of(*payload.numbers, options.threads, [&](float v) { return fits_exactly(v, type); })) {
      payload.type = type;
      return;
    }
}

void store(Payload& payload, const StorageOptions& options) {
  switch (options.policy) {
    case WeightPolicy::kExact:
      return store_exactly(payload, options);
    case WeightPolicy::kF32:
      payload.type = DType::kF32;
      return;
    case WeightPolicy::kBF16:
    case WeightPolicy::kF16: {
      const DType type = options.policy == WeightPolicy::kBF16 ? DType::kBF16 : DType::kF16;
      if (all_of(*payload.numbers, options.threads, [&](float v) { return fits_in_size(v, type); }))
        payload.type = type;
      return;
    }
    case WeightPolicy::kInt8:
    case WeightPolicy::kInt4: {
      const int bits = options.policy == WeightPolicy::kInt4 && !payload.is_table ? 4 : 8;
      const BlockTerms terms = bits == 8 ? BlockTerms::kScales16 : BlockTerms::kOffsets16;
      if (payload.has_axis)
        payload.codes = encoded(payload, {bits, 32, terms}, {.is_exact = false}, options.threads);
    }
  }
}

// Matrix by matrix, or many side by side, where none of them is more than a thread's share.
void store_all(std::vector<Payload>& payloads, const StorageOptions& options) {
  std::vector<Payload*> by_size;
  int64_t total = 0;
  for (Payload& p : payloads) by_size.push_back(&p), total += p.numbers->size();
  if (by_size.empty()) return;
  std::stable_sort(by_size.begin(), by_size.end(), [](const Payload* a, const Payload* b) {
    return a->numbers->size() > b->numbers->size();
  });
  const bool side_by_side = by_size[0]->numbers->size() * options.threads <= total;
  StorageOptions each = options;
  if (side_by_side) each.threads = 1;
  parallel_for(std::ssize(by_size), side_by_side ? options.threads : 1,
               [&](int64_t i) { store(*by_size[static_cast<std::size_t>(i)], each); });
}

// `constant` with the payload's codes in the place of its numbers.
ConstantPtr seen_alike(const Constant& constant, const Payload& payload) {
  auto view = std::make_shared<Constant>(*payload.codes);
  view->name = constant.name;
  view->dims = constant.dims;
  view->begin = constant.begin;
  const bool turned = (payload.k_axis == 0) != !constant.perm.empty();
  if (turned) view->perm = {1, 0};
  return view;
}

int64_t bytes_of_codes(const Quantized& q) {
  int64_t bytes = 0;
  for (const ConstantPtr& part : {q.codes, q.scales, q.zeros, q.offsets})
    if (part) bytes += bytes_of(part->dtype, part->size());
  return bytes;
}

std::string summary_of(const std::vector<Payload>& payloads) {
  std::map<std::string, int> kinds;
  int64_t before = 0, after = 0;
  for (const Payload& p : payloads) {
    const int64_t size = p.numbers->size(), as_it_is = bytes_of(p.numbers->dtype, size);
    before += as_it_is;
    if (p.is_coded()) {
      const Quantized& q = *p.codes->quantized;
      ++kinds["u" + std::to_string(q.bits)];
      after += bytes_of_codes(q);
    } else if (p.type != DType::kUndefined && p.type != p.numbers->dtype) {
      ++kinds[std::string(name_of(p.type))];
      after += bytes_of(p.type, size);
    } else {
      after += as_it_is;
    }
  }
  std::string text;
  for (const auto& [kind, count] : kinds)
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " of " + std::to_string(payloads.size()) +
            " as " + kind;
  return text.empty() ? "" : text + ", " + mebibytes(before) + " -> " + mebibytes(after);
}

}  // namespace

StoredWeights::StoredWeights(const std::vector<WeightMatrix>& matrices, const StorageOptions& options) {
  std::map<std::tuple<const void*, int64_t, Dims>, std::size_t> index;
  std::vector<Payload> payloads;
  constexpr auto kNoPayload = static_cast<std::size_t>(-1);
  std::vector<std::size_t> payload_of(matrices.size(), kNoPayload);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const WeightMatrix& m = matrices[i];
    const Constant& c = *m.constant;
    if (c.quantized || c.dims.size() != 2 || !is_floating(c.dtype) || c.dtype == DType::kF64 ||
        c.size() < kLeast)
      continue;
    auto whole = without_view(c);
    if (whole->dims.size() != 2) continue;
    const int axis = stored_axis(c, m.k_axis);
    const auto [it, is_new] = index.try_emplace({payload_place(c), c.offset, whole->dims}, payloads.size());
    if (is_new) payloads.push_back({.numbers = std::move(whole), .k_axis = axis});
    Payload& payload = payloads[payload_of[i] = it->second];
    payload.is_table = payload.is_table || m.is_table;
    payload.has_axis = payload.has_axis && payload.k_axis == axis;
  }
  store_all(payloads, options);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const ConstantPtr& constant = matrices[i].constant;
    if (payload_of[i] == kNoPayload) continue;
    const Payload& payload = payloads[payload_of[i]];
    const bool rounds = options.policy != WeightPolicy::kExact && options.policy != WeightPolicy::kF32;
    if (payload.is_coded())
      stored_[constant.get()] = {seen_alike(*constant, payload), DType::kF32, rounds};
    else if (payload.type != DType::kUndefined)
      stored_[constant.get()] = {constant, payload.type, rounds};
  }
  summary_ = summary_of(payloads);
  lacked_memory_ =
      std::any_of(payloads.begin(), payloads.end(), [](const Payload& p) { return p.lacked_memory; });
}

StoredWeights::Stored StoredWeights::of(const ConstantPtr& constant) const {
  const auto it = stored_.find(constant.get());
  return it == stored_.end() ? Stored{constant, constant->dtype} : it->second;
}

}  // namespace ark
