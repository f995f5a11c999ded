#include "server/peers/page_server.h"

#include <sys/socket.h>

#include <chrono>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "dma/blob.h"
#include "dma/bootstrap/door.h"

namespace ark::peers {
namespace {

using namespace std::chrono_literals;
using dma::FrameKind;

constexpr auto kHelloTime = 5s;
constexpr auto kSendTime = 2s;  // for one page: who takes longer is sent away
constexpr auto kAlive = 250ms;  // between life signs while a prompt is computed
constexpr std::size_t kMostGuests = 64;

void send(const dma::Socket& socket, FrameKind kind, std::string_view payload) {
  if (!dma::send_frame(socket, kind, 0, 0, payload, dma::Deadline::after(kSendTime)))
    throw Error(Code::kUnavailable, "the neighbour does not take its answer");
}

}  // namespace

PageShape shape_of(const StepRunner& runner) {
  const RunnerLimits& limits = runner.limits();
  const PageShape shape{runner.page_bytes(), limits.page_size, limits.max_length, limits.vocabulary};
  if (shape.bytes == 0)
    throw Error(
        Code::kUnsupported,
        "--kv-listen and --kv-peers: the keys and values of this model do not lie in pages of this process; "
        "that takes a batched model on the CPU (--device cpu), without --processes and --supervise");
  if (shape.bytes + static_cast<int64_t>(kPageTail) > static_cast<int64_t>(dma::kMaxPayload) ||
      most_question_bytes(shape) > dma::kMaxPayload)
    throw Error(Code::kUnsupported, "--kv-listen and --kv-peers: a page of " + std::to_string(shape.bytes) +
                                        " bytes, or a sequence of " + std::to_string(shape.max_length) +
                                        " tokens, is more than a message holds, " +
                                        std::to_string(dma::kMaxPayload) + " bytes");
  return shape;
}

PageServer::PageServer(dma::Socket listener, PageServerOptions options, schedule::Scheduler& scheduler,
                       const StepRunner& runner, std::shared_ptr<schedule::PageTraffic> traffic)
    : options_(std::move(options)),
      scheduler_(scheduler),
      runner_(runner),
      traffic_(std::move(traffic)),
      shape_(shape_of(runner)),
      door_([this, socket = std::move(listener)](const std::stop_token& stop) mutable {
        attend(stop, std::move(socket));
      }) {}

PageServer::~PageServer() {
  door_ = {};  // no new ones
  for (Guest& guest : guests_) {
    guest.thread.request_stop();
    ::shutdown(guest.socket.descriptor(), SHUT_RDWR);
  }
}

void PageServer::attend(const std::stop_token& stop, dma::Socket listener) {
  dma::Door door(std::move(listener), options_.key, 0, 0, kHelloTime);
  while (!stop.stop_requested()) {
    door.attend([this](const dma::Encounter& who, dma::Socket& socket) -> std::string {
      const std::string why = static_cast<FrameKind>(who.kind) == FrameKind::kHelloPages
                                  ? seat(socket, who.visitor)
                                  : "ranks do not meet here";
      if (!why.empty()) ++traffic_->refused;
      return why;
    });
    std::erase_if(guests_, [](const Guest& guest) { return guest.is_gone.load(); });
  }
}

// Returns why it is refused.
std::string PageServer::seat(dma::Socket& socket, const std::string& visitor) {
  if (visitor != options_.identity)
    return "it serves another model, or by another version of ark or other options that the programs depend "
           "on "
           "(such as --tp, --kv-dtype, --weights, --max-model-len, --max-num-seqs, --max-num-batched-tokens)";
  if (guests_.size() >= kMostGuests)
    return "there are " + std::to_string(kMostGuests) + " connections already";
  Guest& guest = guests_.emplace_back();
  guest.socket = std::move(socket);
  guest.thread = std::jthread([this, &guest](const std::stop_token& stop) { serve(stop, guest); });
  return "";
}

void PageServer::serve(const std::stop_token& stop, Guest& guest) {
  try {
    send(guest.socket, FrameKind::kWelcome, dma::BlobWriter().number(traffic_->server).take());
    for (dma::Frame frame; !stop.stop_requested();) {
      const dma::Received got =
          dma::receive_frame(guest.socket, frame, most_question_bytes(shape_), dma::Deadline::never());
      if (got == dma::Received::kClosed) break;
      if (got == dma::Received::kDamaged)
        throw Error(Code::kUnavailable, std::string("it") + dma::kDamagedOnItsWay);
      if (got != dma::Received::kFrame || frame.header.kind != FrameKind::kPageQuestion)
        throw Error(Code::kUnavailable, "it sends what is no question");
      answer(stop, guest.socket, question_of(frame.payload, shape_));
    }
  } catch (const std::exception&) {
    if (!stop.stop_requested()) {
      ++traffic_->refused;
      log_line(LogLevel::kWarning, "a neighbour is sent away",
               {{"from", guest.socket.peer_address()}, {"why", current_error().what()}});
    }
  }
  ::shutdown(guest.socket.descriptor(), SHUT_RDWR);
  guest.is_gone = true;
}

void PageServer::answer(const std::stop_token& stop, const dma::Socket& socket, const Question& question) {
  ++traffic_->answered;
  if (question.computes && options_.computes) compute(stop, socket, question);
  const auto run = scheduler_.directory().find_run(question.scope, question.tokens, shape_.tokens);
  std::string message(static_cast<std::size_t>(shape_.bytes) + kPageTail, '\0');
  for (std::size_t i = question.first; i < run.size() && !stop.stop_requested(); ++i) {
    message.resize(static_cast<std::size_t>(shape_.bytes));
    runner_.read_page(run[i].page, std::as_writable_bytes(std::span(message)));
    if (!scheduler_.directory().is_current(run[i])) {  // given away, and perhaps written, meanwhile
      ++traffic_->changed;
      break;
    }
    seal_page(message, static_cast<uint32_t>(i), shape_);
    send(socket, FrameKind::kPage, message);
    ++traffic_->served;
    traffic_->served_bytes += shape_.bytes;
  }
  send(socket, FrameKind::kPagesEnd, "");
}

// Until the pages are there, or cannot be.
void PageServer::compute(const std::stop_token& stop, const dma::Socket& socket, const Question& question) {
  const auto run = scheduler_.directory().find_run(question.scope, question.tokens, shape_.tokens);
  if (run.size() * static_cast<std::size_t>(shape_.tokens) == question.tokens.size()) return;
  schedule::GenerateRequest request;
  request.prompt = question.tokens;
  request.max_tokens = 1;  // a page is full once what follows it is asked for
  request.scope = question.scope;
  request.max_drafts = 0;
  request.origin.id = "prefill";
  std::shared_ptr<schedule::Ticket> ticket;
  try {
    ticket = scheduler_.submit(std::move(request));
  } catch (const Error&) {  // too long with one more token, a full queue, an end: what is there is sent
    return;
  }
  ++traffic_->computed;
  try {
    std::vector<schedule::TokenEvent> events;
    while (ticket->wait(events, kAlive) == schedule::Finish::kRunning) {
      if (stop.stop_requested()) throw Error(Code::kUnavailable, "the server ends");
      send(socket, FrameKind::kAlive, "");
    }
  } catch (const Error&) {
    ticket->cancel();
    throw;
  }
}

}  // namespace ark::peers
