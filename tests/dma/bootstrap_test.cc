#include "dma/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <thread>

#include "base/log_writer.h"
#include "dma/bootstrap/door.h"
#include "dma/bootstrap/socket.h"
#include "dma/group.h"
#include "dma/local/setup.h"
#include "dma/message.h"
#include "tests/dma/deadline.h"

namespace ark::dma {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

std::string fresh_name() {
  static std::atomic<int> count{0};
  return "@ark-test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

// Threads stand for processes: the sockets do not care.
void run_ranks(const std::string& address, int size, const std::function<void(Bootstrap&)>& body) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([=] { body(*join_environment({rank, size, address}, soon())); });
  }
}

void gathers(Bootstrap& bootstrap) {
  for (int round = 0; round < 20; ++round) {
    const auto text = [&](int rank) { return std::string(1000 * rank, 'a') + std::to_string(rank + round); };
    const std::vector<std::string> all = bootstrap.all_gather(text(bootstrap.rank()), soon());
    ASSERT_EQ(all.size(), static_cast<size_t>(bootstrap.size()));
    for (int rank = 0; rank < bootstrap.size(); ++rank) EXPECT_EQ(all[rank], text(rank));
  }
  bootstrap.barrier(soon());
  bootstrap.leave();
}

TEST(Bootstrap, LocalGathersInRankOrder) {
  auto members = make_local_bootstraps(3);
  std::vector<std::jthread> threads;
  for (auto& member : members) threads.emplace_back([&] { gathers(*member); });
}

TEST(Bootstrap, EnvironmentGathersInRankOrderOverEveryKindOfAddress) {
  std::string folder = std::filesystem::temp_directory_path() / "ark-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string port = "127.0.0.1:" + std::to_string(20000 + std::random_device()() % 10000);
  for (const std::string& address : {fresh_name(), folder, folder + "/own.sock", port}) {
    run_ranks(address, 4, gathers);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the socket file is removed once all are there";
  std::filesystem::remove_all(folder);
}

TEST(Bootstrap, NamesTheRanksThatAreMissing) {
  const std::string address = fresh_name();
  const auto deadline = Deadline::after(milliseconds(2000));  // rank 1 must be there by then
  std::string error_of_one;
  std::jthread one([&] { error_of_one = error_of([&] { join_environment({1, 4, address}, soon()); }); });
  const std::string error = error_of([&] { join_environment({0, 4, address}, deadline); });
  EXPECT_THAT(error, HasSubstr("rank 2, rank 3 did not come"));
  one.join();
  EXPECT_THAT(error_of_one, HasSubstr("closed the meeting before the group was complete"));
  EXPECT_THAT(error_of([&] {
                join_environment({1, 2, address}, Deadline::after(milliseconds(50)));
              }),
              HasSubstr("rank 0 did not open"));
  auto members = make_local_bootstraps(3);
  EXPECT_THAT(error_of([&] { members[1]->barrier(Deadline::after(milliseconds(50))); }),
              HasSubstr("in time: 0 2"));
}

TEST(Bootstrap, RefusesWrongSizesAndDoublesAndGoesOn) {
  const std::string address = fresh_name();
  std::jthread zero([&] {
    const auto bootstrap = join_environment({0, 3, address}, soon());
    gathers(*bootstrap);
  });
  EXPECT_THAT(error_of([&] { join_environment({1, 2, address}, soon()); }), HasSubstr("ARK_WORLD_SIZE=3"));
  EXPECT_THAT(error_of([&] { join_environment({3, 3, address}, soon()); }), HasSubstr("no such rank"));
  std::atomic<int> refused{0};
  const auto one = [&] {
    const std::string error = error_of([&] { gathers(*join_environment({1, 3, address}, soon())); });
    if (error.empty()) return;
    EXPECT_THAT(error, HasSubstr("here already"));
    ++refused;
  };
  std::jthread first(one), second(one);  // whichever comes second is refused
  EXPECT_FALSE(wait_until([&] { return refused == 1; }, {}, {nullptr, soon(), {}}));
  gathers(*join_environment({2, 3, address}, soon()));
}

TEST(Bootstrap, WhoComesAgainAtOnceIsNotTakenForItsOwnDouble) {
  const std::string address = fresh_name();
  LogWriter::instance().flush(std::chrono::seconds(20));  // what the test before has to say of doubles
  testing::internal::CaptureStderr();
  std::jthread zero([&] { gathers(*join_environment({0, 3, address}, soon())); });
  for (int life = 0; life < 300; ++life) {
    const auto visit = [&](FrameKind hello) {
      Socket socket = Socket::connect(address, soon());
      introduce(socket, hello, 1, 0, 3, std::to_string(life), {}, "rank 0", soon());
      return socket;
    };
    const Socket gather = visit(FrameKind::kHelloGather), watch = visit(FrameKind::kHelloWatch);
  }
  std::jthread one([&] { gathers(*join_environment({1, 3, address}, soon())); });
  gathers(*join_environment({2, 3, address}, soon()));
  zero.join();
  one.join();
  LogWriter::instance().flush(std::chrono::seconds(20));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("here already")));
}

