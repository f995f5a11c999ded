// Who gets past the door of a group: only who proves the key, however the others try; and they disturb nobody.
#include "dma/bootstrap/door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>

#include "base/log_writer.h"
#include "dma/blob.h"
#include "dma/bootstrap.h"
#include "dma/bootstrap/meeting.h"
#include "dma/group.h"
#include "dma/socket/setup.h"
#include "tests/dma/deadline.h"

namespace ark::dma {
namespace {

using ::testing::HasSubstr;

const std::string kKey = "0123456789abcdef";

TEST(ClusterKey, IsReadFromAFileThatIsKept) {
  const std::string file = testing::TempDir() + "/ark-key-" + std::to_string(getpid());
  const auto read = [&](const std::string& text, int mode) {
    std::ofstream(file) << text;
    chmod(file.c_str(), static_cast<mode_t>(mode));
    std::string key;
    const std::string error = error_of([&] { key = read_cluster_key(file); });
    std::filesystem::remove(file);
    return error.empty() ? key : error;
  };
  EXPECT_EQ(read(" " + kKey + "\n", 0600), kKey);
  EXPECT_EQ(read(kKey, 0440), kKey) << "as a pod with fsGroup has it";
  EXPECT_THAT(read(kKey, 0604), HasSubstr("everybody on this machine may use it"));
  EXPECT_THAT(read(kKey, 0602), HasSubstr("chmod o="));
  EXPECT_THAT(read("", 0600), HasSubstr("0 bytes, fewer than 16"));
  EXPECT_THAT(read("  \n", 0600), HasSubstr("0 bytes, fewer than 16"));
  EXPECT_THAT(read("0123456789abcde\n", 0600), HasSubstr("15 bytes"));
  EXPECT_THAT(read(std::string(4097, 'x'), 0600), HasSubstr("the limit for this file is 4096"));
  EXPECT_THAT(error_of([&] { read_cluster_key(file); }), HasSubstr("--cluster-key-file"));
  EXPECT_THAT(error_of([] { read_cluster_key("/"); }), HasSubstr("not a regular file"));
}

// A meeting of two ranks by TCP on loopback, whose port strangers know, too.
struct Meeting {
  Meeting() : listener(std::make_shared<Socket>(Socket::listen("127.0.0.1:0"))) {
    address = address_of("127.0.0.1", listener->local_port());
    testing::internal::CaptureStderr();
  }
  Environment of(int rank, const std::string& key = kKey) const {
    return {rank, 2, address, {}, key, rank == 0 ? listener : nullptr};
  }
  void open() {
    zero = std::jthread([mine = of(0)] {
      const auto bootstrap = join_environment(mine, soon());
      EXPECT_EQ(bootstrap->address(), "127.0.0.1");
      EXPECT_EQ(bootstrap->all_gather("zero", soon())[1], "one");
      bootstrap->leave();
    });
  }
  // The true rank 1 still gets in. Returns what rank 0 had to say about the others.
  std::string close() {
    const auto bootstrap = join_environment(of(1), soon());
    EXPECT_EQ(bootstrap->address(), "127.0.0.1");
    EXPECT_EQ(bootstrap->all_gather("one", soon())[0], "zero");
    bootstrap->leave();
    zero.join();
    LogWriter::instance().flush(std::chrono::seconds(20));
    return testing::internal::GetCapturedStderr();
  }

