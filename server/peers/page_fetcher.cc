#include "server/peers/page_fetcher.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "dma/blob.h"
#include "dma/bootstrap/door.h"

namespace ark::peers {
namespace {

using namespace std::chrono_literals;
using dma::Deadline, dma::FrameKind, dma::Received;

constexpr int kWorkers = 8;                     // questions at once
constexpr auto kConnectTime = 1000ms;           // and for the proofs
constexpr auto kSilence = 2s;                   // of one who computes and says so every 250 ms
constexpr auto kLook = 100ms;                   // between looks at neighbours that are to be tried again
constexpr int kMostPauses = 10;                 // times first_pause
constexpr std::size_t kMostWaiting = 64 << 20;  // bytes of an answer that the scheduler has not taken

const std::string kLate = "does not answer in time";

std::string line_of(const std::string& address) { return "neighbour " + escaped(address); }

}  // namespace

// Shared by the scheduler, which asked, and the thread that asks the neighbours.
struct PageFetcher::Task {
  schedule::PageQuestion question;
  Deadline until = Deadline::never();

  std::mutex mutex;  // guards what follows
  std::condition_variable taken;
  std::deque<std::string> pages;
  std::size_t waiting = 0;  // bytes of them
  bool is_over = false, is_given_up = false, was_late = false;
  int descriptor = -1;  // of the connection that is waited on

  // A wait that nobody needs any more ends at once.
  void give_up() {
    const std::lock_guard lock(mutex);
    is_given_up = true;
    was_late = until.passed();
    pages.clear();
    if (descriptor >= 0) ::shutdown(descriptor, SHUT_RDWR);
  }
  void wait_on(int which) {
    const std::lock_guard lock(mutex);
    descriptor = which;
  }
  bool has_ended() {
    const std::lock_guard lock(mutex);
    return is_given_up || until.passed();
  }
  // Given up in time, as nobody needs it any more: the neighbour is not to blame.
  bool is_unwanted() {
    const std::lock_guard lock(mutex);
    return is_given_up && !was_late;
  }
};

class PageFetcher::Fetch final : public schedule::PageFetch {
 public:
  explicit Fetch(std::shared_ptr<Task> task) : task_(std::move(task)) {}
  ~Fetch() override {
    task_->give_up();
    task_->taken.notify_one();
  }
  std::optional<std::string> next() override {
    const std::lock_guard lock(task_->mutex);
    if (task_->pages.empty()) return std::nullopt;
    std::string page = std::move(task_->pages.front());
    task_->pages.pop_front();
    task_->waiting -= page.size();
    task_->taken.notify_one();
    return page;
  }
  // A question that nobody has come to yet ends in time, too.
  bool is_over() override {
    const std::lock_guard lock(task_->mutex);
    return task_->is_over || task_->until.passed();
  }

 private:
  const std::shared_ptr<Task> task_;
};

PageFetcher::PageFetcher(PageFetcherOptions options, const PageShape& shape,
                         std::shared_ptr<schedule::PageTraffic> traffic)
    : options_(std::move(options)), shape_(shape), traffic_(std::move(traffic)) {
  for (const std::string& address : options_.addresses) neighbours_.push_back({.address = address});
  for (int i = 0; i < kWorkers; ++i)
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  threads_.emplace_back([this](const std::stop_token& stop) { keep(stop); });
}

PageFetcher::~PageFetcher() {
  for (std::jthread& thread : threads_) thread.request_stop();
  const std::lock_guard lock(mutex_);
  for (const auto& task : tasks_) {
    const std::lock_guard own(task->mutex);
    task->is_over = true;
  }
}

bool PageFetcher::is_there() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(neighbours_, &Neighbour::is_up);
}

double PageFetcher::seconds(int32_t pages) const {
  const std::lock_guard lock(mutex_);
  if (page_seconds_.empty()) return 0;
  return pages * page_seconds_.median() + (trip_seconds_.empty() ? 0 : trip_seconds_.median());
}

std::unique_ptr<schedule::PageFetch> PageFetcher::ask(schedule::PageQuestion question) {
  auto task = std::make_shared<Task>();
  task->until = Deadline::after(question.patience);
  task->question = std::move(question);
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(task);
  }
  changed_.notify_all();
  return std::make_unique<Fetch>(std::move(task));
}

