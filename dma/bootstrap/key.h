// The secret that ranks of a group share, and how they prove it to each other without saying it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace ark::dma {

// The text of a file without white space around it. Throws Error(kUsage) naming --cluster-key-file where it is shorter
// than 16 bytes or longer than 4096, or where everybody on its machine may read it; kNotFound.
std::string read_cluster_key(const std::filesystem::path& file);

// What a proof is about: one connection of one guest with one host. A proof for one side, connection or pair of
// nonces is none for another.
struct Encounter {
  uint16_t kind = 0;  // FrameKind of the hello
  uint32_t guest = 0, host = 0, ranks = 0;
  std::string visitor;  // what tells one process from another
  std::string guest_nonce, host_nonce;
};
enum class Side : uint8_t { kGuest, kHost };
std::string proof_of(std::string_view key, Side side, const Encounter& encounter);

}  // namespace ark::dma
