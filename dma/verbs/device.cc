#include "dma/verbs/device.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace ark::dma {
namespace {

struct Wish {
  std::string device;  // empty: any
  uint32_t port = 0;   // 0: any
  int gid = -1;        // -1: the best
};

[[noreturn]] void fail(const std::string& why) { throw Error(Code::kUnavailable, "transport verbs: " + why); }

uint32_t number(const char* what, std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > 255)
    fail(std::string(what) + " " + escaped(text) + " is no number from 0 to 255");
  return value;
}

Wish wish_of(int rank, const PortWish& given) {
  Wish wish;
  if (!given.gid.empty()) wish.gid = static_cast<int>(number("GID", given.gid));
  if (given.device.empty()) return wish;
  std::vector<std::string_view> names;
  for (std::string_view rest = given.device;; rest.remove_prefix(names.back().size() + 1)) {
    names.push_back(rest.substr(0, rest.find(',')));
    if (names.back().size() == rest.size()) break;
  }
  const std::string_view name = names[static_cast<size_t>(rank) % names.size()];
  const size_t colon = name.find(':');
  wish.device = name.substr(0, colon);
  if (colon != name.npos) wish.port = number("port", name.substr(colon + 1));
  return wish;
}

// How far an address reaches, and how well: routed RoCE before what stays in one subnet. 0: none.
int worth(const ibv_gid_entry& entry) {
  const uint8_t* raw = entry.gid.raw;
  const bool is_v4 = IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(raw));
  const bool is_local = is_v4 ? raw[12] == 169 && raw[13] == 254 : raw[0] == 0xfe && (raw[1] & 0xc0) == 0x80;
  if (entry.gid_type == IBV_GID_TYPE_IB) return 5;
  if (entry.gid_type != IBV_GID_TYPE_ROCE_V2) return 1;
  return is_local ? 2 : is_v4 ? 4 : 3;
}

// Puts the best of the device's active ports that fulfil the wish into `best`, if it is better than that.
void look_at(ibv_device* device, const Wish& wish, VerbsPort& best, int& best_worth) {
  const VerbsContext context(ibv_open_device(device));
  ibv_device_attr limits = {};
  if (!context || ibv_query_device(context.get(), &limits) != 0) return;
  for (uint32_t number = 1; number <= limits.phys_port_cnt; ++number) {
    ibv_port_attr port = {};
    if (wish.port != 0 && wish.port != number) continue;
    if (ibv_query_port(context.get(), static_cast<uint8_t>(number), &port) != 0) continue;
    if (port.state != IBV_PORT_ACTIVE) continue;
    for (int index = 0; index < std::min(port.gid_tbl_len, 256); ++index) {
      ibv_gid_entry entry = {};
      if (wish.gid >= 0 && wish.gid != index) continue;
      if (ibv_query_gid_ex(context.get(), number, static_cast<uint32_t>(index), &entry, 0) != 0) continue;
      if (worth(entry) <= best_worth) continue;
      best_worth = worth(entry);
      best.name = std::string(ibv_get_device_name(device)) + " port " + std::to_string(number) + ", GID " +
                  std::to_string(index) + " " + text(entry.gid);
      best.number = static_cast<uint8_t>(number);
      best.gid_index = static_cast<uint8_t>(index);
      best.gid = entry.gid;
      best.port = port;
      best.limits = limits;
    }
  }
}

}  // namespace

std::string text(const ibv_gid& gid) {
  char name[INET6_ADDRSTRLEN] = "";
  return inet_ntop(AF_INET6, gid.raw, name, sizeof name);
}

std::shared_ptr<const VerbsPort> open_port(int rank, const PortWish& given) {
  const Wish wish = wish_of(rank, given);
  int count = 0;
  const std::unique_ptr<ibv_device*, Release<ibv_free_device_list>> devices(ibv_get_device_list(&count));
  auto best = std::make_shared<VerbsPort>();
  ibv_device* chosen = nullptr;
  std::string names;
  for (int i = 0, most = 0; i < count; ++i) {
    ibv_device* device = devices.get()[i];
    const std::string name = ibv_get_device_name(device);
    names += (names.empty() ? "" : ", ") + name;
    const int before = most;
    if (wish.device.empty() || wish.device == name) look_at(device, wish, *best, most);
    if (most > before) chosen = device;
  }
  if (chosen == nullptr) {
    std::string what = wish.device.empty() ? "an RDMA device" : "RDMA device " + escaped(wish.device);
    if (wish.port != 0) what += " port " + std::to_string(wish.port);
    if (wish.gid >= 0) what += " with GID " + std::to_string(wish.gid);
    fail("no active port of " + what + "; there are " + (names.empty() ? "none" : names));
  }
  best->context.reset(ibv_open_device(chosen));
  if (best->context) best->domain.reset(ibv_alloc_pd(best->context.get()));
  if (!best->domain) fail("cannot open " + best->name + ": " + std::strerror(errno));
  return best;
}

}  // namespace ark::dma
