// libFuzzer: what a peer may send. The first byte says where: at the door, in frames of transport socket (in capitals:
// with their sums put right), in the records of set-up, or in questions and answers for pages. Without the key nobody
// passes the door; after it nothing is written outside what is a peer's, and no record does more than throw an Error.
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "base/error.h"
#include "dma/bootstrap/door.h"
#include "dma/endpoint.h"
#include "dma/local/setup.h"
#include "dma/socket/wire.h"
#include "dma/transports.h"
#include "server/peers/messages.h"

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

// Rank 1 writes to rank 0 by its wire.
void write_to(std::string_view bytes) {
  int pair[2];
  check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
  std::byte region[64 + 16] = {};  // the last 16 are nobody's
  Counter64 counters[kChannels * 2 * 2];
  WireMap map;
  map.channels = kChannels;
  map.memory.resize(2);
  map.memory[0] = {{{region, 64}, 0, nullptr},
                   {{reinterpret_cast<std::byte*>(counters), sizeof counters}, 0, nullptr}};
  map.memory[1] = {{{nullptr, 64}, 0, nullptr}, {{nullptr, sizeof counters}, 0, nullptr}};
  map.counters = {counters, nullptr};
  std::vector<Socket> sockets(2);
  sockets[1] = Socket(pair[0]);
  const Socket peer(pair[1]);
  check(send(pair[1], bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size()));
  shutdown(pair[1], SHUT_RDWR);
  const auto wire = make_socket_wire(map, std::move(sockets));
  for (int turn = 0; turn < 3; ++turn) wire->poll({});
  for (int i = 64; i < 80; ++i) check(region[i] == std::byte{0});
  // Routes of rank 0 itself, which no peer raises.
  for (uint32_t i = 0; i < kChannels * 2; ++i) check(counters[i].load() == 0);
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
  if (data[0] == 't') tell(bytes);
  if (data[0] == 'q') ask(bytes);
  return 0;
}
