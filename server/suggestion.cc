#include "server/suggestion.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace ark {
namespace {

struct OtherName {
  std::string_view theirs, ours;
};
constexpr OtherName kOtherNames[] = {
    {"--tensor-parallel-size", "--tp"},
    {"-tp", "--tp"},
    {"--num-shard", "--tp"},
    {"--model-path", "--model"},
    {"--model-id", "--model"},
    {"-m", "--model"},
    {"--alias", "--served-model-name"},
    {"-a", "--served-model-name"},
    {"--ctx-size", "--max-model-len"},
    {"-c", "--max-model-len"},
    {"--context-length", "--max-model-len"},
    {"--max-seq-len", "--max-model-len"},
    {"--max-total-tokens", "--max-model-len"},
    {"--parallel", "--max-num-seqs"},
    {"-np", "--max-num-seqs"},
    {"--max-batch-size", "--max-num-seqs"},
    {"--batch-size", "--max-num-batched-tokens"},
    {"-b", "--max-num-batched-tokens"},
    {"--max-batch-prefill-tokens", "--max-num-batched-tokens"},
    {"--gpu-memory-utilization", "--kv-memory"},
    {"--kv-cache-memory-bytes", "--kv-memory"},
    {"--gpu-layers", "--device"},
    {"--n-gpu-layers", "--device"},
    {"-ngl", "--device"},
    {"--max-concurrent-requests", "--max-queue"},
    {"--max-waiting-requests", "--max-queue"},
    {"--no-enable-prefix-caching", "--no-prefix-cache"},
    {"--disable-radix-cache", "--no-prefix-cache"},
    {"--speculative-config", "--speculate"},
    {"--spec-type", "--speculate"},
    {"--speculative-model", "--draft-model"},
    {"--model-draft", "--draft-model"},
    {"-md", "--draft-model"},
    {"--api-key", "--api-key-file"},
    {"--uvicorn-log-level", "--log-level"},
    {"--verbosity", "--log-level"},
    {"--hostname", "--host"},
    {"-t", "--threads"},
    {"--temp", "--temperature"},
    {"--n-predict", "--max-tokens"},
    {"-p", "--prompt"},
};

// Letters to insert, remove, change or swap with their neighbour (optimal string alignment).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest(const std::vector<std::string>& ours, std::string given) {
  if (given.starts_with("--")) std::ranges::replace(given, '_', '-');
  for (const OtherName& name : kOtherNames)
    if (name.theirs == given && std::ranges::find(ours, name.ours) != ours.end())
      return std::string(name.ours);
  std::string best;
  std::size_t least = std::max<std::size_t>(1, given.size() / 4) + 1;
  for (const std::string& name : ours) {
    if (name.starts_with("-") != given.starts_with("-")) continue;
    if (const std::size_t changes = distance(given, name); changes < least) {
      least = changes;
      best = name;
    }
  }
  return best;
}

}  // namespace

std::string suggestion(const std::vector<std::string>& refused, const std::vector<std::string>& ours) {
  for (const std::string& argument : refused) {
    const std::string given = argument.substr(0, argument.find('='));
    const std::string found = nearest(ours, given);
    if (!found.empty()) return "; by " + escaped(given, 60) + ", did you mean " + found + "?";
  }
  return "";
}

}  // namespace ark