TEST(Bootstrap, HostileBytesNeitherStopNorCrashTheMeeting) {
  const std::string address = fresh_name();
  std::jthread zero([&] { gathers(*join_environment({0, 2, address}, soon())); });
  std::mt19937_64 random(5);
  std::vector<Socket> silent;
  for (int i = 0; i < 40; ++i) {
    Socket stranger = Socket::connect(address, soon());
    FrameHeader header{FrameHeader::kMagic, FrameHeader::kVersion, FrameKind::kHelloGather, 1, 2, 0};
    // One byte off from a true hello (never in its kind: that could make it the other true one).
    size_t place = random() % (sizeof header - sizeof header.kind);
    if (place >= offsetof(FrameHeader, kind)) place += sizeof header.kind;
    reinterpret_cast<uint8_t*>(&header)[place] ^= static_cast<uint8_t>(1 + random() % 255);
    // Some are cut short, some say nothing at all.
    const size_t length = i % 5 == 0 ? 0 : i % 4 == 0 ? random() % sizeof header : sizeof header;
    EXPECT_EQ(write(stranger.descriptor(), &header, length), static_cast<ssize_t>(length));
    silent.push_back(std::move(stranger));
  }
  gathers(*join_environment({1, 2, address}, soon()));
}

TEST(Bootstrap, DeathIsNoticedAtOnceAndPassedOn) {
  const std::string address = fresh_name();
  constexpr int kRanks = 4;
  std::atomic<int> noticed{0};
  run_ranks(address, kRanks, [&](Bootstrap& bootstrap) {
    std::atomic<int> dead{-1};
    bootstrap.watch([&](int rank, const std::string& why) {
      EXPECT_THAT(why, HasSubstr("closed"));
      dead = rank;
    });
    bootstrap.barrier(soon());
    if (bootstrap.rank() == 2) return;  // without leave()
    const Fault fault = wait_until([&] { return dead >= 0; }, {}, {nullptr, soon(), {}});
    EXPECT_FALSE(fault);
    EXPECT_EQ(dead, 2);
    // None leaves before all know: rank 0 passes the news on.
    ++noticed;
    EXPECT_FALSE(wait_until([&] { return noticed == kRanks - 1; }, {}, {nullptr, soon(), {}}));
    bootstrap.leave();
  });
}

TEST(Bootstrap, LeavingIsNoDeathAndReportsReachAll) {
  const std::string address = fresh_name();
  std::atomic<int> looked{0}, reported{0};
  run_ranks(address, 3, [&](Bootstrap& bootstrap) {
    std::atomic<int> dead{-1};
    bootstrap.watch([&](int rank, const std::string& why) {
      EXPECT_EQ(why, "a test says so");
      dead = rank;
    });
    bootstrap.barrier(soon());
    if (bootstrap.rank() == 2) {
      bootstrap.leave();
      return;
    }
    detail::blind_sleep(100'000'000);
    EXPECT_EQ(dead, -1);
    ++looked;  // the report must not come before both have seen that leaving is no death
    EXPECT_FALSE(wait_until([&] { return looked == 2; }, {}, {nullptr, soon(), {}}));
    if (bootstrap.rank() == 1) {
      bootstrap.report_dead(1, "a test says so");
    } else {
      EXPECT_FALSE(wait_until([&] { return dead == 1; }, {}, {nullptr, soon(), {}}));
      ++reported;
    }
    EXPECT_FALSE(wait_until([&] { return reported == 1; }, {}, {nullptr, soon(), {}}));
    bootstrap.leave();
  });
}

TEST(Environment, TakesWhatStatefulSetsGiveAndListensEverywhereWithAKey) {
  const std::string file = testing::TempDir() + "/ark-environment-key";
  std::ofstream(file) << "0123456789abcdef";
  std::filesystem::permissions(file, std::filesystem::perms::owner_read);
  const auto with = [&](const char* rank, const char* host, const char* port, const std::string& key) {
    setenv("ARK_RANK", rank, 1);
    setenv("ARK_WORLD_SIZE", "2", 1);
    setenv("ARK_MASTER_ADDR", host, 1);
    setenv("ARK_MASTER_PORT", port, 1);
    Environment environment;
    const std::string error = error_of([&] { environment = Environment::from_process(key); });
    for (const char* name : {"ARK_RANK", "ARK_WORLD_SIZE", "ARK_MASTER_ADDR", "ARK_MASTER_PORT"})
      unsetenv(name);
    return std::make_pair(environment, error);
  };
  EXPECT_EQ(with("1", "node-a.example", "29500", file).first.address, "node-a.example:29500");
  EXPECT_EQ(with("1", "2001:db8::1", "29500", file).first.address, "[2001:db8::1]:29500");
  EXPECT_EQ(with("1", "node-a", "29500", file).first.key, "0123456789abcdef");
  const std::string port = std::to_string(Socket::listen("127.0.0.1:0").local_port());
  // A name that nobody knows yet: rank 0 is there all the same.
  const Environment zero = with("0", "no-such-host.invalid", port.c_str(), file).first;
  ASSERT_EQ(std::to_string(zero.everywhere), port);
  std::thread host([&] {
    const std::string error =
        error_of([&] { join_environment(zero, Deadline::after(std::chrono::milliseconds(500))); });
    EXPECT_THAT(error, HasSubstr("rank 1"));
  });
  EXPECT_TRUE(Socket::connect("127.0.0.1:" + port, soon()).is_open());
  host.join();
  EXPECT_EQ(with("0", "127.0.0.1", port.c_str(), file).first.everywhere, 0)
      << "only where others are to come";
  EXPECT_EQ(with("0", "no-such-host.invalid", port.c_str(), "").first.everywhere, 0) << "nor without a key";
  EXPECT_THAT(with("0", "a", "0", "").second, HasSubstr("ARK_MASTER_PORT=0: want an integer from 1"));
  EXPECT_THAT(with("0", "", "1", "").second, HasSubstr("ARK_MASTER_ADDR is not set"));
  std::filesystem::remove(file);
}

