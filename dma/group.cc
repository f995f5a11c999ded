#include "dma/group.h"

#include <exception>
#include <thread>

#include "base/error.h"
#include "dma/local/setup.h"
#include "dma/transports.h"

namespace ark::dma {

Group::Group(std::unique_ptr<Bootstrap> bootstrap, std::unique_ptr<Transport> transport,
             const EndpointSpec& spec, Deadline deadline)
    : exceptions_(std::uncaught_exceptions()),
      bootstrap_(std::move(bootstrap)),
      transport_(std::move(transport)) {
  bootstrap_->watch([this](int rank, const std::string& why) { on_death(rank, why); });
  endpoint_ = std::make_unique<Endpoint>(*bootstrap_, *transport_, spec, abort_, deadline);
}

Group::~Group() {
  endpoint_.reset();  // drains the pump while the peers still take us for alive
  if (std::uncaught_exceptions() == exceptions_ && (has_parted_ || !abort_.raised())) bootstrap_->leave();
  bootstrap_.reset();
}

void Group::part() {
  endpoint_->pump().stop();
  has_parted_ = !abort_.raised();
}

void Group::on_death(int rank, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (dead_rank_ >= 0) return;
    dead_rank_ = rank;
    death_ = "rank " + std::to_string(rank) + " is dead: " + why;
  }
  // After the name is written: who is woken by the flag finds it.
  abort_.raise(AbortReason::kDeadRank, rank);
}

int Group::dead_rank() const {
  std::lock_guard lock(mutex_);
  return dead_rank_;
}

std::string Group::death() const {
  std::lock_guard lock(mutex_);
  return death_;
}

std::string Group::trouble() const {
  if (!abort_.raised()) return "";
  if (std::string text = death(); !text.empty()) return text;
  const Fault given_up = fault();
  return given_up ? given_up.text() : "the group was aborted";
}

std::vector<std::unique_ptr<Group>> make_local_groups(int size, const std::function<EndpointSpec(int)>& spec,
                                                      Deadline deadline,
                                                      std::vector<std::unique_ptr<Transport>> transports) {
  if (transports.empty()) transports = make_local_transports(size);
  ARK_CHECK(static_cast<int>(transports.size()) == size, "one transport per rank");
  std::vector<std::unique_ptr<Bootstrap>> bootstraps = make_local_bootstraps(size);
  std::vector<std::unique_ptr<Group>> groups(size);
  std::vector<std::exception_ptr> errors(size);
  {
    // Set-up is collective: each rank needs a thread for it.
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          groups[rank] = std::make_unique<Group>(std::move(bootstraps[rank]), std::move(transports[rank]),
                                                 spec(rank), deadline);
        } catch (...) {
          errors[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return groups;
}

std::unique_ptr<Group> join_group(std::unique_ptr<Bootstrap> bootstrap, const std::string& transport,
                                  const EndpointSpec& spec, Deadline deadline) {
  std::vector<std::unique_ptr<Transport>> own =
      choose_transport(*bootstrap, transport, deadline).make(bootstrap->rank(), 1);
  return std::make_unique<Group>(std::move(bootstrap), std::move(own[0]), spec, deadline);
}

}  // namespace ark::dma
