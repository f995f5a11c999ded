// What the processes of a group tell each other before they run, as bytes. Apart from what makes and uses it, so that
// the fuzzer of peers needs neither compiler nor executors.
#include <algorithm>
#include <type_traits>

#include "base/error.h"
#include "dma/blob.h"
#include "server/load/members.h"
#include "server/load/terms.h"
#include "server/version.h"

namespace ark {
namespace {

constexpr std::size_t kLongestName = 64;       // of a machine, in lines for people
constexpr uint32_t kBlobVersion = 0x54524d38;  // of the blob; changes with its layout, and what it means

// Calls f for every number of the terms: the blob's layout, written and read by the same list.
template <class Terms, class F>
void for_numbers(Terms& t, F&& f) {
  f(t.ranks), f(t.threads), f(t.table_length);
  f(t.limits.max_tokens), f(t.limits.max_rows), f(t.limits.max_slots), f(t.limits.max_length);
  f(t.limits.page_size), f(t.limits.pages), f(t.limits.vocabulary), f(t.limits.embedded), f(t.limits.depth);
  f(t.lockstep), f(t.one_step_a_launch), f(t.on_gpu), f(t.as_graph), f(t.numerics), f(t.weights),
      f(t.activations), f(t.bf16), f(t.keeps_codes_of_tables), f(t.kv_dtype);
  f(t.trace_events), f(t.processors), f(t.groups), f(t.machine_ranks), f(t.yields_cores);
}

}  // namespace

std::string to_blob(const Member& m, std::string_view version) {
  dma::BlobWriter blob;
  return blob.text(version)
      .text(m.host)
      .text(m.machine)
      .text(m.cpu_set)
      .number(m.cpus)
      .number(m.memory)
      .take();
}

Member member_of(std::string_view bytes, int rank, int own_rank) {
  const std::string name = "rank " + std::to_string(rank);
  dma::BlobReader blob(bytes, name + ": what it says of itself");
  // First of all: the rest is laid out as that version does.
  if (const std::string version(blob.text()); version != kVersion)
    throw Error(Code::kUsage, name + " runs ark " + escaped(version) + ", rank " + std::to_string(own_rank) +
                                  " runs " + kVersion + "; install the same everywhere");
  Member member;
  for (std::string* text : {&member.host, &member.machine, &member.cpu_set}) *text = blob.text();
  member.cpus = std::max(1, blob.number<int32_t>());
  member.memory = blob.number<int64_t>();
  blob.end();
  member.host = escaped(member.host, kLongestName);
  return member;
}

std::string to_blob(const LaunchTerms& terms) {
  dma::BlobWriter blob;
  blob.number(kBlobVersion);
  for_numbers(terms, [&](const auto& value) { blob.number(static_cast<int32_t>(value)); });
  return blob.text(terms.plan).take();
}

LaunchTerms terms_of(std::string_view bytes) {
  dma::BlobReader blob(bytes, "rank 0: its terms");
  if (blob.number<uint32_t>() != kBlobVersion) blob.malformed("have another version");
  LaunchTerms terms;
  for_numbers(terms, [&](auto& value) {
    value = static_cast<std::decay_t<decltype(value)>>(blob.number<int32_t>());
  });
  terms.plan = blob.text();
  blob.end();
  // What became another number in its field, or names none of the values that there are.
  if (to_blob(terms) != bytes || terms.numerics > cuda::Numerics::kFast ||
      terms.weights > WeightPolicy::kInt4 || terms.activations > Activations::kInt8 ||
      terms.bf16 > Bf16Unit::kTiles || dtype_numbered(static_cast<int64_t>(terms.kv_dtype)) != terms.kv_dtype)
    blob.malformed("have a value that there is not");
  return terms;
}

}  // namespace ark
