#include "engine/program/exchange_checks.h"

#include <algorithm>
#include <bit>

#include "base/index.h"
#include "base/ir/keys.h"
#include "engine/program/unroll.h"

namespace ark {
namespace {

// What ranks add up are rows of one table by the same ids, each rank's from its own part of it: a row is zeros on all
// ranks but the one that has its id. All ranks have the ids that the step brings.
std::string check_rows(const PhaseView& p, std::size_t ids) {
  const Program& program = p.program();
  const std::vector<int64_t>& borders = p.variant().attributes.get(key::kBorders);
  if (std::ssize(borders) != program.ranks + 1 || !std::is_sorted(borders.begin(), borders.end()))
    return "its borders are not those of parts of all ranks";
  if (p.id(ids) != program.token_ids) return "its rows are not those of the step's tokens";
  const auto is_table = [&](const Instance& i) {
    const Phase& phase = program.phases[i.phase];
    if (program.variants[phase.variant].code != OpCode::kEmbed) return false;
    const auto operand = [&](std::size_t o) { return resolve(program, phase, phase.operands[o], i.trip); };
    if (operand(2) != p.id(0) || operand(0) != program.token_ids) return false;
    const Range rows = program.weights[program.buffers[operand(1)].weight].ranges[0];
    return rows == Range{borders[at(program.rank)], borders[at(program.rank) + 1]};
  };
  const std::vector<Instance> step = unroll(program);
  return std::any_of(step.begin(), step.end(), is_table)
             ? ""
             : "its rows are not those of the rank's part of a table";
}

// The ranks whose parts a kRecvReduce adds up, in order.
std::vector<int32_t> members(const Program& program, const Phase& phase, int32_t trip) {
  std::vector<int32_t> ranks = {program.rank};
  for (std::size_t i = 1; i + 3 < phase.operands.size(); ++i) {
    const BufferId inbox = resolve(program, phase, phase.operands[i], trip);
    if (inbox != kNone && program.buffers[inbox].kind == BufferKind::kInbox)
      ranks.push_back(program.channels[program.buffers[inbox].channel].peer);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Whether `ranks` are first, first + step, ...
bool run_from(const std::vector<int32_t>& ranks, int32_t first, int32_t step) {
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i] != first + static_cast<int32_t>(i) * step) return false;
  return true;
}

}  // namespace

std::string check_send(const PhaseView& p) {
  if (p.buffer(0).kind == BufferKind::kWeight) return "sends no activation";
  return max_bytes(p.program(), p.id(0)) <= p.program().channels[p.phase().channel].bytes
             ? ""
             : "message larger than its channel";
}

// Adds up all ranks' parts; or those of the ranks of a machine, of which there are a power of two; or the sums of all
// machines. So these two are the tree of all ranks' parts.
std::string check_reduce(const PhaseView& p) {
  const Program& program = p.program();
  const std::vector<int32_t> ranks = members(program, p.phase(), p.trip());
  const auto count = static_cast<int32_t>(ranks.size());
  if (count == program.ranks) return "";
  const auto is_machine = [&](const std::vector<int32_t>& some) {
    const auto n = static_cast<int32_t>(some.size());
    return program.ranks % n == 0 && std::has_single_bit(static_cast<uint32_t>(program.ranks / n)) &&
           run_from(some, program.rank / n * n, 1);
  };
  if (is_machine(ranks)) return p.variant().epilogue == 0 ? "" : "has an epilogue before all is added up";
  const int32_t machine = program.ranks / count;
  const auto is_sum = [&](const Instance& i) {
    const Phase& phase = program.phases[i.phase];
    if (program.variants[phase.variant].code != OpCode::kRecvReduce ||
        resolve(program, phase, phase.operands.back(), i.trip) != p.id(0))
      return false;
    const std::vector<int32_t> parts = members(program, phase, i.trip);
    return std::ssize(parts) == machine && is_machine(parts);
  };
  const std::vector<Instance> step = unroll(program);
  const bool fits = program.ranks % count == 0 && run_from(ranks, program.rank % machine, machine) &&
                    std::any_of(step.begin(), step.end(), is_sum);
  return fits ? "" : "adds up parts of some ranks that are no machine's, nor sums of all machines";
}

std::string check_send_rows(const PhaseView& p) {
  const std::string problem = check_send(p);
  return problem.empty() ? check_rows(p, 1) : problem;
}

std::string check_recv_rows(const PhaseView& p) { return check_rows(p, p.count() - 4); }

}  // namespace ark
