// What becomes of records: the slowest of the last minutes, files, spans and how they get to a collector.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"
#include "server/json.h"
#include "server/trace/collector.h"
#include "server/trace/files.h"
#include "server/trace/post.h"
#include "server/trace/report.h"
#include "server/trace/sinks.h"
#include "server/trace/spans.h"

namespace ark::trace {
namespace {

using namespace std::chrono_literals;
using schedule::Cause, schedule::Ledger, schedule::Record, schedule::StepFacts;
using Clock = Slowest::Clock;

// A request that came at `begin`, waited for a step of others, and was read and answered in steps of 10 ms.
std::shared_ptr<Record> record_of(const std::string& id, Clock::time_point begin,
                                  std::chrono::milliseconds wait = 20ms, int tokens = 3) {
  Ledger ledger;
  schedule::Origin origin;
  origin.id = id;
  origin.model = "m";
  static uint64_t requests = 0;
  origin.number = ++requests;
  auto record = std::make_shared<Record>(origin, 7, begin);
  record->begin(ledger);
  Clock::time_point now = begin + wait;
  ledger.add({begin, now, 0, 100, 0, 0, {}});
  for (int i = 0; i < tokens; ++i) {
    ledger.add({now, now + 10ms, i > 0, i == 0 ? 7 : 0, 0, 0.01, {}});
    now += 10ms;
    record->step(ledger, {i == 0 ? 7 : 0});
    record->token(now);
  }
  record->finish(ledger, now);
  record->close("length", begin + wait, 2, 0);
  return record;
}

std::vector<std::string> ids_of(const std::vector<RecordPtr>& records) {
  std::vector<std::string> ids;
  for (const RecordPtr& record : records) ids.push_back(record->origin.id);
  return ids;
}

TEST(Slowest, AreFoundHoweverManyThereWere) {
  Slowest slowest;
  std::mt19937 random(1);
  std::vector<int> waits(5000);
  for (int i = 0; i < 5000; ++i) waits[i] = i;
  std::ranges::shuffle(waits, random);
  const Clock::time_point start(1h);
  for (int i = 0; i < 5000; ++i) {  // over five minutes
    const Clock::time_point now = start + i * 60ms;
    slowest.add(record_of("r" + std::to_string(waits[i]), now - std::chrono::milliseconds(waits[i]) - 30ms,
                          std::chrono::milliseconds(waits[i])),
                now);
  }
  const Clock::time_point end = start + 5min;
  for (const By by : {By::kTotal, By::kFirstToken})
    EXPECT_THAT(ids_of(slowest.find(by, 15, 4, "", end)),
                testing::ElementsAre("r4999", "r4998", "r4997", "r4996"));
  EXPECT_THAT(ids_of(slowest.find(By::kTotal, 15, 2, "r499", end)), testing::ElementsAre("r4999", "r4998"));
  EXPECT_TRUE(slowest.find(By::kTotal, 15, 4, "x", end).empty());
  const auto last = slowest.find(By::kTotal, 1, 1000, "", end);
  EXPECT_LE(last.size(), 2 * Slowest::kEach);
  EXPECT_GE(last.size(), Slowest::kEach / 2);
  for (const RecordPtr& record : last) EXPECT_GE(record->last_byte, end - 1min);
  EXPECT_TRUE(slowest.find(By::kTotal, 15, 4, "", end + 20min).empty());
  const auto choice = record_of("new", end + 16min, 10ms), other = record_of("new", end + 16min, 30ms);
  choice->origin.number = other->origin.number;
  for (const auto& record : {choice, other, choice}) slowest.add(record, end + 16min);
  EXPECT_EQ(slowest.find(By::kTotal, 15, 9, "new", end + 16min),
            std::vector<RecordPtr>{other});  // in the place of a minute long ago
}

TEST(Report, TellsTimesThatAddUp) {
  const Json report = report_of(*record_of("a", Clock::time_point(1h)));
  EXPECT_EQ(report.at("total").at("ms"), 50.0);
  EXPECT_EQ(report.at("total").at("cause"), "queue");
  EXPECT_EQ(report.at("total").at("causes"), Json({{"prompt", 10.0}, {"tokens", 20.0}, {"queue", 20.0}}));
  EXPECT_EQ(report.at("first_token").at("ms"), 30.0);
  EXPECT_EQ(report.at("longest_pause").at("ms"), 10.0);
  EXPECT_EQ(report.at("longest_pause").at("cause"), "tokens");
  double at = 0;
  for (const Json& phase : report.at("timeline")) {
    EXPECT_EQ(phase.at("begin_ms").get<double>(), at);
    at += phase.at("ms").get<double>();
  }
  EXPECT_EQ(at, 50.0);
  EXPECT_EQ(report.at("cached_tokens"), 2);
}

// ---- files

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "ark-trace-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(path)) found.push_back(entry.path());
    std::ranges::sort(found);
    return found;
  }
  std::filesystem::path path;
};

