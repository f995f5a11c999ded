#include "dma/fault.h"

namespace ark::dma {
namespace {

const char* reason(FaultKind kind) {
  switch (kind) {
    case FaultKind::kNone:
      return "no fault";
    case FaultKind::kAborted:
      return "aborted";
    case FaultKind::kDeadline:
      return "deadline passed";
    case FaultKind::kBadRequest:
      return "refused, outside its region";
    case FaultKind::kCut:
      return "the wire is cut";
  }
  return "unknown fault";
}

void append(std::string& text, const char* name, int32_t value) {
  if (value < 0) return;
  if (!text.empty()) text += ", ";
  text += name;
  text += std::to_string(value);
}

}  // namespace

std::string Fault::text() const {
  std::string line;
  append(line, "rank ", at.rank);
  append(line, "processor ", at.processor);
  append(line, "phase ", at.phase);
  append(line, "trip ", at.trip);
  append(line, "peer ", at.peer);
  if (!line.empty()) line += ": ";
  if (at.what[0] != '\0') line.append(at.what).append(": ");
  line += reason(kind);
  if (kind == FaultKind::kNone) return line;
  return line + " (saw " + std::to_string(seen) + ", needed " + std::to_string(needed) + ")";
}

}  // namespace ark::dma
