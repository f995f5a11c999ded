// How ranks find each other before any channel exists, and how they notice that one has died.
//
// An interface, so that MPI can be a shared object of its own that implements it; ark ships two:
// LocalBootstrap (ranks are threads) and EnvironmentBootstrap (ranks are processes, any launcher).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dma/wait.h"

namespace ark::dma {

class Bootstrap {
 public:
  // Without leave() before, the others are told that this rank has died.
  virtual ~Bootstrap() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Collective: every rank gives a blob and gets those of all, by rank. All ranks make the same calls in
  // the same order. Throws Error(kUnavailable) naming the ranks that are missing or gone.
  virtual std::vector<std::string> all_gather(std::string_view blob, Deadline deadline) = 0;
  void barrier(Deadline deadline) { all_gather({}, deadline); }
  // Collective: every rank does its `step`. An Error on one ends in Error(kUnavailable) on all, naming that rank.
  void together(Deadline deadline, const std::function<void()>& step);

  // Starts to watch the other ranks. `on_death` is called at most once per dead rank, from a thread of the
  // bootstrap's own or of a peer, until this object is destroyed or left. Called once.
  using OnDeath = std::function<void(int rank, const std::string& why)>;
  virtual void watch(OnDeath on_death) = 0;

  // Throws Error(kUnavailable) that names who has died, if anybody has: for waits of set-up that are no gatherings. Any
  // thread.
  virtual void check_alive() {}

  // Which rank has shown no sign of life for two seconds, or whose machine has confirmed nothing for one, in one line;
  // empty while all have. Any thread.
  virtual std::string silence() const { return {}; }

  // Where ranks on other machines reach this one, as the meeting has shown it; "" where all have met on one.
  virtual std::string address() const { return {}; }
  // What ranks of this group show to know where they connect to each other; "" where only this machine can.
  virtual std::string key() const { return {}; }

  // Goes in good order: the others are not told of a death. Last call before destruction.
  virtual void leave() = 0;

  // Tells all others that `rank` (often the caller itself) is to be taken for dead.
  virtual void report_dead(int rank, const std::string& why) = 0;
};

// Ranks as threads of one process. Make all members at once, hand each to its thread.
std::vector<std::unique_ptr<Bootstrap>> make_local_bootstraps(int size);

class Socket;

// Where a rank process finds its group.
struct Environment {
  int rank = 0;
  int size = 1;
  // Rank 0's meeting place: "@name" (abstract unix socket), a folder or "/path/name.sock" (unix socket), or
  // "host:port" (TCP; IPv6 as "[host]:port"; several with commas between: the first that answers).
  std::string address;
  // Of rank 0, may be empty: asked while ranks are awaited; says why one will never come, or "".
  std::function<std::string()> lost = {};
  std::string key = {};                        // that all ranks know; empty: `address` is of this machine
  std::shared_ptr<Socket> listener = nullptr;  // of rank 0, where it is not made from `address`
  // Of rank 0: it listens at this port of all its addresses; 0: where `address` says.
  uint16_t everywhere = 0;

  // From ARK_RANK, ARK_WORLD_SIZE and ARK_BOOTSTRAP, or ARK_MASTER_ADDR and ARK_MASTER_PORT; else from MPI
  // (dma/mpi/meet.h). `key_file`, or ARK_CLUSTER_KEY_FILE, is read where ranks meet by TCP. Throws Error(kUsage) naming
  // the variable, and as read_cluster_key.
  static Environment from_process(const std::filesystem::path& key_file = {});
  static bool is_set();  // whether a launcher has started this process as one of several
};

struct WatchOptions {
  // A rank that stays silent so long counts as dead, from its joining on; a closed connection, which the
  // kernel reports at once for any death of a process, does at once, and a machine that confirms no byte after two
  // seconds. Counted in life signs of our own: where all of the machine pauses, nobody is silent. 0: never.
  std::chrono::milliseconds silence{5'000};
};

// Joins the group through rank 0's meeting place. Throws Error(kUnavailable) naming who is missing when
// `deadline` passes, Error(kUsage) if the ranks disagree about the group.
std::unique_ptr<Bootstrap> join_environment(const Environment& environment, Deadline deadline,
                                            WatchOptions options = {});

}  // namespace ark::dma
