// Which effect an instruction has, by its name.
#include <cstdlib>
#include <set>
#include <sstream>

#include "tests/emulator/ptx/thread.h"

namespace ark::emulator::ptx {
namespace {

struct Effect {
  void (Thread::*run)(const Instruction&);
  int argument = 0;
  Space space = Space::kGeneric;
  WordScope scope = WordScope::kBlock;
};

const std::unordered_map<std::string, Effect>& effects() {
  using T = Thread;
  static const auto* const kAll = [] {
    auto* all = new std::unordered_map<std::string, Effect>{
        {"bar.sync", {&T::barrier, 1}},
        {"bar.arrive", {&T::barrier, 0}},
        {"bar.red.or.pred", {&T::barrier_or}},
        {"bar.warp.sync", {&T::sync_warp}},
        {"setmaxnreg.dec.sync.aligned.u32", {&T::move_registers, 0}},
        {"setmaxnreg.inc.sync.aligned.u32", {&T::move_registers, 1}},
        {"shfl.sync.idx.b32", {&T::shuffle, static_cast<int>(Shuffle::kIndex)}},
        {"shfl.sync.bfly.b32", {&T::shuffle, static_cast<int>(Shuffle::kXor)}},
        {"shfl.sync.down.b32", {&T::shuffle, static_cast<int>(Shuffle::kDown)}},
        {"shfl.sync.up.b32", {&T::shuffle, static_cast<int>(Shuffle::kUp)}},
        {"vote.sync.ballot.b32", {&T::ballot}},
        {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", {&T::ldmatrix, 0, Space::kShared}},
        {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", {&T::ldmatrix, 1, Space::kShared}},
        {"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", {&T::mma, 1}},
        {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", {&T::mma, 0}},
        {"fence.acq_rel.cta", {&T::fence, 0, Space::kGeneric, WordScope::kBlock}},
        {"fence.acq_rel.gpu", {&T::fence, 0, Space::kGeneric, WordScope::kGpu}},
        {"fence.acq_rel.sys", {&T::fence, 0, Space::kGeneric, WordScope::kSystem}},
        {"cp.async.cg.shared.global", {&T::cp_async}},
        {"cp.async.commit_group", {&T::cp_async_commit}},
        {"cp.async.wait_group", {&T::cp_async_wait}},
        {"cp.async.mbarrier.arrive.noinc.shared.b64", {&T::cp_async_arrive}},
        {"mbarrier.init.shared.b64", {&T::mbarrier_init}},
        {"mbarrier.inval.shared.b64", {&T::mbarrier_inval}},
        {"fence.mbarrier_init.release.cluster", {&T::mbarrier_init_fence}},
        {"mbarrier.arrive.shared.b64", {&T::mbarrier_arrive}},
        {"mbarrier.arrive.expect_tx.shared.b64", {&T::mbarrier_arrive}},
        {"mbarrier.test_wait.parity.shared.b64", {&T::mbarrier_wait}},
        {"mbarrier.try_wait.parity.shared.b64", {&T::mbarrier_wait}},
        {"fence.proxy.async", {&T::fence_proxy}},
        {"createpolicy.fractional.L2::evict_first.b64", {&T::create_policy}},
        {"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint", {&T::bulk_load}},
        {"cp.async.bulk.global.shared::cta.bulk_group", {&T::bulk_store}},
        {"cp.async.bulk.commit_group", {&T::bulk_commit}},
        {"cp.async.bulk.wait_group", {&T::bulk_wait}},
        {"prefetch.global.L2", {&T::prefetch}},
        {"cp.async.bulk.prefetch.L2.global", {&T::bulk_prefetch}},
        {"nanosleep.u32", {&T::nanosleep}},
        {"trap", {&T::trap}}};
    for (const char* type : {"b", "u", "s", "f"}) {
      for (const int bytes : {2, 4, 8})
        (*all)[std::string("mov.") + type + std::to_string(8 * bytes)] = {&T::move, bytes};
    }
    (*all)["mov.pred"] = {&T::move, 8};
    for (const auto& [name, space] : {std::pair{"global", Space::kGlobal},
                                      {"shared", Space::kShared},
                                      {"local", Space::kLocal},
                                      {"param", Space::kParameter}}) {
      (*all)[std::string("cvta.") + name + ".u64"] = {&T::to_generic, 0, space};
      if (space != Space::kParameter)
        (*all)[std::string("cvta.to.") + name + ".u64"] = {&T::from_generic, 0, space};
    }
    return all;
  }();
  return *kAll;
}

// ld, st, atom and red: modifiers in the order in which PTX has them.
bool bind_access(Instruction& i) {
  std::istringstream words(i.name);
  std::vector<std::string> parts;
  for (std::string part; std::getline(words, part, '.');) parts.push_back(part);
  const std::string what = parts[0];
  if (what != "ld" && what != "st" && what != "atom" && what != "red") return false;
  std::size_t at = 1;
  const auto take = [&](const char* word) {
    const bool is_here = at < parts.size() && parts[at] == word;
    at += is_here;
    return is_here;
  };
  Access& a = i.access;
  const bool is_load = what == "ld", is_store = what == "st";
  if (is_load && take("relaxed")) a.operation = WordOperation::kLoadRelaxed;
  if (is_load && take("acquire")) a.operation = WordOperation::kLoadAcquire;
  if (is_store && take("relaxed")) a.operation = WordOperation::kStoreRelaxed;
  if (is_store && take("release")) a.operation = WordOperation::kStoreRelease;
  if (what == "red" && take("relaxed")) a.operation = WordOperation::kAddRelaxed;
  if (what == "red" && take("release")) a.operation = WordOperation::kAddRelease;
  if (what == "atom" && take("acq_rel")) a.operation = WordOperation::kAdd;
  if (a.operation) {
    if (take("cta"))
      a.scope = WordScope::kBlock;
    else if (take("gpu"))
      a.scope = WordScope::kGpu;
    else if (take("sys"))
      a.scope = WordScope::kSystem;
    else
      return false;
  } else if (!is_load && !is_store) {
    return false;
  }
  if (take("global"))
    a.space = Space::kGlobal;
  else if (take("shared"))
    a.space = Space::kShared;
  else if (take("local"))
    a.space = Space::kLocal;
  else if (take("param"))
    a.space = Space::kParameter;
  if (is_load && a.space == Space::kGlobal && !a.operation) {
    a.is_cached_in_l2 = take("cg");
    a.is_constant = !a.is_cached_in_l2 && take("nc");
  }
  i.effect = is_load ? &Thread::load : &Thread::store;
  if (what == "atom" || what == "red") {
    const bool swaps = what == "atom" && take("cas");
    if (!swaps && !take("add")) return false;
    if (swaps) a.operation = WordOperation::kCompareSwap;
    if (what == "atom") i.effect = swaps ? &Thread::compare_and_swap : &Thread::add;
  }
  if (take("v2"))
    a.count = 2;
  else if (take("v4"))
    a.count = 4;
  if (at + 1 != parts.size()) return false;
  const std::string& type = parts[at];
  a.bytes = std::atoi(type.c_str() + 1) / 8;
  a.is_signed = type[0] == 's';
  const bool is_word = !a.operation || (a.bytes >= 4 && (a.count == 1 || is_load || is_store));
  return is_word && std::string("bsuf").find(type[0]) != std::string::npos &&
         (a.bytes == 1 || a.bytes == 2 || a.bytes == 4 || a.bytes == 8) && a.bytes * a.count <= 16;
}

}  // namespace

bool bind_effect(Instruction& i) {
  const auto found = effects().find(i.name);
  if (found == effects().end()) return bind_access(i);
  i.effect = found->second.run;
  i.argument = found->second.argument;
  i.access.space = found->second.space;
  i.access.scope = found->second.scope;
  return true;
}

std::function<void(const void*)> kernel(std::shared_ptr<const Module> module, const std::string& entry,
                                        std::shared_ptr<WorkLog> log) {
  return [module, log, &f = *module->functions.at(entry)](const void* parameter) {
    Thread(*module, log.get()).run(f, static_cast<const std::byte*>(parameter), {});
  };
}

std::vector<std::string> never_run(const Module& module) {
  std::unordered_map<std::string, uint64_t> runs;
  for (const auto& [name, function] : module.functions) {
    for (const Instruction& i : function->code) runs[i.name] += i.runs;
  }
  std::set<std::string> never;
  for (const auto& [name, count] : runs) {
    if (!count) never.insert(name);
  }
  return {never.begin(), never.end()};
}

}  // namespace ark::emulator::ptx
