#include "dma/mpi/meet.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "base/random.h"
#include "base/sha256.h"
#include "dma/blob.h"
#include "dma/bootstrap/key.h"
#include "dma/bootstrap/socket.h"
#include "dma/mpi/library.h"
#include "dma/mpi/loaded.h"
#include "dma/transports.h"

namespace ark::dma {
namespace {

constexpr std::size_t kNote = 1024;  // bytes of what each rank tells
constexpr std::size_t kKey = 32;

// Of a launcher's variables one is enough; what they do not tell, MPI does.
int number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

// Every address by which another machine may reach this one.
std::string addresses(uint16_t port) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::string all;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0)
      continue;
    char host[INET6_ADDRSTRLEN] = "";
    if (one->ifa_addr->sa_family == AF_INET)
      inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr, host, sizeof host);
    if (const auto* six = reinterpret_cast<sockaddr_in6*>(one->ifa_addr);
        six->sin6_family == AF_INET6 && !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
      inet_ntop(AF_INET6, &six->sin6_addr, host, sizeof host);
    const std::string more = (all.empty() ? "" : ",") + address_of(host, port);
    if (*host != '\0' && all.size() + more.size() < kNote / 2) all += more;
  }
  return all;
}

// Where rank 0 can be met, by this name alone if all ranks are where it is.
struct Note {
  std::string machine;  // which ranks can open each other's abstract sockets
  std::string name;     // such a socket's
  std::string addresses, key;
};

std::string to_bytes(const Note& note) {
  std::string bytes =
      BlobWriter().text(note.machine).text(note.name).text(note.addresses).text(note.key).take();
  ARK_CHECK(bytes.size() <= kNote, "a note for MPI that is too long");
  bytes.resize(kNote);
  return bytes;
}

Note note_of(std::string_view bytes) {
  BlobReader blob(bytes, "a rank's note by MPI");
  Note note;
  for (std::string* text : {&note.machine, &note.name, &note.addresses, &note.key}) *text = blob.text();
  return note;
}

}  // namespace

bool is_started_by_mpi() {
  if (number("OMPI_COMM_WORLD_SIZE") > 1 || number("PMI_SIZE") > 1) return true;
  // PMIx tells no size; Slurm does.
  return std::getenv("PMIX_RANK") != nullptr && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr &&
         number("SLURM_STEP_NUM_TASKS") > 1;
}

Environment meet_by_mpi(const std::string& key) {
  const LoadedMpi mpi;
  const auto begin = mpi.function<decltype(&ark_mpi_begin)>("ark_mpi_begin");
  const auto all_gather = mpi.function<decltype(&ark_mpi_all_gather)>("ark_mpi_all_gather");
  const auto end = mpi.function<decltype(&ark_mpi_end)>("ark_mpi_end");
  Environment environment;
  LoadedMpi::check("start", begin(&environment.rank, &environment.size));
  const Place here = Place::here();
  Note own{here.machine + "/" + std::to_string(here.network_namespace) + "/" + std::to_string(here.user)};
  std::shared_ptr<Socket> listener;
  if (environment.rank == 0) {
    listener = std::make_shared<Socket>(Socket::listen_everywhere(0));
    own.name = "@ark-" + sha256_hex(random_bytes(kKey)).substr(0, 32);
    own.addresses = addresses(listener->local_port());
    own.key = sha256_hex(random_bytes(kKey));
  }
  std::string all(kNote * static_cast<std::size_t>(environment.size), '\0');
  LoadedMpi::check("gather", all_gather(to_bytes(own).data(), all.data(), kNote));
  LoadedMpi::check("end", end());
  const auto of_rank = [&](int rank) {
    return note_of({all.data() + kNote * static_cast<std::size_t>(rank), kNote});
  };
  const Note first = of_rank(0);
  bool is_one_machine = true;
  for (int rank = 1; rank < environment.size; ++rank)
    is_one_machine = is_one_machine && of_rank(rank).machine == first.machine;
  environment.address = is_one_machine ? first.name : first.addresses;
  if (is_one_machine) return environment;  // rank 0's port closes
  environment.key = key.empty() ? first.key : key;
  environment.listener = std::move(listener);
  return environment;
}

std::vector<std::string> hand_on(const Environment& environment) {
  if (!is_started_by_mpi() || std::getenv("ARK_RANK") != nullptr) return {};
  std::vector<std::string> variables = {"ARK_RANK=" + std::to_string(environment.rank),
                                        "ARK_WORLD_SIZE=" + std::to_string(environment.size)};
  if (environment.listener) {
    const uint16_t port = environment.listener->local_port();
    const std::string first = environment.address.substr(0, environment.address.find(','));
    std::string host = first.substr(0, first.rfind(':'));
    if (host.starts_with('[')) host = host.substr(1, host.size() - 2);
    variables.insert(variables.end(), {"ARK_MASTER_ADDR=" + host, "ARK_MASTER_PORT=" + std::to_string(port)});
    *environment.listener = Socket();
  } else {
    variables.push_back("ARK_BOOTSTRAP=" + environment.address);
  }
  if (environment.key.empty()) return variables;
  // In no variable, which others may read, and in no file system.
  static const Socket memory(memfd_create("cluster key", MFD_CLOEXEC));
  const auto bytes = static_cast<ssize_t>(environment.key.size());
  if (fchmod(memory.descriptor(), S_IRUSR | S_IWUSR) != 0 ||
      pwrite(memory.descriptor(), environment.key.data(), environment.key.size(), 0) != bytes)
    throw Error(Code::kOs, std::string("memory for the cluster key: ") + std::strerror(errno));
  variables.push_back("ARK_CLUSTER_KEY_FILE=/proc/" + std::to_string(getpid()) + "/fd/" +
                      std::to_string(memory.descriptor()));
  return variables;
}

}  // namespace ark::dma
