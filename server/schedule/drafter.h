// A smaller model that guesses what comes next (speculative decoding, arXiv:2211.17192). It samples as the request asks
// and with the request's noise, so that it says what the large one will say wherever both find the same tokens likely.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/run/runner.h"
#include "server/schedule/pace.h"

namespace ark::schedule {

// Scheduler thread only: nothing else uses `runner`, whose steps are done when a call returns.
class Drafter {
 public:
  // Of a model whose tokens mean the same and whose keys and values lie in its pages alone; outlives the drafter.
  explicit Drafter(StepRunner& runner);

  struct Question {
    int32_t slot = 0;               // of the sequence; what another one had there is forgotten
    std::span<const int32_t> text;  // all its tokens
    SamplingParams sampling;
    int32_t most = 0;              // tokens wanted
    std::vector<int32_t> guesses;  // the answer: fewer where length, pages or vocabulary end
  };
  // Reads what it has not read, at most as much of all together as fits in one step: who is not through has no guesses
  // yet. Then a step for each further guess of all together.
  void answer(std::span<Question> questions);

  // Tokens that it must read before it can guess.
  int32_t unread(int32_t slot, std::span<const int32_t> text) const;

  struct Prices {
    double guess = 0, read = 0;  // seconds: a step of guesses, a token that is read. 0: not known
  };
  Prices prices() const;
  // It was not asked although it could have been. A high price, too, is looked at again: `likely`, seconds of a guess,
  // is then as good as known.
  void passed_over(double likely);

  // How many of its guesses come true where that is not known of the sequence; learns from those that do and do not.
  double agreement() const { return agreement_; }
  void learn(int32_t right, int32_t wrong);

  bool has_failed() const { return has_failed_; }  // and then guesses nothing

 private:
  struct Slot {
    std::vector<int32_t> held;  // tokens whose keys and values it has
    std::vector<int32_t> pages;
    std::size_t pages_known = 0;  // entries of `pages` that the device's table holds
    uint64_t used = 0;            // the call that last asked about it
  };
  struct Asked {
    Question* question;
    Slot* slot;
  };

  void answer_or_throw(std::span<Question> questions);
  bool take_pages(Slot& slot, int32_t tokens);
  std::vector<Asked> read(std::span<Question> questions);
  void go_on(std::vector<Asked> asked);
  StepResult wait();
  static void take(const std::vector<Asked>& asked, const StepResult& result);

  StepRunner& runner_;
  const RunnerLimits limits_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_pages_;
  uint64_t calls_ = 0;
  int32_t passed_over_ = 0;  // times since it was asked last
  Recent guess_seconds_, read_seconds_;
  double agreement_ = 0.7;
  bool has_failed_ = false;
};

}  // namespace ark::schedule
