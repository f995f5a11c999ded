// libFuzzer: what a peer may send. The first byte says where: at the door, in frames of transport socket (in capitals:
// with their sums put right), in messages of transport ucx, in datagrams of verbs-ud, in the records of set-up (also
// Member, LaunchTerms, hellos of verbs and verbs-ud), or in questions and answers for pages. Without the key nobody
// passes the door; after it nothing is written outside what is a peer's, and no record does more than throw an Error;
// one that is taken says what it was read as.
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "dma/bootstrap/door.h"
#include "dma/endpoint.h"
#include "dma/local/setup.h"
#include "dma/socket/wire.h"
#include "dma/transports.h"
#include "dma/ucx/frame.h"
#include "dma/verbs/hello.h"
#include "dma/verbs/session.h"
#include "server/load/members.h"
#include "server/load/terms.h"
#include "server/peers/messages.h"
#include "server/version.h"

namespace {

using namespace ark::dma;

constexpr uint32_t kChannels = 2;

void check(bool holds) {
  if (!holds) std::abort();
}

// Frames as a stranger sends them, one after the other; whole and in pieces they mean the same.
void knock(std::string_view bytes) {
  Admission admission("a key that strangers do not know", 0);
  for (int frames = 0; frames < 3; ++frames) {
    Frame frame, again;
    std::size_t whole = 0, piece = 0;
    const Received state = parse_frame(bytes, 128, frame, whole);
    for (std::size_t have = 0; have < bytes.size() && have < whole; ++have) {
      const Received early = parse_frame(bytes.substr(0, have), 128, again, piece);
      check(early == Received::kMore ? piece <= whole : early == state);
    }
    if (state != Received::kFrame) return;
    check(whole <= bytes.size() && frame.payload.size() == frame.header.bytes && frame.payload.size() <= 128);
    bytes.remove_prefix(whole);
    std::string answer;
    const Admission::Verdict verdict = admission.take(frame, answer);
    check(verdict != Admission::Verdict::kProven && !answer.empty());
    if (verdict == Admission::Verdict::kRefused) return;
    check(frames == 0);
  }
}

void seal(FrameHeader& head, std::string_view payload) { head.seal(payload); }
void seal(WireFrame& head, std::string_view payload) {
  head.seal(reinterpret_cast<const std::byte*>(payload.data()));
}

// Whole frames, one behind the other, get the sums that they should have.
template <class Head>
std::string sealed(std::string bytes) {
  Head head;
  for (std::size_t at = 0; bytes.size() - at >= sizeof head; at += sizeof head + head.bytes) {
    std::memcpy(&head, bytes.data() + at, sizeof head);
    if (head.bytes > bytes.size() - at - sizeof head) break;
    seal(head, std::string_view(bytes).substr(at + sizeof head, head.bytes));
    std::memcpy(bytes.data() + at, &head, sizeof head);
  }
  return bytes;
}

// What rank 1 may write to of rank 0.
struct Target {
  std::byte region[64 + 16] = {};  // the last 16 are nobody's
  Counter64 counters[kChannels * 2 * 2];
  WireMap map;

