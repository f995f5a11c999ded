// How ark-serve ends: signals are counted, and a thread ends the process when something does not end by itself.
//
// SIGTERM and SIGINT ask for an end, SIGHUP for reading the keys again and opening the log anew. SIGUSR1, SIGUSR2 and
// SIGALRM mean nothing here and are ignored; SIGQUIT ends at once with a core, as everywhere.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

namespace ark {

class Ending {
 public:
  static constexpr int kStuck = 75;  // exit code: the process had to be ended, the last line says by what

  // From now on signals are counted; once in a process. `timeout`: after the first, until all must have ended, and a
  // little more; a second leaves only the little.
  explicit Ending(std::chrono::milliseconds timeout);

  static int asked();    // how often
  static int reloads();  // how often SIGHUP came
  // What happens now, and what may hold it up, for the line of a forced end. Until the first call the process ends with
  // the first signal: there is nothing to lose.
  void now(const std::string& what, std::function<std::string()> held_up_by = {});
  // The end begins without a signal, and gets no more than `patience`; `code` if that is not enough.
  void begin(std::chrono::milliseconds patience, int code);

 private:
  void watch();
  [[noreturn]] void force();

  using Clock = std::chrono::steady_clock;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;  // guards what follows
  std::string what_;
  std::function<std::string()> held_up_by_;
  Clock::time_point deadline_ = Clock::time_point::max();
  int code_ = kStuck;
};

}  // namespace ark
