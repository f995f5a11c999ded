#include "dma/transports.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "dma/blob.h"
#include "dma/local/setup.h"
#include "dma/mixed/setup.h"
#include "dma/shm/setup.h"
#include "dma/socket/setup.h"

namespace ark::dma {
namespace {

// Ranks with the same may map each other's memory.
std::string machine_of(const Place& place) {
  return BlobWriter().text(place.machine).number(place.pid_namespace).number(place.user).take();
}

bool is_one_machine(std::span<const Place> ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const Place& place) { return machine_of(place) == machine_of(ranks[0]); });
}

bool is_one_process(std::span<const Place> ranks) {
  return is_one_machine(ranks) && std::all_of(ranks.begin(), ranks.end(), [&](const Place& place) {
           return place.process == ranks[0].process;
         });
}

bool can_connect_by_tcp(std::span<const Place> ranks) {
  const auto all = [&](auto is_good) { return std::all_of(ranks.begin(), ranks.end(), is_good); };
  return all([](const Place& place) { return !place.address.empty(); }) || all([&](const Place& place) {
           return place.machine == ranks[0].machine && place.network_namespace == ranks[0].network_namespace;
         });
}

template <std::string Place::*obstacle>
bool all_lack(std::span<const Place> ranks) {
  return std::all_of(ranks.begin(), ranks.end(),
                     [](const Place& place) { return (place.*obstacle).empty(); });
}
constexpr auto have_verbs = all_lack<&Place::no_verbs>, have_ucx = all_lack<&Place::no_ucx>;

std::string verbs_trouble() {
  // Most machines have none: these load nothing.
  if (names_in("/sys/class/infiniband").empty()) return std::string(kNoRdma);
  return plugin_trouble("verbs", transport_wish().port);
}

// Some two of them.
bool share_machines(std::span<const Place> ranks) {
  std::set<std::string> machines;
  for (const Place& place : ranks) machines.insert(machine_of(place));
  return machines.size() < ranks.size();
}

template <bool (*can_connect)(std::span<const Place> ranks)>
bool with_machines(std::span<const Place> ranks) {
  return share_machines(ranks) && can_connect(ranks);
}

std::unique_ptr<Transport> make_shm(int) { return make_shm_transport(); }
std::unique_ptr<Transport> make_socket(int) { return make_socket_transport(Place::here().address); }

std::unique_ptr<Transport> make_verbs(int rank) {
  return make_by_plugin("verbs", "verbs", rank, transport_wish().port);
}
std::unique_ptr<Transport> make_verbs_ud(int rank) {
  return make_by_plugin("verbs", "verbs-ud", rank, transport_wish().port);
}
std::unique_ptr<Transport> make_ucx(int rank) { return make_by_plugin("ucx", "ucx", rank, {}); }

template <std::unique_ptr<Transport> (*make_far)(int rank)>
std::unique_ptr<Transport> with_shm(int rank) {
  return make_mixed_transport(machine_of(Place::here()), make_shm_transport(), make_far(rank));
}

template <std::unique_ptr<Transport> (*make_one)(int rank)>
std::vector<std::unique_ptr<Transport>> each(int first, int ranks) {
  std::vector<std::unique_ptr<Transport>> all;
  for (int rank = first; rank < first + ranks; ++rank) all.push_back(make_one(rank));
  return all;
}

constexpr TransportKind kTransports[] = {
    {"local", "threads of one process, whose ranks are made together", is_one_process,
     [](int, int ranks) { return make_local_transports(ranks); }, false},
    {"shm", "processes of one user in one PID namespace of one machine", is_one_machine, each<make_shm>},
    {"shm+verbs", "an RDMA device at each rank, and ranks that share a machine", with_machines<have_verbs>,
     each<with_shm<make_verbs>>, true, &Place::no_verbs, true},
    {"verbs", "an RDMA device at each rank", have_verbs, each<make_verbs>, true, &Place::no_verbs},
    // Behind those that can do the same: only for who asks for it.
    {"shm+verbs-ud", "an RDMA device at each rank, and ranks that share a machine", with_machines<have_verbs>,
     each<with_shm<make_verbs_ud>>, true, &Place::no_verbs, true},
    {"verbs-ud", "an RDMA device at each rank", have_verbs, each<make_verbs_ud>, true, &Place::no_verbs},
    // Which way UCX takes is its own choice: only for who asks for it.
    {"shm+ucx", "UCX at each rank, and ranks that share a machine", with_machines<have_ucx>,
     each<with_shm<make_ucx>>, true, &Place::no_ucx, true},
    {"ucx", "UCX at each rank", have_ucx, each<make_ucx>, true, &Place::no_ucx},
    {"shm+socket", "what socket needs, and ranks that share a machine", with_machines<can_connect_by_tcp>,
     each<with_shm<make_socket>>, true, nullptr, true},
    {"socket", "TCP: one machine, or a meeting by TCP, or ARK_ADDRESS on each", can_connect_by_tcp,
     each<make_socket>},
};