  std::shared_ptr<Socket> listener;
  std::string address;
  std::jthread zero;
};

size_t lines(const std::string& text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::string hello_of(const std::string& nonce) {
  return BlobWriter().text("visitor").number(uint8_t{1}).text(nonce).take();
}

Frame received(const Socket& socket) {
  Frame frame;
  EXPECT_EQ(receive_frame(socket, frame, kMaxReason, soon()), Received::kFrame);
  return frame;
}

TEST(Door, WrongKeysAreRefusedAndBothSidesSaySo) {
  Meeting meeting;
  meeting.open();
  EXPECT_THAT(error_of([&] { join_environment(meeting.of(1, "fedcba9876543210"), soon()); }),
              HasSubstr("rank 1 is refused by rank 0 at 127.0.0.1:"));
  EXPECT_THAT(error_of([&] { join_environment(meeting.of(1, ""), soon()); }),
              HasSubstr("it has no cluster key, unlike rank 0; give all ranks the same --cluster-key-file"));
  const std::string log = meeting.close();
  EXPECT_THAT(log, HasSubstr("rank 0 refuses a connection from 127.0.0.1:"));
  EXPECT_THAT(log, HasSubstr("another cluster key than rank 0"));
  EXPECT_EQ(lines(log), 2u) << log;
}

TEST(Door, GarbageOldVersionsAndHalfWordsAreRefusedInALineEach) {
  Meeting meeting;
  meeting.open();
  const auto say = [&](const std::string& bytes) {
    Socket stranger = Socket::connect(meeting.address, soon());
    EXPECT_EQ(write(stranger.descriptor(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    return stranger;
  };
  const Socket http = say("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(received(http).header.kind, FrameKind::kRefused);
  const auto head = [](uint16_t version, uint64_t bytes) {
    FrameHeader one{FrameHeader::kMagic, version, FrameKind::kHelloGather, 1, 2, bytes};
    one.seal("");
    return std::string(reinterpret_cast<const char*>(&one), sizeof one);
  };
  EXPECT_THAT(received(say(head(1, 3) + "1.2")).payload, HasSubstr("it speaks version 1, this rank 3"));
  EXPECT_THAT(received(say(head(FrameHeader::kVersion, uint64_t{1} << 48))).payload,
              HasSubstr("it sends what no rank does"));
  EXPECT_THAT(received(say(frame_bytes(FrameKind::kBlob, 1, 2, hello_of(std::string(32, 'n'))))).payload,
              HasSubstr("no hello"));
  EXPECT_THAT(received(say(frame_bytes(FrameKind::kHelloGather, 1, 2, hello_of("short")))).payload,
              HasSubstr("no hello"));
  EXPECT_THAT(received(say(frame_bytes(FrameKind::kHelloGather, 1, 2, "\xff\xff\xff\xff"))).payload,
              HasSubstr("its hello is cut short"));
  { const Socket half = say(head(1, 3).substr(0, 9)); }
  { const Socket looks = Socket::connect(meeting.address, soon()); }  // says nothing: no line
  const Socket silent = Socket::connect(meeting.address, soon());
  const std::string log = meeting.close();
  EXPECT_EQ(lines(log), 5u) << log << "once for each reason";
}

TEST(Door, AnyChangedBitOfAFrameIsToldAsDamage) {
  const std::string good = frame_bytes(FrameKind::kBlob, 1, 2, "what a rank has to say");
  Frame frame;
  std::size_t whole = 0;
  ASSERT_EQ(parse_frame(good, kMaxReason, frame, whole), Received::kFrame);
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string wrong = good;
    wrong[bit / 8] = static_cast<char>(wrong[bit / 8] ^ 1 << bit % 8);
    EXPECT_EQ(parse_frame(wrong, kMaxReason, frame, whole), Received::kDamaged) << "bit " << bit;
  }
}

// By a bit that is changed on its way rank 1 is lost: each side says so, and neither takes it for another rank's,
// key's or version's, after which a restarter would start nothing again.
TEST(Door, DamageOfAMeetingIsNamed) {
  const auto damaged = [](FrameKind kind, std::string_view payload) {
    std::string bytes = frame_bytes(kind, 1, 2, payload);
    bytes[bytes.size() - 1] ^= 1;
    return bytes;
  };
  const auto say = [](const Socket& socket, const std::string& bytes) {
    EXPECT_EQ(write(socket.descriptor(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  };
  const auto rank_0 = [](const Meeting& meeting, std::string& error, std::string& death) {
    return std::jthread([&, mine = meeting.of(0)] {
      const auto bootstrap = join_environment(mine, soon());
      std::mutex mutex;
      bootstrap->watch([&](int, const std::string& why) {
        const std::lock_guard lock(mutex);
        death = why;
      });
      error = error_of([&] { bootstrap->barrier(soon()); });
      EXPECT_FALSE(wait_until([&] { return !error_of([&] { bootstrap->check_alive(); }).empty(); }, {},
                              {nullptr, soon(), {}}));
      bootstrap->leave();
    });
  };
  std::string error, death;
  {
    Meeting meeting;
    std::jthread zero = rank_0(meeting, error, death);
    {
      const Socket hello = Socket::connect(meeting.address, soon());
      say(hello, damaged(FrameKind::kHelloGather, hello_of(std::string(32, 'n'))));
      Frame frame;
      EXPECT_EQ(receive_frame(hello, frame, kMaxReason, soon()), Received::kClosed) << "no refusal";
    }
    Connections one = meet(meeting.of(1), soon());
    say(one.gather[0], damaged(FrameKind::kBlob, "a blob"));
    EXPECT_EQ(received(one.gather[0]).payload,
              "rank 1 sends what is damaged on its way (its sum is another) during set-up");
    one = {};
    zero.join();
    LogWriter::instance().flush(std::chrono::seconds(20));
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("it sends what is damaged on its way"));
  }
  EXPECT_THAT(error, HasSubstr("rank 1 sends what is damaged on its way"));
  Meeting meeting;
  std::jthread zero = rank_0(meeting, error, death);
  Connections one = meet(meeting.of(1), soon());
  say(one.watch[0], damaged(FrameKind::kAlive, ""));
  zero.join();
  testing::internal::GetCapturedStderr();
  EXPECT_THAT(death, HasSubstr("damaged on their way"));
  EXPECT_THAT(error, HasSubstr("rank 1 is gone during set-up: it sends life signs that are damaged"));
}

TEST(Door, RecordedAndReflectedProofsAreWorthNothing) {
  Meeting meeting;
  meeting.open();
  // What a true rank 1 said to a meeting with the same key, as somebody on the wire has seen it.
  const Encounter seen{static_cast<uint16_t>(FrameKind::kHelloGather),
                       1,
                       0,
                       2,
                       "visitor",
                       std::string(32, 'g'),
                       std::string(32, 'h')};
  const auto answer_to = [&](const std::function<std::string(const Frame&)>& proof) {
    const Socket stranger = Socket::connect(meeting.address, soon());
    send_frame(stranger, FrameKind::kHelloGather, 1, 2, hello_of(seen.guest_nonce), soon());
    const Frame challenge = received(stranger);
    EXPECT_EQ(challenge.header.kind, FrameKind::kChallenge);
    send_frame(stranger, FrameKind::kProof, 1, 2, proof(challenge), soon());
    return received(stranger).header.kind;
  };
  EXPECT_EQ(answer_to([&](const Frame&) { return proof_of(kKey, Side::kGuest, seen); }), FrameKind::kRefused);
  // The host's own words: its nonce back, or the proof that it gives as a host of what it has asked.
  EXPECT_EQ(answer_to([](const Frame& challenge) { return challenge.payload; }), FrameKind::kRefused);
  const auto with = [&](const Frame& challenge, Side side, const std::function<void(Encounter&)>& change) {
    Encounter now = seen;
    now.host_nonce = challenge.payload;
    change(now);
    return proof_of(kKey, side, now);
  };
  EXPECT_EQ(answer_to([&](const Frame& c) { return with(c, Side::kHost, [](Encounter&) {}); }),
            FrameKind::kRefused);
  // A proof for another connection, rank, host or group, with these nonces.
  const std::function<void(Encounter&)> others[] = {
      [](Encounter& e) { e.kind = static_cast<uint16_t>(FrameKind::kHelloWatch); },
      [](Encounter& e) { e.guest = 2; }, [](Encounter& e) { e.host = 1; }, [](Encounter& e) { e.ranks = 3; },
      [](Encounter& e) { e.visitor = "x"; }};
  for (const auto& other : others)
    EXPECT_EQ(answer_to([&](const Frame& c) { return with(c, Side::kGuest, other); }), FrameKind::kRefused);
  EXPECT_EQ(answer_to([](const Frame&) { return ""; }), FrameKind::kRefused);
  const std::string log = meeting.close();
  EXPECT_EQ(lines(log), 1u) << log;
}

TEST(Door, AGuestTellsWhoOnlyClaimsToBeTheHost) {
  const Socket listener = Socket::listen("127.0.0.1:0");
  const std::string address = address_of("127.0.0.1", listener.local_port());
  // It lets everybody in, and answers with the guest's own proof.
  std::jthread impostor([&] {
    Socket guest;
    while (!(guest = listener.accept()).is_open()) detail::blind_sleep(1'000'000);
    received(guest);
    send_frame(guest, FrameKind::kChallenge, 0, 2, std::string(32, 'n'), soon());
    send_frame(guest, FrameKind::kProof, 0, 2, received(guest).payload, soon());
  });
  EXPECT_THAT(error_of([&] {
                join_environment({1, 2, address, {}, kKey}, soon());
              }),
              HasSubstr("does not know the cluster key"));
}

TEST(Door, ManyWhoSayNothingKeepNobodyWaiting) {
  Meeting meeting;
  meeting.open();
  std::vector<Socket> strangers;
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(Socket::connect(meeting.address, soon()));
    const char half[4] = {0x21, 0x41, 0x52, 0x4b};
    if (i % 2 == 0) {
      ASSERT_EQ(write(strangers.back().descriptor(), half, sizeof half), 4);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  meeting.close();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(4)) << "less than one's patience";
}

TEST(Door, WithoutAKeyNobodyListensBeyondThisMachine) {
  for (const char* address : {"0.0.0.0:29500", "192.0.2.1:29500", "[2001:db8::1]:29500", "[::]:1"})
    for (const int rank : {0, 1})
      EXPECT_THAT(error_of([&] {
                    join_environment({rank, 2, address}, soon());
                  }),
                  HasSubstr("--cluster-key-file"))
          << address;
  for (const char* address : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "@name", "/tmp"})
    EXPECT_TRUE(is_local(address)) << address;
  // The wire, too, though its ranks have met on this machine.
  auto bootstraps = make_local_bootstraps(2);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < 2; ++rank) transports.push_back(make_socket_transport("0.0.0.0"));
  EndpointSpec spec;
  spec.channels = {{.name = "data"}};
  EXPECT_THAT(error_of([&] {
                make_local_groups(
                    2, [&](int) { return spec; }, soon(), std::move(transports));
              }),
              HasSubstr("ARK_ADDRESS 0.0.0.0 is beyond this machine"));
}

TEST(Door, OneOfSeveralAddressesIsEnough) {
  Meeting meeting;
  meeting.open();
  const std::string where = meeting.address;
  meeting.address = "127.0.0.1:1," + where;  // nobody is at the first
  EXPECT_EQ(lines(meeting.close()), 0u);
}

}  // namespace
}  // namespace ark::dma
