// Notices the death of rank processes: the kernel closes a killed process's connections at once.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "dma/bootstrap.h"
#include "dma/bootstrap/socket.h"

namespace ark::dma {

// Rank 0 watches all others and passes their deaths on; the others watch rank 0.
class Watch {
 public:
  // `sockets` as Connections::watch.
  Watch(int rank, int size, std::vector<Socket> sockets, WatchOptions options);
  ~Watch();

  void start(Bootstrap::OnDeath on_death);
  // Ends the thread and says good-bye.
  void leave();
  // As Bootstrap.
  std::string silence() const;
  // Any thread.
  void report_dead(int rank, const std::string& why);

 private:
  using Clock = std::chrono::steady_clock;

  void run(std::stop_token stop);
  void read(int rank);
  void check_silence();
  void send_beats();
  void stop_thread();
  // Reports a death once, here and (as rank 0) to the others.
  void mark_dead(int rank, const std::string& why);
  void send(int to, FrameKind kind, int about, const std::string& payload);

  const int rank_;
  const int size_;
  const WatchOptions options_;
  std::vector<Socket> sockets_;   // by rank; read by the thread only
  std::vector<int> beats_;        // by rank: ours since its last; read by the thread only
  std::vector<int> unconfirmed_;  // by rank: of those, in a row; read by the thread only
  std::vector<bool> closed_;      // by rank: left, or known to be dead on this connection
  Socket wake_;                   // an eventfd that ends poll()

  mutable std::mutex mutex_;  // guards sends and what follows
  std::vector<bool> dead_;    // by rank
  std::string silence_;       // as silence()
  Bootstrap::OnDeath on_death_;
  std::jthread thread_;
};

}  // namespace ark::dma