TEST(TraceFiles, HoldSlowRequestsOnlyAndAreWhole) {
  const Folder folder;
  TraceFiles files(folder.path / "new", 60ms);
  const Clock::time_point begin(1h);
  EXPECT_EQ(files.write({record_of("fast", begin), record_of("../slow/one", begin, 200ms)}), 0u);
  const Folder* const where = &folder;
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(where->path / "new"))
    found.push_back(entry.path());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].filename().string(), testing::MatchesRegex("ark-slow-.*Z-___slow_one-1\\.json"));
  std::ifstream in(found[0]);
  const Json trace = parse_json(std::string(std::istreambuf_iterator<char>(in), {}));
  double phases = 0, causes = 0;  // each track tells all of the time
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    (event.at("tid") == 1 ? phases : causes) += event.at("dur").get<double>();
  }
  EXPECT_DOUBLE_EQ(phases, 230'000);
  EXPECT_DOUBLE_EQ(causes, 230'000);
  EXPECT_EQ(trace.at("otherData").at("id"), "../slow/one");
}

TEST(TraceFiles, AreBoundedAlsoOverRuns) {
  const Folder folder;
  const std::vector<RecordPtr> many(TraceFiles::kMostFiles + 30, record_of("a", Clock::time_point(1h)));
  std::ofstream(folder.path / "another.json") << "not ours";
  TraceFiles(folder.path, 0ms).write(many);
  EXPECT_EQ(folder.files().size(), TraceFiles::kMostFiles + 1);
  const auto before = folder.files();
  TraceFiles(folder.path, 0ms).write({many[0]});
  EXPECT_EQ(folder.files().size(), TraceFiles::kMostFiles + 1);
  EXPECT_NE(folder.files(), before);  // the oldest went
  EXPECT_TRUE(std::filesystem::exists(folder.path / "another.json"));
}

TEST(TraceFiles, WhatCannotBeWrittenIsCountedAndLeavesNothing) {
  const Folder folder;
  TraceFiles files(folder.path / "sub", 0ms);
  std::filesystem::remove_all(folder.path / "sub");
  EXPECT_EQ(files.write({record_of("a", Clock::time_point(1h)), record_of("b", Clock::time_point(1h))}), 2u);
  std::ofstream(folder.path / "file") << "x";
  EXPECT_THROW(TraceFiles(folder.path / "file" / "sub", 0ms), Error);
}

// ---- spans

TEST(Spans, HaveOtlpsNamesAndTheCallersTrace) {
  const auto record = record_of("a", Clock::time_point(1h));
  record->origin.trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
  record->origin.parent_id = "00f067aa0ba902b7";
  uint64_t next = 1;
  const Json request = spans_of({record}, 1'000'000'000, [&] { return next += 2; });
  const Json& spans = request.at("resourceSpans")[0].at("scopeSpans")[0].at("spans");
  ASSERT_EQ(spans.size(), 4u);  // the request; queue, prompt, stream
  const Json& root = spans[0];
  EXPECT_EQ(root.at("traceId"), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(root.at("parentSpanId"), "00f067aa0ba902b7");
  EXPECT_EQ(root.at("spanId"), "0000000000000003");
  EXPECT_EQ(root.at("kind"), 2);
  EXPECT_EQ(root.at("startTimeUnixNano"), "3601000000000");
  EXPECT_EQ(root.at("endTimeUnixNano"), "3601050000000");
  EXPECT_EQ(root.at("status"), Json({{"code", 1}}));
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(spans[i].at("parentSpanId"), root.at("spanId"));
    EXPECT_EQ(spans[i].at("traceId"), root.at("traceId"));
    EXPECT_EQ(spans[i].at("name"), Json({"queue", "prompt", "stream"})[i - 1]);
    EXPECT_EQ(spans[i].at("startTimeUnixNano"),
              i == 1 ? root.at("startTimeUnixNano") : spans[i - 1].at("endTimeUnixNano"));
  }
  Json attributes = Json::object();
  for (const Json& attribute : root.at("attributes"))
    attributes[attribute.at("key").get<std::string>()] = attribute.at("value");
  EXPECT_EQ(attributes.at("ark.cause"), Json({{"stringValue", "queue"}}));
  EXPECT_EQ(attributes.at("gen_ai.usage.input_tokens"), Json({{"intValue", "7"}}));
  EXPECT_EQ(attributes.at("ark.ms.queue"), Json({{"doubleValue", 20.0}}));
  EXPECT_EQ(request.at("resourceSpans")[0].at("resource").at("attributes")[0],
            Json({{"key", "service.name"}, {"value", {{"stringValue", "ark"}}}}));
}

TEST(Spans, WithoutATraceparentHaveATraceOfTheirOwn) {
  std::mt19937_64 random;
  const Json request =
      spans_of({record_of("a", Clock::time_point(1h)), record_of("b", Clock::time_point(1h))}, 0,
               [&] { return random(); });
  const Json& spans = request.at("resourceSpans")[0].at("scopeSpans")[0].at("spans");
  ASSERT_EQ(spans.size(), 8u);
  EXPECT_NE(spans[0].at("traceId"), spans[4].at("traceId"));
  EXPECT_FALSE(spans[0].contains("parentSpanId"));
  EXPECT_THAT(spans[0].at("traceId").get<std::string>(), testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(spans[0].at("traceId").get<std::string>().size(), 32u);
}

// Takes one request after the other, and answers each with the next of `statuses`, then 200; 0: not at all.
class RecordingCollector {
 public:
  explicit RecordingCollector(std::vector<int> statuses = {}) : statuses_(std::move(statuses)) {
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(socket_, 8);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
    thread_ = std::jthread([this] { run(); });
  }
  ~RecordingCollector() {
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port); }
  std::vector<std::string> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  int port = 0;

 private:
  void run() {
    for (std::size_t i = 0;; ++i) {
      const int client = ::accept(socket_, nullptr, nullptr);
      if (client < 0) return;
      std::string text;
      char block[4096];
      while (!is_whole(text)) {
        const ssize_t n = ::recv(client, block, sizeof block, 0);
        if (n <= 0) break;
        text.append(block, static_cast<std::size_t>(n));
      }
      {
        std::lock_guard lock(mutex_);
        requests_.push_back(text);
      }
      const int status = i < statuses_.size() ? statuses_[i] : 200;
      const std::string answer = "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Length: 2\r\n\r\n{}";
      if (status) ::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::close(client);
    }
  }
  static bool is_whole(const std::string& text) {
    const std::size_t head = text.find("\r\n\r\n"), length = text.find("Content-Length: ");
    return head != text.npos && text.size() - head - 4 >= std::stoul(text.substr(length + 16));
  }

  const std::vector<int> statuses_;
  int socket_;
  std::mutex mutex_;
  std::vector<std::string> requests_;
  std::jthread thread_;
};

TEST(Collector, GetsSpansByPostUntilItTakesThem) {
  RecordingCollector collector({503, 0});
  Collector sender(collector.url() + "/base/");
  EXPECT_EQ(sender.send({record_of("a", Clock::time_point(1h))}, {}), 0u);
  const auto requests = collector.requests();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0], requests[2]);
  EXPECT_THAT(requests[0], testing::StartsWith("POST /base/v1/traces HTTP/1.1\r\nHost: 127.0.0.1:"));
  EXPECT_THAT(requests[0], testing::HasSubstr("\r\nContent-Type: application/json\r\n"));
  const Json body = parse_json(requests[0].substr(requests[0].find("\r\n\r\n") + 4));
  EXPECT_EQ(body.at("resourceSpans")[0].at("scopeSpans")[0].at("spans").size(), 4u);
}