void PageFetcher::on_arrival(std::function<void()> call) {
  const std::lock_guard lock(call_mutex_);
  call_ = std::move(call);
}

void PageFetcher::tell_arrival() {
  const std::lock_guard lock(call_mutex_);
  if (call_) call_();
}

void PageFetcher::work(const std::stop_token& stop) {
  for (;;) {
    std::shared_ptr<Task> task;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !tasks_.empty(); })) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    run(stop, *task);
    {
      const std::lock_guard lock(task->mutex);
      task->is_over = true;
    }
    tell_arrival();
  }
}

// Asks one neighbour after the other until one has something. Prefill servers take turns; else who had something last
// is asked first.
void PageFetcher::run(const std::stop_token& stop, Task& task) {
  std::size_t start;
  {
    const std::lock_guard lock(mutex_);
    start = options_.computes ? first_++ : first_;
  }
  for (std::size_t i = 0; i < options_.addresses.size() && !stop.stop_requested() && !task.has_ended(); ++i) {
    const std::size_t which = (start + i) % options_.addresses.size();
    Neighbour& neighbour = neighbours_[which];  // the list itself never changes
    if (ask_one(neighbour, task) != Outcome::kPages) continue;
    const std::lock_guard lock(mutex_);
    if (!options_.computes) first_ = which;
    return;
  }
}

PageFetcher::Outcome PageFetcher::ask_one(Neighbour& neighbour, Task& task) {
  {
    const std::lock_guard lock(mutex_);
    if (!neighbour.is_up) return Outcome::kNone;
  }
  const int32_t first = task.question.first;
  dma::Socket socket;
  const auto begun = Clock::now();
  const auto came = [&] { return task.question.first - first; };
  // Of a page; what a neighbour computes first says nothing about the way.
  const auto note_time = [&] {
    const double took = std::chrono::duration<double>(Clock::now() - begun).count();
    const std::lock_guard lock(mutex_);
    if (came() == 0)
      trip_seconds_.add(took);
    else if (!options_.computes)
      page_seconds_.add(took / came());
  };
  try {
    socket = take_connection(neighbour);
    task.wait_on(socket.descriptor());
    ++traffic_->asked;
    const Question question{options_.computes, static_cast<uint32_t>(first), task.question.scope,
                            task.question.tokens};
    if (!dma::send_frame(socket, FrameKind::kPageQuestion, 0, 0, to_blob(question), task.until))
      throw Error(Code::kUnavailable, "does not take a question");
    take_answer(socket, task, task.until);
    task.wait_on(-1);
    note_time();
    note_answer(neighbour, std::move(socket));
    return came() > 0 ? Outcome::kPages : Outcome::kNone;
  } catch (const std::exception&) {
    // The connection is gone with what was still to come. Who wants no more of it blames nobody.
    task.wait_on(-1);
    if (task.is_unwanted()) return Outcome::kFailed;
    ++traffic_->failed;
    note_time();
    fail(neighbour, task.until.passed() ? kLate : current_error().what());
    const std::lock_guard lock(mutex_);
    neighbour.was_wrong = true;
    return came() > 0 ? Outcome::kPages : Outcome::kFailed;
  }
}

void PageFetcher::note_answer(Neighbour& neighbour, dma::Socket socket) {
  const std::lock_guard lock(mutex_);
  neighbour.idle.push_back(std::move(socket));
  neighbour.failures = 0;
  if (std::exchange(neighbour.was_wrong, false))
    log_line(LogLevel::kInfo, line_of(neighbour.address) + " gives pages again");
  neighbour.told.clear();
}

