#include "server/supervise/messages.h"

#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "dma/blob.h"

namespace ark::supervise {
namespace {

using dma::BlobReader;
using dma::BlobWriter;

template <class T>
void put(BlobWriter& blob, const std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  blob.text({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

template <class T>
void take(BlobReader& blob, std::vector<T>& values) {
  static_assert(std::is_trivially_copyable_v<T>);
  const std::string_view bytes = blob.text();
  if (bytes.size() % sizeof(T)) blob.malformed("has part of a value");
  values.resize(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

// Tokens with a number each: a bias, a log-probability.
using Pairs = std::vector<std::pair<int32_t, float>>;

void put(BlobWriter& blob, const Pairs& pairs) {
  std::vector<BiasEntry> entries;
  for (const auto& [token, value] : pairs) entries.push_back({token, value});
  put(blob, entries);
}

void take(BlobReader& blob, Pairs& pairs) {
  std::vector<BiasEntry> entries;
  take(blob, entries);
  for (const BiasEntry& entry : entries) pairs.emplace_back(entry.token, entry.value);
}

}  // namespace

std::string to_blob(const StepDescriptor& step) {
  BlobWriter blob;
  put(blob, step.tokens), put(blob, step.sequences), put(blob, step.page_deltas);
  put(blob, step.page_copies), put(blob, step.rows), put(blob, step.bias), put(blob, step.masks);
  return blob.number(step.processors).take();
}

StepDescriptor step_of(std::string_view bytes) {
  BlobReader blob(bytes, "a step");
  StepDescriptor step;
  take(blob, step.tokens), take(blob, step.sequences), take(blob, step.page_deltas);
  take(blob, step.page_copies), take(blob, step.rows), take(blob, step.bias), take(blob, step.masks);
  step.processors = blob.number<int32_t>();
  blob.end();
  return step;
}

std::string to_blob(const StepResult& result) {
  BlobWriter blob;
  blob.number(result.step).number(static_cast<uint32_t>(result.rows.size()));
  for (const RowResult& row : result.rows) {
    blob.number(row.token).number(std::bit_cast<uint32_t>(row.logprob));
    put(blob, row.top);
    blob.number(static_cast<uint32_t>(row.error ? row.error->code() : Code{}))
        .text(row.error ? row.error->what() : "");
  }
  put(blob, std::vector{result.cost});
  return blob.take();
}

StepResult result_of(std::string_view bytes) {
  BlobReader blob(bytes, "a step's result");
  StepResult result{blob.number<uint64_t>()};
  for (auto left = blob.number<uint32_t>(); left > 0; --left) {
    RowResult& row = result.rows.emplace_back();
    row.token = blob.number<int32_t>();
    row.logprob = std::bit_cast<float>(blob.number<uint32_t>());
    take(blob, row.top);
    const auto code = static_cast<Code>(blob.number<uint32_t>());
    if (const std::string_view why = blob.text(); !why.empty()) row.error.emplace(code, std::string(why));
  }
  std::vector<StepCost> cost;
  take(blob, cost);
  if (cost.size() != 1) blob.malformed("has no cost");
  result.cost = cost[0];
  blob.end();
  return result;
}

std::string to_blob(const ModelTerms& terms) {
  return BlobWriter().number(terms.config_length).number(terms.pages).number(terms.machine_ranks).take();
}

ModelTerms terms_of(std::string_view bytes) {
  BlobReader blob(bytes, "a model's terms");
  ModelTerms terms{blob.number<int32_t>(), blob.number<int32_t>(), blob.number<int32_t>()};
  blob.end();
  return terms;
}

std::string to_blob(const ModelFacts& facts) {
  static_assert(std::has_unique_object_representations_v<RunnerLimits>, "equal facts have equal bytes");
  BlobWriter blob;
  put(blob, std::vector{facts.limits});
  return blob.text(facts.identity).number(facts.machine_ranks).take();
}

ModelFacts facts_of(std::string_view bytes) {
  BlobReader blob(bytes, "a model's facts");
  std::vector<RunnerLimits> limits;
  take(blob, limits);
  if (limits.size() != 1) blob.malformed("have no limits");
  ModelFacts facts{limits[0], std::string(blob.text()), blob.number<int32_t>()};
  blob.end();
  return facts;
}

}  // namespace ark::supervise
