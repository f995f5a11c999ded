// SHA-256 (FIPS 180-4): names for content, where equal names must mean equal bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace ark {

class Sha256 {
 public:
  void add(std::string_view bytes);
  // Length first, so that the borders between fields count: "ab", "c" is not "a", "bc".
  void add_field(std::string_view bytes);
  // Either ends the message: 64 hexadecimal digits, or 32 bytes.
  std::string hex();
  std::string digest();

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> rest_{};
  uint64_t length_ = 0;  // bytes so far
};

std::string sha256_hex(std::string_view bytes);
// Looks at every byte of `offered` whatever `secret` is: the time tells only the length that was offered.
bool is_same_secret(std::string_view secret, std::string_view offered);
// HMAC (RFC 2104), 32 bytes.
std::string hmac_sha256(std::string_view key, std::string_view message);

}  // namespace ark
