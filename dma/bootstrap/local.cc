// LocalBootstrap: ranks as threads, meeting in one shared room.
#include <condition_variable>
#include <mutex>

#include "base/error.h"
#include "dma/bootstrap.h"

namespace ark::dma {
namespace {

struct Room {
  explicit Room(int size) : blobs(size), has_given(size), left(size), dead(size), callbacks(size) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> blobs;  // of the round that is being gathered
  std::vector<bool> has_given;
  int given = 0;
  uint64_t round = 0;
  std::vector<std::string> result;  // of the last complete round; stable until all have given again
  std::vector<bool> left, dead;
  std::vector<Bootstrap::OnDeath> callbacks;
};

class LocalBootstrap : public Bootstrap {
 public:
  LocalBootstrap(int rank, std::shared_ptr<Room> room) : rank_(rank), room_(std::move(room)) {}

  ~LocalBootstrap() override {
    std::lock_guard lock(room_->mutex);
    room_->callbacks[rank_] = nullptr;
    if (!room_->left[rank_]) spread(rank_, "ended without leaving the group");
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(room_->blobs.size()); }

  std::vector<std::string> all_gather(std::string_view blob, Deadline deadline) override {
    std::unique_lock lock(room_->mutex);
    const uint64_t round = room_->round;
    room_->blobs[rank_] = blob;
    room_->has_given[rank_] = true;
    if (++room_->given == size()) {
      room_->result = room_->blobs;
      room_->given = 0;
      room_->has_given.assign(size(), false);
      ++room_->round;
      room_->changed.notify_all();
    }
    while (room_->round == round) {
      const std::string gone = missing(true);
      if (!gone.empty()) throw Error(Code::kUnavailable, "ranks gone during set-up:" + gone);
      if (deadline.passed()) throw Error(Code::kUnavailable, "ranks did not come in time:" + missing(false));
      room_->changed.wait_for(lock, std::chrono::milliseconds(20));
    }
    return room_->result;
  }

  void watch(OnDeath on_death) override {
    std::lock_guard lock(room_->mutex);
    room_->callbacks[rank_] = std::move(on_death);
    for (int rank = 0; rank < size(); ++rank) {
      if (room_->dead[rank] && rank != rank_) room_->callbacks[rank_](rank, "reported dead before the watch");
    }
  }

  void check_alive() override {
    std::lock_guard lock(room_->mutex);
    for (int rank = 0; rank < size(); ++rank)
      if (room_->dead[rank] && rank != rank_)
        throw Error(Code::kUnavailable, "rank " + std::to_string(rank) + " is gone during set-up");
  }

  void report_dead(int rank, const std::string& why) override {
    std::lock_guard lock(room_->mutex);
    spread(rank, why);
  }

  void leave() override {
    std::lock_guard lock(room_->mutex);
    room_->left[rank_] = true;
    room_->callbacks[rank_] = nullptr;
    room_->changed.notify_all();
  }

 private:
  void spread(int rank, const std::string& why) {
    if (room_->dead.at(rank)) return;
    room_->dead[rank] = true;
    for (int other = 0; other < size(); ++other) {
      if (other != rank && room_->callbacks[other]) room_->callbacks[other](rank, why);
    }
    room_->changed.notify_all();
  }

  // Ranks that have not given their blob of this round; `gone` only: those that never will.
  std::string missing(bool gone) const {
    std::string ranks;
    for (int rank = 0; rank < size(); ++rank) {
      const bool never = room_->left[rank] || room_->dead[rank];
      if (!room_->has_given[rank] && (never || !gone)) ranks += " " + std::to_string(rank);
    }
    return ranks;
  }

  const int rank_;
  const std::shared_ptr<Room> room_;
};

}  // namespace

std::vector<std::unique_ptr<Bootstrap>> make_local_bootstraps(int size) {
  auto room = std::make_shared<Room>(size);
  std::vector<std::unique_ptr<Bootstrap>> members;
  for (int rank = 0; rank < size; ++rank) members.push_back(std::make_unique<LocalBootstrap>(rank, room));
  return members;
}

}  // namespace ark::dma