TEST(Environment, NamesTheVariableThatIsWrong) {
  const auto error_with = [](const char* rank, const char* size, const char* address) {
    setenv("ARK_RANK", rank, 1);
    setenv("ARK_WORLD_SIZE", size, 1);
    setenv("ARK_BOOTSTRAP", address, 1);
    const std::string error = error_of([] { Environment::from_process(); });
    for (const char* name : {"ARK_RANK", "ARK_WORLD_SIZE", "ARK_BOOTSTRAP"}) unsetenv(name);
    return error;
  };
  EXPECT_EQ(error_with("1", "2", "@x"), "");
  EXPECT_THAT(error_with("2", "2", "@x"), HasSubstr("ARK_RANK=2"));
  EXPECT_THAT(error_with("-1", "2", "@x"), HasSubstr("ARK_RANK=-1"));
  EXPECT_THAT(error_with("1x", "2", "@x"), HasSubstr("ARK_RANK=1x"));
  EXPECT_THAT(error_with("0", "99999999999", "@x"), HasSubstr("ARK_WORLD_SIZE"));
  EXPECT_THAT(error_with("0", "1", ""), HasSubstr("ARK_BOOTSTRAP is not set"));
  EXPECT_THAT(error_of([] { join_environment({1, 2, "nowhere"}, soon()); }), HasSubstr("host:port"));
  EXPECT_THAT(error_of([] {
                join_environment({1, 2, "@" + std::string(200, 'x')}, soon());
              }),
              HasSubstr("longer"));
}

TEST(Group, RanksThatDisagreeAllLearnWhy) {
  const auto spec = [](int rank) {
    EndpointSpec one;
    one.channels = {{.name = "data", .slot_bytes = rank == 1 ? 128u : 64u}};
    return one;
  };
  EXPECT_THAT(error_of([&] { make_local_groups(2, spec, soon()); }), HasSubstr("channel data"));
}

TEST(Group, AThreadRankThatGivesUpAbortsTheOthers) {
  EndpointSpec spec;
  spec.channels = {{.name = "data"}};
  auto groups = make_local_groups(
      3, [&](int) { return spec; }, soon());
  std::jthread third([&] {
    detail::blind_sleep(20'000'000);
    groups[2]->report_dead(2, "out of luck");
  });
  const Fault fault = groups[0]->receiver(1, 0).wait(1, {&groups[0]->abort(), soon(), {}});
  EXPECT_EQ(fault.kind, FaultKind::kAborted);
  EXPECT_EQ(groups[0]->dead_rank(), 2);
  EXPECT_EQ(groups[0]->death(), "rank 2 is dead: out of luck");
  EXPECT_EQ(groups[0]->abort().rank(), 2);
}

// As a rank's loop does when it is shut down.
TEST(Group, WhoHasPartedIsNotDeadAndItsLastMessageArrives) {
  EndpointSpec spec;
  spec.channels = {{.name = "data", .slot_bytes = message_slot_bytes(8)}};
  spec.force_posted = true;
  for (const bool parts : {true, false}) {
    for (int round = 0; round < 20; ++round) {
      auto groups = make_local_groups(
          2, [&](int) { return spec; }, soon());
      MessageSender sender(groups[0]->sender(1, 0));
      EXPECT_FALSE(sender.send({}, {nullptr, soon(), {}}));
      if (parts) groups[0]->part();
      groups[0]->abort().raise(AbortReason::kShutdown);
      groups[0].reset();
      if (!parts) {
        EXPECT_FALSE(wait_until([&] { return groups[1]->dead_rank() == 0; }, {}, {nullptr, soon(), {}}));
        break;
      }
      MessageReceiver receiver(groups[1]->receiver(0, 0));
      std::span<const std::byte> message;
      EXPECT_FALSE(receiver.receive(message, {&groups[1]->abort(), soon(), {}})) << round;
      EXPECT_EQ(groups[1]->dead_rank(), -1);
    }
  }
}

}  // namespace
}  // namespace ark::dma
