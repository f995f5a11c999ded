// Servers that share pages over sockets: one question and one answer, whatever the neighbour does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <list>
#include <thread>

#include "base/error.h"
#include "base/log_writer.h"
#include "dma/bootstrap/door.h"
#include "server/peers/page_fetcher.h"
#include "server/peers/page_server.h"
#include "tests/server/schedule/requests.h"

namespace ark::peers {
namespace {

using namespace std::chrono_literals;
using dma::Deadline, dma::FrameKind, dma::Received, dma::Socket;
using schedule::GenerateRequest, schedule::PageTraffic, schedule::Scheduler;
using test::collect, test::expected_outcome, test::FakeRunner;
using ::testing::HasSubstr;

const std::string kKey = "0123456789abcdef", kIdentity(64, 'a');

void until(const std::function<bool()>& condition) {
  for (int i = 0; i < 20'000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  ASSERT_TRUE(condition());
}

// What computing takes is learnt from prompts of eight tokens on: who has computed only shorter ones asks each time.
GenerateRequest of(int32_t size, int32_t first = 0) {
  GenerateRequest request{.prompt = {first}, .max_tokens = 3};
  for (int32_t i = 1; i < size; ++i) request.prompt.push_back(i * i % 37);
  return request;
}

// Which may do something while a page is read.
class WatchedRunner : public FakeRunner {
 public:
  using FakeRunner::FakeRunner;
  void read_page(int32_t page, std::span<std::byte> to) const override {
    FakeRunner::read_page(page, to);
    if (on_read) on_read();
  }
  std::function<void()> on_read;
};

struct Server {
  explicit Server(const std::vector<std::string>& neighbours = {}, bool decodes = false,
                  const std::string& identity = kIdentity, std::chrono::milliseconds pause = 100ms) {
    if (!neighbours.empty())
      fetcher = std::make_unique<PageFetcher>(PageFetcherOptions{neighbours, kKey, identity, decodes, pause},
                                              shape_of(runner), traffic);
    scheduler = std::make_unique<Scheduler>(runner, schedule::SchedulerOptions{}, schedule::RecordSink{},
                                            nullptr, fetcher.get());
  }
  ~Server() { pages.reset(), scheduler.reset(); }
  std::string listen(bool computes = false) {
    Socket listener = Socket::listen("127.0.0.1:0");
    const std::string address = dma::address_of("127.0.0.1", listener.local_port());
    pages = std::make_unique<PageServer>(std::move(listener), PageServerOptions{kKey, kIdentity, computes},
                                         *scheduler, runner, traffic);
    return address;
  }
  // Tokens that are computed until it has its own, which must be the right ones.
  int64_t run(const GenerateRequest& request) {
    const int64_t before = runner.computed;
    const auto ticket = scheduler->submit(request);
    EXPECT_EQ(collect(*ticket).tokens, expected_outcome(request).tokens);
    cached = ticket->times().cached_tokens;
    return runner.computed - before - 2;
  }
  void with_neighbour() {
    until([&] { return fetcher->is_there(); });
  }

  std::shared_ptr<PageTraffic> traffic = std::make_shared<PageTraffic>();
  WatchedRunner runner{test::small_limits()};
  std::unique_ptr<PageFetcher> fetcher;
  std::unique_ptr<Scheduler> scheduler;
  std::unique_ptr<PageServer> pages;
  int32_t cached = -1;
};

TEST(Peers, PagesComeInOneRoundTrip) {
  Server one;
  Server other({one.listen()});
  other.with_neighbour();
  one.run(of(22));
  EXPECT_EQ(other.run(of(22)), 2);
  EXPECT_EQ(other.cached, 20);
  EXPECT_EQ(other.traffic->asked, 1);
  EXPECT_EQ(other.traffic->fetched, 5);
  EXPECT_EQ(other.traffic->fetched_bytes, 5 * 16);
  EXPECT_EQ(one.traffic->answered, 1);
  EXPECT_EQ(one.traffic->served, 5);
  EXPECT_EQ(other.run(of(22, 9)), 22);  // nobody has it
  EXPECT_EQ(other.traffic->asked, 2);
  EXPECT_EQ(other.traffic->failed, 0);
}

TEST(Peers, TheNextIsAskedAndWhoHadSomethingGoesFirst) {
  Server empty, full;
  Server two({"127.0.0.1:1", empty.listen(), full.listen()});
  two.with_neighbour();
  int32_t i = 1;
  for (; i < 40 && two.traffic->fetched == 0; ++i) {  // until both can be reached
    full.run(of(7, i));
    two.run(of(7, i));
  }
  EXPECT_EQ(two.traffic->fetched, 1);
  const int64_t asked = two.traffic->asked;
  full.run(of(7, 49));
  EXPECT_EQ(two.run(of(7, 49)), 3);
  EXPECT_EQ(two.traffic->asked, asked + 1);
  EXPECT_EQ(two.traffic->failed, 0);
}

TEST(Peers, APrefillServerComputesForAnother) {
  Server prefill;
  const std::string address = prefill.listen(true);
  Server decode({address}, true);
  decode.with_neighbour();
  EXPECT_EQ(decode.run(of(22)), 2);
  EXPECT_EQ(decode.cached, 20);
  EXPECT_EQ(prefill.runner.computed, 20);
  EXPECT_EQ(prefill.traffic->computed, 1);
  EXPECT_EQ(decode.run(of(31)), 31 - 20 - 8);  // goes on behind what is there
  EXPECT_EQ(prefill.runner.computed, 20 + 8);
  prefill.pages.reset();  // gone
  EXPECT_EQ(decode.run(of(22, 5)), 22);
  EXPECT_EQ(decode.run(of(22, 6)), 22);
  EXPECT_EQ(decode.traffic->failed, 1);  // it is left alone
}

TEST(Peers, WhatIsGivenAwayWhileItIsReadIsNotSent) {
  Server one;
  Server other({one.listen()});
  other.with_neighbour();
  one.run(of(22));
  int reads = 0;
  // The third page's reader is so slow that others have needed all memory.
  one.runner.on_read = [&] {
    if (++reads == 3)
      for (int32_t i = 0; i < 4; ++i) one.run(of(60, 40 + i));
  };
  EXPECT_EQ(other.run(of(22)), 22 - 2 * 4);
  EXPECT_EQ(other.cached, 8);
  EXPECT_EQ(one.traffic->changed, 1);
  EXPECT_EQ(one.traffic->served, 2);
  EXPECT_EQ(other.traffic->failed, 0);
}

TEST(Peers, StrangersAreRefusedAndDisturbNobody) {
  testing::internal::CaptureStderr();
  Server one;
  const std::string address = one.listen();
  Server good({address}), other_model({address}, false, std::string(64, 'b'));
  const Socket silent = Socket::connect_once(address, Deadline::after(5s));
  const Socket http = Socket::connect_once(address, Deadline::after(5s));
  ::send(http.descriptor(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
  good.with_neighbour();
  one.run(of(22));
  EXPECT_EQ(good.run(of(22)), 2);
  EXPECT_EQ(other_model.run(of(22)), 22);
  EXPECT_EQ(other_model.traffic->asked, 0);
  until([&] { return one.traffic->refused > 0; });
  for (const std::string key : {"", "fedcba9876543210"}) {
    const Socket socket = Socket::connect_once(address, Deadline::after(5s));
    try {
      dma::introduce(socket, FrameKind::kHelloPages, 0, 0, 0, kIdentity, key, "neighbour",
                     Deadline::after(5s));
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("this server is refused by neighbour: it has"));
    }
  }
  LogWriter::instance().flush(20s);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("it has no cluster key, unlike this server; give all servers the same"));
  EXPECT_THAT(log, HasSubstr("it has another cluster key than this server"));
  EXPECT_THAT(log, HasSubstr("it serves another model, or"));
}

// A neighbour with the key, who says what a test wants.
class Liar {
 public:
  using Say = std::function<void(const Socket&, const dma::Frame& question)>;
  explicit Liar(Say say) : say_(std::move(say)) {
    Socket listener = Socket::listen("127.0.0.1:0");
    address = dma::address_of("127.0.0.1", listener.local_port());
    thread_ = std::jthread([this, socket = std::move(listener)](const std::stop_token& stop) mutable {
      dma::Door door(std::move(socket), kKey, 0, 0, 5s);
      std::list<std::jthread> guests;
      while (!stop.stop_requested())
        door.attend([&](const dma::Encounter&, Socket& guest) {
          dma::send_frame(guest, FrameKind::kWelcome, 0, 0, std::string(8, 'w'), Deadline::after(5s));
          guests.emplace_back([this, to = std::move(guest)](const std::stop_token& end) { serve(to, end); });
          return std::string();
        });
    });
  }
  std::string address;
  std::atomic<int> questions{0};

 private:
  void serve(const Socket& guest, const std::stop_token& end) {
    for (dma::Frame frame; !end.stop_requested();) {
      pollfd one = {guest.descriptor(), POLLIN, 0};
      if (::poll(&one, 1, 20) <= 0) continue;
      if (dma::receive_frame(guest, frame, 4096, Deadline::after(5s)) != Received::kFrame) return;
      ++questions;
      say_(guest, frame);
    }
  }

  const Say say_;
  std::jthread thread_;
};

void say_page(const Socket& to, uint32_t number, const std::string& bytes) {
  std::string message = bytes;
  seal_page(message, number, {16, 4, 64, 50});
  dma::send_frame(to, FrameKind::kPage, 0, 0, message, Deadline::after(5s));
}

// The bytes of page `number` of what was asked, as FakeRunner has them.
std::string true_page(const dma::Frame& question, uint32_t number) {
  const Question asked = question_of(question.payload, {16, 4, 64, 50});
  return {reinterpret_cast<const char*>(asked.tokens.data() + number * 4), 16};
}

struct Lie {
  const char* name;
  Liar::Say say;
  int64_t computed;  // of 22 tokens
};

void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }

class Lies : public testing::TestWithParam<Lie> {};

TEST_P(Lies, CostTimeAlone) {
  Liar liar(GetParam().say);
  Server server({liar.address}, false, kIdentity, 60s);
  server.with_neighbour();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(server.run(of(22)), GetParam().computed);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  until([&] { return server.traffic->failed == 1; });
  // It is left alone for a while.
  EXPECT_EQ(server.run(of(22, 3)), 22);
  EXPECT_EQ(liar.questions, 1);
  EXPECT_EQ(server.scheduler->stats().pages_held, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Peers, Lies,
    testing::Values(
        Lie{"closes", [](const Socket& to, const auto&) { ::shutdown(to.descriptor(), SHUT_RDWR); }, 22},
        Lie{"closes in the middle",
            [](const Socket& to, const auto& question) {
              say_page(to, 0, true_page(question, 0));
              ::shutdown(to.descriptor(), SHUT_RDWR);
            },
            18},
        Lie{"says nothing", [](const Socket&, const auto&) {}, 22},
        Lie{"only says that it lives",
            [](const Socket& to, const auto&) {
              dma::send_frame(to, FrameKind::kAlive, 0, 0, "", Deadline::after(5s));
            },
            22},
        Lie{"garbage",
            [](const Socket& to, const auto&) {
              ::send(to.descriptor(), std::string(99, 'x').data(), 99, MSG_NOSIGNAL);
            },
            22},
        Lie{"a page of 2^60 bytes",
            [](const Socket& to, const auto&) {
              dma::FrameHeader head{
                  dma::FrameHeader::kMagic, dma::FrameHeader::kVersion, FrameKind::kPage, 0, 0,
                  uint64_t{1} << 60};
              head.seal("");
              ::send(to.descriptor(), &head, sizeof head, MSG_NOSIGNAL);
            },
            22},
        Lie{"another page", [](const Socket& to, const auto& q) { say_page(to, 1, true_page(q, 1)); }, 22},
        Lie{"half a page",
            [](const Socket& to, const auto&) {
              dma::send_frame(to, FrameKind::kPage, 0, 0, std::string(8, 'x'), Deadline::after(5s));
            },
            22},
        Lie{"a page that is damaged on its way",
            [](const Socket& to, const auto& question) {
              std::string message = true_page(question, 0);
              seal_page(message, 0, {16, 4, 64, 50});
              std::string bytes = dma::frame_bytes(FrameKind::kPage, 0, 0, message);
              bytes[sizeof(dma::FrameHeader) + 5] ^= 4;
              ::send(to.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
            },
            22},
        Lie{"more than was asked for",
            [](const Socket& to, const auto& q) {
              for (uint32_t i = 0; i < 6; ++i) say_page(to, i, true_page(q, i % 5));
            },
            2}));

TEST(Peers, ALiarIsAskedAgainLaterAndBelievedOnceItIsRight) {
  std::atomic<bool> lies{true};
  Liar liar([&](const Socket& to, const dma::Frame& question) {
    if (lies) return (void)::shutdown(to.descriptor(), SHUT_RDWR);
    say_page(to, 0, true_page(question, 0));
    dma::send_frame(to, FrameKind::kPagesEnd, 0, 0, "", Deadline::after(5s));
  });
  Server server({liar.address});
  server.with_neighbour();
  EXPECT_EQ(server.run(of(7)), 7);
  lies = false;
  until([&] { return !server.fetcher->is_there(); });
  server.with_neighbour();  // after the pause
  EXPECT_EQ(server.run(of(7, 3)), 3);
  EXPECT_EQ(server.traffic->failed, 1);
}

TEST(Peers, ASilentPrefillServerIsGivenUpAfterTwoSeconds) {
  Liar liar([](const Socket&, const auto&) {});
  Server server({liar.address}, true);
  server.with_neighbour();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(server.run(of(22)), 22);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, 1900ms);
  EXPECT_LT(took, 20s);
}

// All servers may be given the same list.
TEST(Peers, NobodyAsksItself) {
  Server other;
  Socket listener = Socket::listen("127.0.0.1:0");
  const std::string own = dma::address_of("127.0.0.1", listener.local_port());
  Server server({own, other.listen()});
  server.pages = std::make_unique<PageServer>(std::move(listener), PageServerOptions{kKey, kIdentity},
                                              *server.scheduler, server.runner, server.traffic);
  server.with_neighbour();
  other.run(of(22));
  EXPECT_EQ(server.run(of(22)), 2);
  EXPECT_EQ(server.run(of(22, 3)), 22);
  EXPECT_EQ(server.traffic->asked, 2);
  EXPECT_EQ(server.traffic->answered, 0);
}

TEST(Peers, PagesThatCannotBeReachedAreNamed) {
  class Plain : public FakeRunner {
    using FakeRunner::FakeRunner;
    int64_t page_bytes() const override { return 0; }
  } plain(test::small_limits());
  try {
    shape_of(plain);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("--kv-listen and --kv-peers"));
  }
}

}  // namespace
}  // namespace ark::peers
