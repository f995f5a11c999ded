#include "dma/bootstrap/watch.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "dma/wire_times.h"

namespace ark::dma {
namespace {

constexpr std::chrono::milliseconds kBeat{250};
// Beats of ours without one of the other's: worth a word. A thread that has nothing else to do gets its turn by then
// also on a machine whose load is many times its processors.
constexpr int kSilence = 6;
// Beats of ours that the other's system, not the process, has not confirmed: what load a rank is under does not matter,
// and by then the kernel has sent one up to three times; up to five times: its machine is as good as dead.
constexpr int kUnconfirmed = 3, kCut = 7;
// A peer that does not read its life signs must not hold up ours.
constexpr std::chrono::milliseconds kSendTime{100};

// Whether the peer's system has all that was sent. By TCP alone: elsewhere only its process could say.
bool is_delivered(const Socket& socket) {
  int queued = 0;
  return socket.local_host().empty() || ioctl(socket.descriptor(), SIOCOUTQ, &queued) != 0 || queued == 0;
}

}  // namespace

Watch::Watch(int rank, int size, std::vector<Socket> sockets, WatchOptions options)
    : rank_(rank),
      size_(size),
      options_(options),
      sockets_(std::move(sockets)),
      beats_(sockets_.size()),
      unconfirmed_(sockets_.size()),
      closed_(sockets_.size()),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      dead_(size) {
  if (!wake_.is_open()) throw Error(Code::kOs, std::string("eventfd: ") + std::strerror(errno));
}

Watch::~Watch() { stop_thread(); }

void Watch::start(Bootstrap::OnDeath on_death) {
  on_death_ = std::move(on_death);
  thread_ = std::jthread([this](std::stop_token stop) { run(stop); });
}

void Watch::stop_thread() {
  if (!thread_.joinable()) return;
  thread_.request_stop();
  const uint64_t one = 1;
  if (write(wake_.descriptor(), &one, sizeof one) != sizeof one) return;  // then run() ends at its next beat
  thread_.join();
}

void Watch::leave() {
  stop_thread();
  for (size_t to = 0; to < sockets_.size(); ++to) {
    send(static_cast<int>(to), FrameKind::kLeaving, rank_, {});
  }
  // By TCP a socket that closes with life signs unread resets: what its peer's kernel has not got by then is lost.
  const Deadline farewell = Deadline::after(kFarewell);
  while (!std::ranges::all_of(sockets_, is_delivered) && !farewell.passed()) detail::blind_sleep(1'000'000);
  sockets_.clear();
  closed_.clear();
}

void Watch::report_dead(int rank, const std::string& why) {
  if (rank_ == 0) {
    mark_dead(rank, why);
  } else {
    send(0, FrameKind::kDead, rank, why.substr(0, kMaxReason));
  }
}

void Watch::run(std::stop_token stop) {
  Clock::time_point next_beat = Clock::now();
  while (!stop.stop_requested()) {
    if (Clock::now() >= next_beat) {
      check_silence();
      send_beats();
      next_beat = Clock::now() + kBeat;
    }
    std::vector<pollfd> waiting;
    for (size_t rank = 0; rank < sockets_.size(); ++rank) {
      // poll() passes over negative descriptors: closed connections and our own place.
      waiting.push_back({closed_[rank] ? -1 : sockets_[rank].descriptor(), POLLIN, 0});
    }
    waiting.push_back({wake_.descriptor(), POLLIN, 0});
    if (poll(waiting.data(), waiting.size(), static_cast<int>(kBeat.count())) <= 0) continue;
    for (size_t rank = 0; rank < sockets_.size(); ++rank) {
      if (waiting[rank].revents != 0) read(static_cast<int>(rank));
    }
  }
}

void Watch::read(int rank) {
  Frame frame;
  const Received got = receive_frame(sockets_[rank], frame, kMaxReason, Deadline::after(kSendTime));
  if (got != Received::kFrame) {
    closed_[rank] = true;
    mark_dead(rank, got == Received::kClosed ? "its connection is closed: the process has ended or given up"
                    : got == Received::kDamaged
                        ? "it sends life signs that are damaged on their way (their sum is another)"
                        : "its life signs are garbled");
    return;
  }
  beats_[rank] = 0;
  if (frame.header.kind == FrameKind::kLeaving) closed_[rank] = true;
  if (frame.header.kind == FrameKind::kDead && frame.header.rank < static_cast<uint32_t>(size_)) {
    mark_dead(static_cast<int>(frame.header.rank), escaped(frame.payload, kMaxReason));
  }
}

void Watch::check_silence() {
  std::string silence;
  for (size_t rank = 0; rank < sockets_.size(); ++rank) {
    if (closed_[rank] || !sockets_[rank].is_open()) continue;
    unconfirmed_[rank] = is_delivered(sockets_[rank]) ? 0 : unconfirmed_[rank] + 1;
    ++beats_[rank];
    const std::string name = "rank " + std::to_string(rank);
    std::string end;
    if (unconfirmed_[rank] >= kCut)
      end = "its machine confirms nothing for " + std::to_string((kCut * kBeat).count()) +
            " ms: it is off, or the link to it is cut";
    else if (beats_[rank] * kBeat >= options_.silence)
      end = "silent for " + std::to_string(options_.silence.count()) + " ms";
    if (options_.silence.count() != 0 && !end.empty()) {
      closed_[rank] = true;
      mark_dead(static_cast<int>(rank), end);
    } else if (silence.empty() && unconfirmed_[rank] >= kUnconfirmed) {
      silence = name + "'s machine confirms nothing: it is off, or the link to it is cut";
    } else if (silence.empty() && beats_[rank] > kSilence) {
      silence = name + " shows no sign of life: it hangs, or is stopped";
    }
  }
  std::lock_guard lock(mutex_);
  silence_ = silence;
}

std::string Watch::silence() const {
  std::lock_guard lock(mutex_);
  return silence_;
}

void Watch::send_beats() {
  for (size_t to = 0; to < sockets_.size(); ++to) {
    if (!closed_[to]) send(static_cast<int>(to), FrameKind::kAlive, rank_, {});
  }
}

void Watch::mark_dead(int rank, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (dead_.at(rank)) return;
    dead_[rank] = true;
  }
  if (rank != rank_ && on_death_) on_death_(rank, why);
  if (rank_ != 0) return;
  for (int to = 1; to < size_; ++to) {
    if (to != rank) send(to, FrameKind::kDead, rank, why.substr(0, kMaxReason));
  }
}

void Watch::send(int to, FrameKind kind, int about, const std::string& payload) {
  std::lock_guard lock(mutex_);
  if (static_cast<size_t>(to) >= sockets_.size() || !sockets_[to].is_open()) return;
  // A failed send means that the peer is gone; the thread reads that from the same connection.
  send_frame(sockets_[to], kind, about, size_, payload, Deadline::after(kSendTime));
}

}  // namespace ark::dma
