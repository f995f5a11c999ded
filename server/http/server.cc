#include "server/http/server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "base/error.h"
#include "server/http/envelope.h"
#include "server/http/exchange.h"
#include "server/http/listener.h"
#include "server/http/worker_pool.h"

namespace ark::http {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSpareThreads = 16;  // they tell clients beyond the limit so

}  // namespace

Server::Server(ServerOptions options, Router router, ApiKeys keys, ServerEvents events)
    : options_(std::move(options)),
      router_(std::move(router)),
      keys_(std::move(keys)),
      events_(std::move(events)) {
  const Listener listener = listen_on(options_.host, options_.port);
  svr_sock_ = listener.socket;
  port_ = listener.port;
  new_task_queue = [this] { return new WorkerPool(options_.connections + kSpareThreads); };
  set_up_library();
}

Server::~Server() {
  if (thread_.joinable()) {
    stop(0ms);
  } else if (const int socket = svr_sock_.exchange(INVALID_SOCKET); socket != INVALID_SOCKET) {
    ::close(socket);
  }
}

void Server::start() {
  thread_ = std::thread([this] { listen_after_bind(); });
  while (!is_running()) std::this_thread::sleep_for(1ms);
}

void Server::stop(std::chrono::milliseconds grace) {
  {
    std::unique_lock lock(mutex_);
    draining_.store(true);
    stopping_.store(true);
    for (const auto& [socket, busy] : sockets_)
      if (!busy) ::shutdown(socket, SHUT_RD);
    idle_.wait_for(lock, grace, [&] {
      for (const auto& [socket, busy] : sockets_)
        if (busy) return false;
      return true;
    });
    for (const auto& [socket, busy] : sockets_) ::shutdown(socket, SHUT_RDWR);
  }
  httplib::Server::stop();
  if (thread_.joinable()) thread_.join();
}

std::size_t Server::open_connections() const {
  std::lock_guard lock(mutex_);
  return sockets_.size();
}

bool Server::enter(int socket) {
  std::lock_guard lock(mutex_);
  if (stopping_ || sockets_.size() >= options_.connections) return false;
  sockets_[socket] = false;
  return true;
}

void Server::set_busy(int socket, bool busy) {
  {
    std::lock_guard lock(mutex_);
    sockets_[socket] = busy;
    if (!busy && stopping_) ::shutdown(socket, SHUT_RD);
  }
  idle_.notify_all();
}

void Server::leave(int socket) {
  {
    std::lock_guard lock(mutex_);
    sockets_.erase(socket);
    ::close(socket);  // under the lock: nobody else may shut down a number that is already reused
  }
  idle_.notify_all();
}

bool Server::process_and_close_socket(socket_t socket) {
  Connection connection(socket, options_.limits);
  if (!enter(socket)) {
    Exchange exchange{connection};
    exchange.must_close = true;
    HttpError full(
        503, "the server has " + std::to_string(options_.connections) + " open connections; try again later",
        "", "too_many_connections");
    full.headers.emplace_back("Retry-After", "1");
    answer_head(exchange, error_response(full));
    connection.linger();
    ::close(socket);
    return false;
  }
  try {
    while (!stopping_ && connection.await_request()) {
      set_busy(socket, true);
      const bool more = serve_one(connection);
      if (!more) connection.linger();
      set_busy(socket, false);
      if (!more) break;
    }
  } catch (const std::exception& e) {  // no memory, most likely; other connections go on
    log_line(LogLevel::kError, "a connection was dropped", {{"why", std::string(e.what())}});
  }
  leave(socket);
  return true;
}

}  // namespace ark::http