void PageFetcher::take_answer(const dma::Socket& socket, Task& task, Deadline until) {
  const auto end = static_cast<int32_t>(task.question.tokens.size()) / shape_.tokens;
  for (dma::Frame frame;;) {
    const auto silence = std::chrono::nanoseconds(
        std::min<int64_t>(until.left_ns(), std::chrono::nanoseconds(kSilence).count()));
    const Received got = dma::receive_frame(socket, frame, static_cast<uint64_t>(shape_.bytes) + kPageTail,
                                            Deadline::after(silence));
    if (got == Received::kLate) throw Error(Code::kUnavailable, kLate);
    if (got == Received::kClosed) throw Error(Code::kUnavailable, "has closed the connection");
    if (got == Received::kDamaged) throw Error(Code::kUnavailable, std::string("it") + dma::kDamagedOnItsWay);
    if (got != Received::kFrame) throw Error(Code::kUnavailable, "answers with what is no page");
    if (frame.header.kind == FrameKind::kPagesEnd) return;
    if (frame.header.kind == FrameKind::kAlive && options_.computes) {
      if (task.has_ended()) throw Error(Code::kUnavailable, kLate);
      continue;
    }
    if (frame.header.kind != FrameKind::kPage || task.question.first >= end)
      throw Error(Code::kUnavailable, "answers with what was not asked for");
    open_page(frame.payload, static_cast<uint32_t>(task.question.first), shape_);
    {
      std::unique_lock lock(task.mutex);
      task.taken.wait_for(lock, std::chrono::nanoseconds(until.left_ns()),
                          [&] { return task.waiting < kMostWaiting || task.is_given_up; });
      if (task.is_given_up || until.passed()) throw Error(Code::kUnavailable, kLate);
      task.waiting += frame.payload.size();
      task.pages.push_back(std::move(frame.payload));
    }
    ++task.question.first;
    ++traffic_->fetched;
    traffic_->fetched_bytes += shape_.bytes;
    tell_arrival();
  }
}

dma::Socket PageFetcher::connect(Neighbour& neighbour) {
  const Deadline until = Deadline::after(kConnectTime);
  dma::Socket socket = dma::Socket::connect_once(neighbour.address, until);
  const std::string who = line_of(neighbour.address);
  dma::introduce(socket, FrameKind::kHelloPages, 0, 0, 0, options_.identity, options_.key, who, until);
  dma::Frame answer;
  const Received got = dma::receive_frame(socket, answer, dma::kMaxReason, until);
  if (got == Received::kFrame && answer.header.kind == FrameKind::kRefused)
    throw Error(Code::kUsage, "refused: " + escaped(answer.payload, dma::kMaxReason));
  if (got != Received::kFrame || answer.header.kind != FrameKind::kWelcome)
    throw Error(Code::kUnavailable, "no welcome comes");
  dma::BlobReader welcome(answer.payload, "a welcome");
  const auto server = welcome.number<uint64_t>();
  welcome.end();
  if (server == traffic_->server) {
    const std::lock_guard lock(mutex_);
    neighbour.is_self = true;
    throw Error(Code::kUnavailable, "it is this server itself, which asks the others only");
  }
  return socket;
}

dma::Socket PageFetcher::take_connection(Neighbour& neighbour) {
  {
    const std::lock_guard lock(mutex_);
    if (!neighbour.idle.empty()) {
      dma::Socket socket = std::move(neighbour.idle.back());
      neighbour.idle.pop_back();
      return socket;
    }
  }
  return connect(neighbour);
}

void PageFetcher::fail(Neighbour& neighbour, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (why != neighbour.told) {
    log_line(LogLevel::kWarning, line_of(neighbour.address) + " gives no pages: " + why);
    neighbour.told = why;
  }
  neighbour.is_up = false;
  neighbour.idle.clear();
  neighbour.retry_at =
      Clock::now() + options_.first_pause * std::min(1 << std::min(neighbour.failures++, 8), kMostPauses);
}

// Connects to those that are not up, apart from any question.
void PageFetcher::keep(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    for (Neighbour& neighbour : neighbours_) {
      {
        const std::lock_guard lock(mutex_);
        if (neighbour.is_up || neighbour.is_self || Clock::now() < neighbour.retry_at) continue;
      }
      if (stop.stop_requested()) return;
      try {
        dma::Socket socket = connect(neighbour);
        const std::lock_guard lock(mutex_);
        neighbour.idle.push_back(std::move(socket));
        neighbour.is_up = true;
        if (neighbour.was_wrong) continue;  // that it can be reached says nothing
        log_line(LogLevel::kInfo, line_of(neighbour.address) + " is there");
        neighbour.told.clear();
        neighbour.failures = 0;
      } catch (const std::exception&) {
        fail(neighbour, current_error().what());
      }
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, kLook, [] { return false; });
  }
}

}  // namespace ark::peers
