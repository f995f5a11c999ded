// EnvironmentBootstrap: ranks as processes that any launcher starts.
#include <sys/socket.h>

#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "dma/blob.h"
#include "dma/bootstrap.h"
#include "dma/bootstrap/key.h"
#include "dma/bootstrap/meeting.h"
#include "dma/bootstrap/watch.h"
#include "dma/mpi/meet.h"

namespace ark::dma {
namespace {

constexpr int kMaxRanks = 1024;

bool is_there(const char* name) { return std::getenv(name) != nullptr; }

// One is enough: half a set is an error and not a server that is alone.
bool has_variables() {
  return is_there("ARK_RANK") || is_there("ARK_WORLD_SIZE") || is_there("ARK_BOOTSTRAP") ||
         is_there("ARK_MASTER_ADDR");
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    throw Error(Code::kUsage, std::string(name) + " is not set; a rank needs ARK_RANK, ARK_WORLD_SIZE and " +
                                  "ARK_BOOTSTRAP, or ARK_MASTER_ADDR and ARK_MASTER_PORT");
  }
  return value;
}

int integer(const char* name, int low, int high) {
  const std::string text = variable(name);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    throw Error(Code::kUsage, std::string(name) + "=" + escaped(text) + ": want an integer from " +
                                  std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

class EnvironmentBootstrap : public Bootstrap {
 public:
  EnvironmentBootstrap(const Environment& environment, Deadline deadline, WatchOptions options)
      : EnvironmentBootstrap(environment, meet(environment, deadline), options) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::string> all_gather(std::string_view blob, Deadline deadline) override {
    return rank_ == 0 ? gather_and_spread(blob, deadline) : give_and_take(blob, deadline);
  }
  void watch(OnDeath on_death) override {
    std::unique_lock lock(mutex_);
    on_death_ = std::move(on_death);
    const auto early = deaths_;
    lock.unlock();
    for (const auto& [rank, why] : early) on_death_(rank, why);
  }
  void check_alive() override {
    std::lock_guard lock(mutex_);
    for (const auto& [rank, why] : deaths_)
      throw Error(Code::kUnavailable, "rank " + std::to_string(rank) + " is gone during set-up: " + why);
  }
  std::string silence() const override { return watch_.silence(); }
  void report_dead(int rank, const std::string& why) override { watch_.report_dead(rank, why); }
  std::string address() const override { return address_; }
  std::string key() const override { return key_; }
  void leave() override { watch_.leave(); }

 private:
  EnvironmentBootstrap(const Environment& environment, Connections connections, WatchOptions options)
      : rank_(environment.rank),
        size_(environment.size),
        address_(std::move(connections.address)),
        key_(environment.key),
        gather_(std::move(connections.gather)),
        watch_(rank_, size_, std::move(connections.watch), options) {
    watch_.start([this](int rank, const std::string& why) { note_death(rank, why); });
  }

  // Ranks may die from their joining on; who waits for one in a gathering waits no longer.
  void note_death(int rank, const std::string& why) {
    std::unique_lock lock(mutex_);
    deaths_.emplace(rank, why);
    if (static_cast<size_t>(rank) < gather_.size() && gather_[rank].is_open())
      shutdown(gather_[rank].descriptor(), SHUT_RD);
    const OnDeath tell = on_death_;
    lock.unlock();
    if (tell) tell(rank, why);
  }
  // What the watch knows, behind "rank 2 is gone during set-up".
  std::string reason(int rank) {
    std::lock_guard lock(mutex_);
    const auto found = deaths_.find(rank);
    return found == deaths_.end() ? "" : ": " + found->second;
  }

  std::vector<std::string> gather_and_spread(std::string_view blob, Deadline deadline) {
    std::vector<std::string> blobs(size_);
    blobs[0] = blob;
    std::string trouble;
    for (int rank = 1; rank < size_ && trouble.empty(); ++rank) {
      Frame frame;
      const Received got = receive_frame(gather_[rank], frame, kMaxPayload, deadline);
      if (got == Received::kFrame && frame.header.kind == FrameKind::kBlob) {
        blobs[rank] = std::move(frame.payload);
      } else {
        trouble = "rank " + std::to_string(rank) +
                  (got == Received::kClosed    ? " is gone"
                   : got == Received::kLate    ? " is late"
                   : got == Received::kDamaged ? kDamagedOnItsWay
                                               : " sends garbage") +
                  " during set-up" + reason(rank);
      }
    }
    BlobWriter table;
    for (const std::string& one : blobs) table.text(one);
    const std::string payload = trouble.empty() ? table.take() : trouble;
    if (payload.size() > kMaxPayload) {
      throw Error(Code::kUnsupported,
                  "the blobs of all ranks are over " + std::to_string(kMaxPayload) + " bytes");
    }
    const FrameKind kind = trouble.empty() ? FrameKind::kTable : FrameKind::kRefused;
    // Trouble is told with a little time of its own: the deadline may be what has passed.
    const Deadline until = trouble.empty() ? deadline : Deadline::after(std::chrono::milliseconds(200));
    for (int rank = 1; rank < size_; ++rank) send_frame(gather_[rank], kind, 0, size_, payload, until);
    if (!trouble.empty()) throw Error(Code::kUnavailable, trouble);
    return blobs;
  }

  std::vector<std::string> give_and_take(std::string_view blob, Deadline deadline) {
    send_frame(gather_[0], FrameKind::kBlob, rank_, size_, blob, deadline);
    Frame frame;
    const Received got = receive_frame(gather_[0], frame, kMaxPayload, deadline);
    if (got != Received::kFrame) {
      throw Error(Code::kUnavailable, got == Received::kClosed ? "rank 0 is gone during set-up" + reason(0)
                                      : got == Received::kLate ? "rank 0 is late during set-up"
                                      : got == Received::kDamaged
                                          ? std::string("rank 0") + kDamagedOnItsWay + " during set-up"
                                          : "rank 0 sends garbage during set-up");
    }
    if (frame.header.kind == FrameKind::kRefused)
      throw Error(Code::kUnavailable, escaped(frame.payload, 500));
    BlobReader table(frame.payload, "rank 0: its table of blobs");
    std::vector<std::string> blobs;
    for (int rank = 0; rank < size_; ++rank) blobs.emplace_back(table.text());
    table.end();
    return blobs;
  }

  const int rank_;
  const int size_;
  const std::string address_, key_;
  std::vector<Socket> gather_;  // as Connections::gather
  std::mutex mutex_;            // guards what follows
  OnDeath on_death_;
  std::map<int, std::string> deaths_;  // by rank: why
  Watch watch_;
};

}  // namespace

Environment Environment::from_process(const std::filesystem::path& key_file) {
  const char* given = std::getenv("ARK_CLUSTER_KEY_FILE");
  const std::filesystem::path file = key_file.empty() && given != nullptr ? given : key_file;
  const std::string key = file.empty() ? "" : read_cluster_key(file);
  if (!has_variables()) return meet_by_mpi(key);
  Environment environment;
  environment.size = integer("ARK_WORLD_SIZE", 1, kMaxRanks);
  environment.rank = integer("ARK_RANK", 0, environment.size - 1);
  if (is_there("ARK_BOOTSTRAP")) {
    environment.address = variable("ARK_BOOTSTRAP");
  } else {
    const int port = integer("ARK_MASTER_PORT", 1, 65535);
    environment.address = address_of(variable("ARK_MASTER_ADDR"), static_cast<uint16_t>(port));
    // On its own machine rank 0's name may mean loopback, or nothing yet. Strangers do not get past the key.
    if (environment.rank == 0 && !key.empty() && !is_local(environment.address))
      environment.everywhere = static_cast<uint16_t>(port);
  }
  if (!is_unix(environment.address)) environment.key = key;
  return environment;
}

bool Environment::is_set() { return has_variables() || is_started_by_mpi(); }

std::unique_ptr<Bootstrap> join_environment(const Environment& environment, Deadline deadline,
                                            WatchOptions options) {
  return std::make_unique<EnvironmentBootstrap>(environment, deadline, options);
}

}  // namespace ark::dma
