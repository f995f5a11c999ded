// What a generated text may be, token by token: the interface (server/session/grammars is behind it).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace ark::schedule {

// Where one text stands. Belongs to whoever drives its sequence. What it cannot work out is an Error.
class Constraint {
 public:
  virtual ~Constraint() = default;
  // Sets bit t % 32 of word t / 32 for each token t that may come next, and clears all others. End tokens are the
  // caller's, where the text may end.
  virtual void allowed(std::span<uint32_t> mask) = 0;
  virtual void accept(int32_t token) = 0;  // one of those
  virtual bool may_end() const = 0;        // as it is
};

// Starts one for each text of a request.
using StartConstraint = std::function<std::unique_ptr<Constraint>()>;

}  // namespace ark::schedule
