#include "server/supervise/model_process.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <initializer_list>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "dma/bootstrap/socket.h"
#include "dma/launch.h"

namespace ark::supervise {
namespace {

using namespace std::chrono_literals;
using dma::FrameKind;

constexpr auto kBeat = 250ms;
constexpr auto kTurn = 200us;  // for a further step while one runs

// The way back, with life signs on it from the first moment.
class Reports {
 public:
  Reports(const dma::Socket& socket, const std::function<std::string()>& stage)
      : socket_(socket), stage_(stage), beats_([this](const std::stop_token& stop) { run(stop); }) {}

  // `number`: the code of a refusal, the thread of a life sign.
  void send(FrameKind kind, std::string_view payload, int number = 0) {
    std::lock_guard lock(mutex_);
    dma::send_frame(socket_, kind, number, 0, payload, dma::Deadline::never());
  }
  // Between steps, too, its failure is told.
  void watch(const StepRunner& runner) { runner_.store(&runner); }

 private:
  void run(const std::stop_token& stop) {
    std::mutex none;
    std::unique_lock lock(none);
    std::condition_variable_any never;
    while (!stop.stop_requested()) {
      const StepRunner* runner = runner_.load();
      const std::string failure = runner ? runner->failure() : "";
      if (!failure.empty()) return send(FrameKind::kRefused, failure, static_cast<int>(Code::kUnavailable));
      send(FrameKind::kAlive, stage_(), ::gettid());
      never.wait_for(lock, stop, kBeat, [] { return false; });
    }
  }

  const dma::Socket& socket_;
  const std::function<std::string()>& stage_;
  std::mutex mutex_;  // one frame at a time
  std::atomic<const StepRunner*> runner_{nullptr};
  std::jthread beats_;  // last: uses all of the above
};

// Nothing: the server has closed.
std::optional<dma::Frame> receive(const dma::Socket& socket, std::initializer_list<FrameKind> kinds) {
  dma::Frame frame;
  const dma::Received got = dma::receive_frame(socket, frame, dma::kMaxPayload, dma::Deadline::never());
  if (got == dma::Received::kClosed) return std::nullopt;
  if (got != dma::Received::kFrame || std::ranges::find(kinds, frame.header.kind) == kinds.end())
    throw Error(Code::kInternal, "the server sends what is no message");
  return frame;
}

void serve_steps(const dma::Socket& socket, Reports& reports, StepRunner& runner) {
  for (int32_t in_flight = 0;;) {
    const bool has_room = in_flight < runner.limits().depth;
    pollfd one = {socket.descriptor(), POLLIN, 0};
    if (::poll(&one, 1, in_flight == 0 ? -1 : 0) > 0) {
      const auto frame = receive(socket, {FrameKind::kStep, FrameKind::kGiveUp});
      if (!frame) return;
      if (frame->header.kind == FrameKind::kGiveUp) {
        runner.give_up(static_cast<int32_t>(frame->header.rank));
      } else {
        runner.post(step_of(frame->payload));
        ++in_flight;
      }
    } else if (const auto result = in_flight > 0 ? runner.poll(has_room ? kTurn : 50'000us) : std::nullopt) {
      reports.send(FrameKind::kResult, to_blob(*result));
      --in_flight;
    }
  }
}

}  // namespace

int serve_model(const std::function<OwnModel(const ModelTerms&)>& load,
                const std::function<std::string()>& stage) {
  if (::fcntl(dma::kHandedDescriptor, F_SETFD, FD_CLOEXEC) != 0)
    throw Error(Code::kUsage, "this process was not started by one that serves; clear its environment");
  const dma::Socket socket(dma::kHandedDescriptor);
  OwnModel model;  // ends after the report of what failed: its ranks may take a second
  Reports reports(socket, stage);
  try {
    const auto terms = receive(socket, {FrameKind::kBlob});
    if (!terms) return 0;
    model = load(terms_of(terms->payload));
    reports.watch(*model.runner);
    reports.send(FrameKind::kBlob,
                 to_blob(ModelFacts{model.runner->limits(), model.identity, model.machine_ranks}));
    serve_steps(socket, reports, *model.runner);
    return 0;
  } catch (const std::exception&) {
    const Error error = current_error();
    reports.send(FrameKind::kRefused, error.what(), static_cast<int>(error.code()));
    return error.exit_code();
  }
}

}  // namespace ark::supervise
