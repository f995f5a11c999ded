#include "server/http/server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "server/http/exchange.h"

namespace ark::http {
namespace {

using namespace std::chrono_literals;

constexpr auto kTick = 100ms;      // between two looks at deadlines
constexpr auto kTurn = 20ms;       // a worker keeps a connection for its next request so long
constexpr auto kComplaints = 10s;  // between two lines about the same
constexpr int kLockTries = 50;     // of who only wants to know, a millisecond each
constexpr std::size_t kPeerConnections = 256;
constexpr std::size_t kNamed = 3;  // requests that hold up an end
constexpr int kAccepts = 64;       // in a row, before others have their turn

int checked(int descriptor, const char* what) {
  if (descriptor < 0) throw Error(Code::kOs, std::string(what) + ": " + std::strerror(errno));
  return descriptor;
}

int open_spare() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

void watch(int epoll, int descriptor) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = descriptor;
  checked(::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event), "epoll_ctl");
}

// What throws here has no memory, most likely; other connections go on.
void guarded(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::exception& e) {
    log_line(LogLevel::kError, "a connection was dropped", {{"why", std::string(e.what())}});
  }
}

HttpError crowded(const std::string& why, const std::string& code) {
  return HttpError(503, why + "; try again later", "", code).with("Retry-After", "1");
}

}  // namespace

Server::Server(ServerOptions options, Router router, ApiKeys keys, ServerEvents events)
    : options_(std::move(options)),
      router_(std::move(router)),
      events_(std::move(events)),
      listener_(listen_on(options_.host, options_.port)),
      epoll_(checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_(checked(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd")),
      spare_(open_spare()),
      workers_(options_.workers),
      keys_(std::make_shared<const ApiKeys>(std::move(keys))),
      tls_(options_.tls) {
  options_.policy.check_names = listener_.is_loopback || !options_.policy.hosts.empty();
  if (listener_.is_loopback) options_.policy.hosts.push_back(listener_.address);
  watch(epoll_, listener_.socket);
  watch(epoll_, wake_);
}

Server::~Server() {
  stop(0ms);
  for (const int descriptor : {listener_.socket, epoll_, wake_, spare_}) ::close(descriptor);
}

void Server::start() {
  thread_ = std::thread([this] { run(); });
}

void Server::stop(std::chrono::milliseconds grace) {
  {
    std::unique_lock lock(mutex_);
    draining_.store(true);
    stopping_.store(true);
    wake();
    idle_.wait_for(lock, grace, [&] { return serving_.empty(); });
    for (const auto& [client, what] : serving_) ::shutdown(client->connection.socket(), SHUT_RDWR);
  }
  if (!thread_.joinable()) return;
  thread_.join();
  workers_.shutdown();
  returned_.clear();
}

void Server::replace(ApiKeys keys, TlsContext tls) {
  std::lock_guard lock(mutex_);
  keys.take_usage_from(*keys_);
  keys_ = std::make_shared<const ApiKeys>(std::move(keys));
  tls_ = std::move(tls);
}

std::string Server::in_progress() const {
  std::unique_lock lock(mutex_, std::try_to_lock);
  for (int tries = 0; !lock && tries < kLockTries; ++tries) {
    std::this_thread::sleep_for(1ms);
    lock.try_lock();
  }
  if (!lock) return "the HTTP server's lock is held";
  std::string text;
  std::size_t named = 0;
  for (const auto& [client, what] : serving_)
    if (named++ < kNamed) text += (text.empty() ? "" : ", ") + escaped(what);
  return named <= kNamed ? text : text + " and " + std::to_string(named - kNamed) + " more";
}

void Server::wake() {
  const uint64_t one = 1;
  if (::write(wake_, &one, sizeof one) < 0) return;  // it is awake already, or looks a tick later
}

void Server::run() {
  std::vector<epoll_event> events(options_.connections + 2);  // who is ready has a turn, however many are
  Clock::time_point next_look = Clock::now() + kTick;
  while (!stopping_) {
    const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()),
                                   has_more_.empty() ? static_cast<int>(kTick.count()) : 0);
    bool has_new = false;
    for (int i = 0; i < count; ++i) {
      const int socket = events[i].data.fd;
      if (socket == listener_.socket) {
        has_new = true;
      } else if (socket == wake_) {
        uint64_t wakes = 0;
        if (::read(wake_, &wakes, sizeof wakes) > 0) guarded([this] { take_returned(); });
      } else if (const auto found = waiting_.find(socket); found != waiting_.end()) {
        if (!found->second->has_more) go_on(ClientPtr(found->second));
      }
    }
    if (has_new) guarded([this] { accept_some(); });
    for (const ClientPtr& client : std::exchange(has_more_, {})) {
      client->has_more = false;
      const auto found = waiting_.find(client->connection.socket());
      if (found != waiting_.end() && found->second == client) go_on(client);
    }
    if (Clock::now() < next_look) continue;
    guarded([this] { take_returned(); });  // of whom a wake was lost
    guarded([this] { give_up_late(); });
    next_look = Clock::now() + kTick;
  }
  waiting_.clear();
  has_more_.clear();
}

void Server::accept_some() {
  for (int i = 0; i < kAccepts; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    const int socket = ::accept4(listener_.socket, reinterpret_cast<sockaddr*>(&address), &size,
                                 SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      take(Descriptor(socket), address);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      return out_of_descriptors();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      return;
    }
  }
}

// Someone who waits has to go; where nobody does, the newcomer: else it would wake us for ever.
void Server::out_of_descriptors() {
  if (Clock::now() >= next_complaint_) {
    next_complaint_ = Clock::now() + kComplaints;
    log_line(LogLevel::kWarning, "no more descriptors for connections; raise the limit (ulimit -n)",
             {{"why", std::string(std::strerror(errno))},
              {"connections", static_cast<int64_t>(open_connections())}});
  }
  if (make_room()) return;
  ::close(spare_);
  if (const int socket = ::accept4(listener_.socket, nullptr, nullptr, SOCK_CLOEXEC); socket >= 0)
    ::close(socket);
  spare_ = open_spare();
}

void Server::take(Descriptor socket, const sockaddr_storage& address) {
  const std::string peer = text_of(address);
  const std::size_t most = options_.connections_per_peer ? options_.connections_per_peer
                           : is_loopback(address)        ? options_.connections
                                                         : kPeerConnections;
  const bool has_room = open_ < options_.connections || make_room();
  guarded([&] {
    const auto client = std::make_shared<Client>(*this, std::move(socket), peer);
    if (client->of_peer > most || !has_room)
      refuse(*client, crowded("there are " + std::to_string(has_room ? most : options_.connections) +
                                  " open connections" + (has_room ? " from " + peer : ""),
                              "too_many_connections"));
    wait_for(client);
  });
}

// Closes the connection that waits and is missed least: an answered one before one between requests or in a head,
// that before one that sends its body; of these one of the address that has most, and the one that waits longest.
bool Server::make_room() {
  const auto rank = [&](const Client& client) {
    const int worth = client.state == Client::State::kLinger ? 0
                      : client.state == Client::State::kBody ? 2
                                                             : 1;
    return std::tuple(worth, -static_cast<int64_t>(peers_[client.connection.peer()]), client.since);
  };
  ClientPtr least;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [socket, client] : waiting_)
      if (!least || rank(*client) < rank(*least)) least = client;
  }
  if (least) waiting_.erase(least->connection.socket());
  return least != nullptr;
}