TEST(Collector, WhatItRefusesOrWhoIsNotThereIsCounted) {
  RecordingCollector collector({400});
  EXPECT_EQ(Collector(collector.url()).send({record_of("a", Clock::time_point(1h))}, {}), 1u);
  std::stop_source stop;
  stop.request_stop();  // one try
  int port = 0;
  {
    const RecordingCollector gone;
    port = gone.port;
  }
  Collector nobody("http://127.0.0.1:" + std::to_string(port));
  EXPECT_EQ(nobody.send({record_of("a", Clock::time_point(1h)), record_of("b", Clock::time_point(1h))},
                        stop.get_token()),
            2u);
}

TEST(Collector, RequestsWhoseCallerDoesNotWantSpansHaveNone) {
  RecordingCollector collector;
  const auto record = record_of("a", Clock::time_point(1h));
  record->origin.is_sampled = false;
  EXPECT_EQ(Collector(collector.url()).send({record}, {}), 0u);
  EXPECT_TRUE(collector.requests().empty());
}

TEST(Url, IsPlain) {
  const auto parts = [](const char* text) {
    const Url url = parse_url("--x", text);
    return std::vector<std::string>{url.is_tls ? "tls" : "", url.host, url.port, url.path};
  };
  EXPECT_THAT(parts("http://a:4318"), testing::ElementsAre("", "a", "4318", ""));
  EXPECT_THAT(parts("https://a.b/c/d/"), testing::ElementsAre("tls", "a.b", "443", "/c/d"));
  EXPECT_THAT(parts("http://[::1]:80/"), testing::ElementsAre("", "::1", "80", ""));
  for (const char* wrong : {"", "a:4318", "ftp://a", "http://", "http://:80", "http://a:", "http://a:b",
                            "http://u@a", "http://a/b?c", "http://a:123456", "http://a\r\nb"})
    EXPECT_THROW(parse_url("--x", wrong), Error) << wrong;
}

TEST(Outbox, DropsAndCountsWhatHasNoRoom) {
  std::atomic<bool> may_go{false};
  std::atomic<std::size_t> delivered{0};
  const auto record = record_of("a", Clock::time_point(1h));
  {
    Outbox outbox(
        [&](const auto& records, const auto&) {
          while (!may_go) std::this_thread::sleep_for(1ms);
          delivered += records.size() - 1;
          return std::size_t{1};
        },
        1ms);
    outbox.put(record);
    std::this_thread::sleep_for(50ms);  // the thread has it, or takes it with the others
    for (std::size_t i = 0; i < Outbox::kMost + 10; ++i) outbox.put(record);
    EXPECT_GE(outbox.dropped(), 10);
    may_go = true;
    for (const auto end = Clock::now() + 10s; delivered < Outbox::kMost - 2 && Clock::now() < end;)
      std::this_thread::sleep_for(1ms);
    EXPECT_GE(outbox.dropped(), 11);
  }
  EXPECT_LE(delivered, Outbox::kMost);
}

}  // namespace
}  // namespace ark::trace