  Target() {
    map.channels = kChannels;
    map.memory.resize(2);
    map.memory[0] = {{{region, 64}, 0, nullptr},
                     {{reinterpret_cast<std::byte*>(counters), sizeof counters}, 0, nullptr}};
    map.memory[1] = {{{nullptr, 64}, 0, nullptr}, {{nullptr, sizeof counters}, 0, nullptr}};
    map.counters = {counters, nullptr};
  }
  void check_untouched() const {
    for (int i = 64; i < 80; ++i) check(region[i] == std::byte{0});
    // Routes of rank 0 itself, which no peer raises.
    for (uint32_t i = 0; i < kChannels * 2; ++i) check(counters[i].load() == 0);
  }
};

// Rank 1 writes to rank 0 by its wire.
void write_to(std::string_view bytes) {
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
  Target target;
  std::vector<Socket> sockets(2);
  sockets[1] = Socket(pair[0]);
  const Socket peer(pair[1]);
  check(send(pair[1], bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  shutdown(pair[1], SHUT_RDWR);
  const auto wire = make_socket_wire(target.map, std::move(sockets));
  for (int turn = 0; turn < 3; ++turn) wire->poll({});
  target.check_untouched();
}

// The same by messages of UCX, which gives each header with so many bytes of payload.
void message_to(std::string_view bytes) {
  Target target;
  UcxOrder order;
  uint64_t taken = 0;
  while (bytes.size() >= sizeof(UcxFrame) + 1) {
    UcxFrame frame;
    std::memcpy(&frame, bytes.data(), sizeof frame);
    frame.sender = 1;  // whose secret it has
    const std::size_t length =
        std::min<std::size_t>(static_cast<uint8_t>(bytes[sizeof frame]), bytes.size() - sizeof frame - 1);
    const std::string_view payload = bytes.substr(sizeof frame + 1, length);
    bytes.remove_prefix(sizeof frame + 1 + length);
    if (!order.allows(target.map, frame, length)) return;
    check(frame.number >= order.taken());
    if (length != 0)
      std::memcpy(target.map.memory[0].at(frame.target).region.base + frame.target_offset, payload.data(),
                  length);
    order.arrive(frame, [&](const UcxFrame& next) {
      check(next.number == taken++);
      if (next.raise_by != 0) target.counters[next.counter].raise(next.raise_by);
    });
    check(order.taken() == taken);
    check(!order.allows(target.map, frame, length));  // no number twice
  }
  target.check_untouched();
}

// Datagrams of transport verbs-ud from one who knows the secret, to a session that itself has sent.
void datagrams_to(std::string_view bytes) {
  Target target;
  DatagramSession session(8, 32, 1e9);
  const std::vector<std::byte> source(200);
  const Transfer transfer{.id = 5, .peer = 1, .source = source.data(), .bytes = source.size(), .raise_by = 1};
  session.push(transfer);
  int64_t now = 1'000'000'000;
  std::vector<uint64_t> ended;
  for (uint32_t taken = 0; bytes.size() >= sizeof(Datagram) + 1; now += 1'000'000) {
    for (; session.may_send(now); now += 1'000) {
      Datagram head;
      uint64_t offset = 0;
      const Transfer& out = session.next(head, offset, now);
      check(out.id == 5 && offset <= source.size() && head.bytes <= source.size() - offset);
    }
    Datagram head;
    std::memcpy(&head, bytes.data(), sizeof head);
    const std::size_t length =
        std::min<std::size_t>(static_cast<uint8_t>(bytes[sizeof head]), bytes.size() - sizeof head - 1);
    const std::string_view payload = bytes.substr(sizeof head + 1, length);
    bytes.remove_prefix(sizeof head + 1 + length);
    if (!allows(target.map, head, 1, Priority::kDecode, length)) break;
    if (session.take(head, now, ended)) {
      if (length != 0)
        std::memcpy(target.map.memory[0].at(head.target).region.base + head.target_offset, payload.data(),
                    length);
      if (head.raise_by != 0) target.counters[head.counter].raise(head.raise_by);
      check(session.awaited() == DatagramSession::kFirst + ++taken);
      std::vector<uint64_t> twice;
      check(!session.take(head, now, twice));  // no number twice
      ended.insert(ended.end(), twice.begin(), twice.end());
    }
    session.look_at_clock(now);
    check(session.acknowledged() - DatagramSession::kFirst <= session.sent() - DatagramSession::kFirst);
    check(session.rate() > 0 && session.rate() <= 1e9);
  }
  // Only what has all been sent can have been acknowledged whole, and once.
  check(ended.size() <= 1 && (ended.empty() || session.sent() - DatagramSession::kFirst == 7));
  target.check_untouched();
}

// What rank 1 says of its queue pairs and of its machine, and rank 0 of what all do.
void describe(char what, std::string_view bytes) {
  try {
    if (what == 'v') {
      const VerbsHello hello = VerbsHello::read(bytes, 1, 2, 0);
      check(hello.at.mtu >= 1 && hello.at.mtu <= 5 && hello.queues.at(0).number != 0);
      check(hello.write() == bytes);
    } else if (what == 'g') {
      const DatagramHello hello = DatagramHello::read(bytes, 1, 2);
      check(hello.window >= 2 && hello.window <= 64 && hello.queues[0] != 0 && hello.secrets.size() == 2);
      check(hello.write() == bytes);
    } else if (what == 'm') {
      const ark::Member member = ark::member_of(bytes, 1, 0);
      check(member.cpus >= 1 && member.host.find('\n') == std::string::npos);
      ark::Member again = ark::member_of(ark::to_blob(member, ark::kVersion), 1, 0);
      check(again.machine == member.machine && again.memory == member.memory);
    } else {
      check(ark::to_blob(ark::terms_of(bytes)) == bytes);
    }
  } catch (const ark::Error&) {
  }
}

// A bootstrap whose rank 1 says what the input has, a record a round.
class Told : public Bootstrap {
 public:
  explicit Told(std::string_view bytes) : bytes_(bytes) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::vector<std::string> all_gather(std::string_view blob, Deadline) override {
    uint16_t length = 0;
    if (bytes_.size() >= sizeof length) {
      std::memcpy(&length, bytes_.data(), sizeof length);
      bytes_.remove_prefix(sizeof length);
    }
    const std::string_view theirs = bytes_.substr(0, length);
    bytes_.remove_prefix(theirs.size());
    return {std::string(blob), std::string(theirs)};
  }
  void watch(OnDeath) override {}
  void leave() override {}
  void report_dead(int, const std::string&) override {}

 private:
  std::string_view bytes_;
};

void tell(std::string_view bytes) {
  Told bootstrap(bytes);
  try {
    choose_transport(bootstrap, "", Deadline::never());
  } catch (const ark::Error&) {
  }
  EndpointSpec spec;
  spec.channels = {{.name = "data", .slot_bytes = 64}};
  spec.run_pump = false;
  AbortFlag abort;
  const auto transports = make_local_transports(1);
  try {
    const Endpoint endpoint(bootstrap, *transports[0], spec, abort, Deadline::never());
  } catch (const ark::Error&) {
  }
}

// A question for pages, or one of them.
void ask(std::string_view bytes) {
  const ark::peers::PageShape shape{64, 4, 32, 50};
  try {
    const ark::peers::Question question = ark::peers::question_of(bytes, shape);
    check(question.tokens.size() <= 32 && question.tokens.size() % 4 == 0);
    check(question.first < question.tokens.size() / 4 && question.scope.size() <= 8);
    check(ark::peers::to_blob(question) == bytes);
  } catch (const ark::Error&) {
  }
  std::string page(bytes);
  try {
    ark::peers::open_page(page, 1, shape);
    check(page.size() == 64);
    ark::peers::seal_page(page, 1, shape);
    check(page == bytes);
  } catch (const ark::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == 'k') knock(bytes);
  if (data[0] == 'w') write_to(bytes);
  if (data[0] == 'K') knock(sealed<FrameHeader>(std::string(bytes)));
  if (data[0] == 'W') write_to(sealed<WireFrame>(std::string(bytes)));
  if (data[0] == 'u') message_to(bytes);
  if (data[0] == 'd') datagrams_to(bytes);
  if (data[0] == 'v' || data[0] == 'g' || data[0] == 'm' || data[0] == 'l')
    describe(static_cast<char>(data[0]), bytes);
  if (data[0] == 't') tell(bytes);
  if (data[0] == 'q') ask(bytes);
  return 0;
}
