// What the blocks of a loop do in each instance of a step, counted while their PTX runs: held against what the model of
// its cost says (engine/cuda/cost/work.h, which says what is counted).
//
// A thread's clock is the number of rounds of global loads that it has waited for. A load's value is there one round
// behind the load. It is waited for where it decides an address, a store or a branch (a processor issues in order), or
// at the end of the basic block that computes with it (the compiler moves instructions within one, but no load over a
// branch). Barriers hand the longest clock on. Of a wait's polls the last one counts. A wait for all of a thread's
// copies is a round if it has passed no barrier, and seen no stage of weights, since they began; copies of what was not
// there are polls.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/cuda/cost/work.h"
#include "tests/emulator/core.h"
#include "tests/emulator/ptx/ptx.h"

namespace ark::emulator::ptx {

using cuda::cost::Counts;

// Of all threads of a launch.
class WorkLog {
 public:
  // Of a block in instance `instance` of step `step` (from 0).
  Counts& at(uint64_t step, int instance, int block) { return all_[{step, instance, block}]; }
  const std::map<std::tuple<uint64_t, int, int>, Counts>& all() const { return all_; }

  // That a block is through with.
  uint64_t& steps(int block) { return steps_[block]; }

  // The longest clock of those that came to a block's barrier `id` for the turn-th time.
  uint32_t& clock(int block, int id, std::size_t turn) {
    std::vector<uint32_t>& turns = clocks_[{block, id}];
    if (turns.size() <= turn) turns.resize(turn + 1);
    return turns[turn];
  }

 private:
  std::map<std::tuple<uint64_t, int, int>, Counts> all_;
  std::map<std::pair<int, int>, std::vector<uint32_t>> clocks_;
  std::map<int, uint64_t> steps_;
};

// Of one thread.
class ThreadWork {
 public:
  explicit ThreadWork(WorkLog* log) : log_(log) {}
  explicit operator bool() const { return log_ != nullptr; }

  // ---- rounds. `known`: the round behind which a register's value is there

  void use(uint32_t known) { now_ = std::max(now_, known); }
  uint32_t compute(uint32_t known) {
    pending_ = std::max(pending_, known);
    return known;
  }
  void decide(uint32_t known, bool is_branch) {
    use(known);
    if (is_branch) end_basic_block();
  }
  void end_basic_block() { use(pending_); }
  uint32_t load(bool is_global) const { return now_ + is_global; }
  void copy() { copied_ = now_ + 1; }
  // `all`: of the thread's. What they have brought may be looked at, word by word, and asked for again: that is a poll
  // of these.
  void wait_for_copies(bool all) {
    if (looks_) return;
    look_ = now_;
    if (all) use(std::exchange(copied_, 0));
    look_rounds_ = now_ - look_;
    looks_ = true, asks_again_ = false;
  }

  // ---- words

  void word(WordOperation operation) {
    const bool stores =
        operation == WordOperation::kStoreRelaxed || operation == WordOperation::kStoreRelease;
    if (operation != WordOperation::kStoreRelaxed && operation != WordOperation::kAddRelaxed)
      count(&Counts::fences);
    if (!stores) count(&Counts::atomics);
  }
  void fence() { count(&Counts::fences); }
  // A look at a word, maybe again and again; at a stage of weights, for whose bytes copies go on.
  void stage() {
    copied_ = 0;
    poll(false);
  }
  void poll(bool acquires) {
    asks_again_ = true;
    if (waits_) return;
    first_look_ = now_;
    if (acquires) count(&Counts::fences);
  }
  // It was not what the thread waits for.
  void try_again() {
    now_ = first_look_, pending_ = 0;
    waits_ = true;
  }
  // All lanes are together, so that none waits any more; or the thread stores something, which no wait does.
  void meet() {
    if (looks_ && asks_again_) now_ = look_ + look_rounds_, pending_ = copied_ = 0;
    waits_ = looks_ = false;
  }

  // ---- barriers

  std::size_t reach(int id) {
    meet();
    copied_ = 0;
    const std::size_t turn = turns_[static_cast<std::size_t>(id)]++;
    uint32_t& clock = log_->clock(ids().block, id, turn);
    clock = std::max(clock, now_);
    if (ids().thread == 0) count(&Counts::barriers);
    return turn;
  }
  void pass(int id, std::size_t turn) { use(log_->clock(ids().block, id, turn)); }

  // ---- instances: start_instance(..., instance), and what is called behind the last one of a step

  void call(const Function& callee, const std::byte* arguments) {
    end_basic_block();
    const bool starts = callee.name.find("start_instance") != std::string::npos,
               closes = callee.name.find("close_step") != std::string::npos;
    if (!starts && !closes) return;
    if (instance_ >= 0 && ids().thread == 0)
      log_->at(step_, instance_, ids().block).loads = static_cast<int32_t>(now_ - start_);
    start_ = now_;
    instance_ = -1;
    if (closes && ids().thread == 0)
      ++log_->steps(ids().block);  // all others are in the barriers of a step's border
    if (starts) step_ = log_->steps(ids().block);
    // The compiler leaves out the arguments before it that are not used.
    if (starts) std::memcpy(&instance_, arguments + callee.arguments.back().offset, sizeof instance_);
  }

 private:
  static const ThreadIds& ids() { return *ark_emulator_ids(); }
  void count(int32_t Counts::*what) {
    if (instance_ >= 0) ++(log_->at(step_, instance_, ids().block).*what);
  }

  WorkLog* log_;
  uint32_t now_ = 0, pending_ = 0;
  uint32_t copied_ = 0;                      // behind which copies are there that it would wait for; 0: none
  uint32_t first_look_ = 0;                  // the clock before a wait's first look
  uint32_t look_ = 0, look_rounds_ = 0;      // the clock before a wait for copies; what that took
  bool looks_ = false, asks_again_ = false;  // behind it; words that were not there have been asked for
  bool waits_ = false;                       // it has looked in vain
  std::array<std::size_t, 16> turns_{};
  uint64_t step_ = 0;
  int32_t instance_ = -1;
  uint32_t start_ = 0;
};

}  // namespace ark::emulator::ptx