// "; rank 1: no RDMA device here"
std::string obstacles(const TransportKind& kind, std::span<const Place> ranks) {
  std::string text;
  for (size_t rank = 0; kind.obstacle != nullptr && rank < ranks.size(); ++rank)
    if (const std::string& why = ranks[rank].*kind.obstacle; !why.empty())
      text += "; rank " + std::to_string(rank) + ": " + escaped(why, 300);
  return text;
}

uint64_t inode(const char* path) {
  struct stat status = {};
  return stat(path, &status) == 0 ? status.st_ino : 0;
}

std::string describe(const Place& place, std::string_view asked) {
  return BlobWriter()
      .text(place.machine)
      .number(place.pid_namespace)
      .number(place.network_namespace)
      .number(place.user)
      .number(place.process)
      .text(place.address)
      .text(place.no_verbs)
      .text(place.no_ucx)
      .text(asked)
      .take();
}

}  // namespace

Place Place::here(std::string_view asked) {
  Place place;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), place.machine);
  place.pid_namespace = inode("/proc/self/ns/pid");
  place.network_namespace = inode("/proc/self/ns/net");
  place.user = getuid();
  place.process = static_cast<uint32_t>(getpid());
  if (const char* address = std::getenv("ARK_ADDRESS")) place.address = address;
  place.no_verbs = verbs_trouble();
  if (asked.ends_with("ucx")) place.no_ucx = plugin_trouble("ucx", {});
  return place;
}

TransportWish& transport_wish() {
  const auto said = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  static TransportWish wish{said("ARK_TRANSPORT"), {said("ARK_VERBS_DEVICE"), said("ARK_VERBS_GID")}};
  return wish;
}

bool TransportKind::works_here() const {
  const std::vector<Place> two(2, Place::here(name));
  return can_connect(two);
}

std::span<const TransportKind> transports() { return kTransports; }

const TransportKind& transport_named(std::string_view name) {
  std::string names;
  for (const TransportKind& kind : kTransports) {
    if (kind.name == name) return kind;
    names += (names.empty() ? "" : ", ") + std::string(kind.name);
  }
  throw Error(Code::kUsage, "no transport " + escaped(name) + "; there are " + names);
}

std::string passed_over(const TransportKind& chosen, std::span<const Place> ranks) {
  for (const TransportKind& kind : kTransports) {
    if (&kind == &chosen) break;
    if (kind.obstacle == nullptr || kind.is_mixed) continue;
    const bool some_have = std::ranges::any_of(ranks, [&](const Place& place) {
      const std::string& why = place.*kind.obstacle;
      return why != kNotLookedFor && why != kNoRdma;
    });
    if (some_have)
      return "transport " + std::string(kind.name) + " cannot connect these ranks, " +
             std::string(chosen.name) + " does" + obstacles(kind, ranks);
  }
  return "";
}

const TransportKind& choose_transport(Bootstrap& bootstrap, const std::string& asked, Deadline deadline) {
  Place own = Place::here(asked);
  if (own.address.empty()) own.address = bootstrap.address();
  const std::vector<std::string> blobs = bootstrap.all_gather(describe(own, asked), deadline);
  std::vector<Place> ranks;
  for (size_t rank = 0; rank < blobs.size(); ++rank) {
    BlobReader blob(blobs[rank], "rank " + std::to_string(rank) + ": its place");
    Place place;
    place.machine = blob.text();
    place.pid_namespace = blob.number<uint64_t>();
    place.network_namespace = blob.number<uint64_t>();
    place.user = blob.number<uint32_t>();
    place.process = blob.number<uint32_t>();
    place.address = blob.text();
    place.no_verbs = blob.text();
    place.no_ucx = blob.text();
    if (const std::string_view theirs = blob.text(); theirs != asked) {
      throw Error(Code::kUsage, "rank " + std::to_string(rank) + " asks for transport " + escaped(theirs) +
                                    ", rank " + std::to_string(bootstrap.rank()) + " for " + escaped(asked) +
                                    "; give all ranks the same --transport");
    }
    blob.end();
    ranks.push_back(std::move(place));
  }
  const auto fits = [&](const TransportKind& kind) { return kind.joins_alone && kind.can_connect(ranks); };
  for (const TransportKind& kind : kTransports) {
    if (asked.empty() ? fits(kind) : &kind == &transport_named(asked)) {
      if (fits(kind)) {
        const std::string warning = asked.empty() ? passed_over(kind, ranks) : "";
        if (bootstrap.rank() == 0 && !warning.empty()) log_line(LogLevel::kWarning, warning);
        return kind;
      }
      throw Error(Code::kUnavailable, "transport " + std::string(kind.name) +
                                          " cannot connect these ranks: it needs " + std::string(kind.needs) +
                                          obstacles(kind, ranks));
    }
  }
  throw Error(Code::kUnavailable, "no transport connects these ranks; the last, " +
                                      std::string(std::end(kTransports)[-1].name) + ", needs " +
                                      std::string(std::end(kTransports)[-1].needs));
}

}  // namespace ark::dma