void Server::wait_for(const ClientPtr& client) {
  client->connection.never_wait(true);
  watch(epoll_, client->connection.socket());
  waiting_[client->connection.socket()] = client;
}

void Server::take_returned() {
  std::vector<ClientPtr> returned;
  {
    std::lock_guard lock(mutex_);
    returned.swap(returned_);
  }
  // What it has sent meanwhile wakes us.
  for (const ClientPtr& client : returned) guarded([&] { wait_for(client); });
}

void Server::go_on(const ClientPtr& client) {
  bool waits = false;
  guarded([&] { waits = handle_what_came(client); });
  if (!waits) waiting_.erase(client->connection.socket());
}

// Whether the connection waits on here. At most one request is answered: its others wait until everybody had a turn.
bool Server::handle_what_came(const ClientPtr& client) {
  const Next next = advance(*client);
  if (next != Next::kServe) return next == Next::kWait;
  if (is_quick(*client)) {
    serve(*client);
  } else {
    const int socket = client->connection.socket();
    ::epoll_ctl(epoll_, EPOLL_CTL_DEL, socket, nullptr);
    if (workers_.submit([this, client] { work(client); })) return false;
    watch(epoll_, socket);
    refuse(*client, crowded("the server answers " + std::to_string(options_.workers) + " requests",
                            "too_many_requests"));
  }
  client->has_more = !client->unread.empty();
  if (client->has_more) has_more_.push_back(client);
  return true;
}

void Server::give_up_late() {
  std::vector<ClientPtr> late;
  for (const auto& [socket, client] : waiting_)
    if (Clock::now() >= client->deadline) late.push_back(client);
  for (const ClientPtr& client : late) {
    const bool in_head = client->state == Client::State::kHead;
    if (in_head || client->state == Client::State::kBody)
      refuse(
          *client,
          HttpError(
              408,
              std::string("the request's ") + (in_head ? "headers" : "body") + " did not arrive within " +
                  std::to_string((in_head ? options_.head_timeout : options_.body_timeout).count()) + " ms"));
    else
      waiting_.erase(client->connection.socket());
  }
}

// Answers the request that has come, and those that follow at once; then the connection waits with the others.
void Server::work(ClientPtr client) {
  guarded([&] {
    client->connection.never_wait(false);
    for (Next next = Next::kServe; next == Next::kServe;) {
      serve(*client);
      next = client->unread.empty() ? Next::kWait : advance(*client);
      for (const auto until = Clock::now() + kTurn; next == Next::kWait; next = advance(*client)) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
        if (!stopping_ && left > 0ms && !workers_.is_crowded() && client->connection.wait_readable(left))
          continue;
        std::lock_guard lock(mutex_);
        returned_.push_back(std::move(client));
        wake();
        return;
      }
    }
  });
}

}  // namespace ark::http
