// What opcodes.cc says of messages and of what is made of them: empty, or what does not hold.
#pragma once

#include <string>

#include "engine/program/phase_view.h"

namespace ark {

std::string check_send(const PhaseView& p);
std::string check_reduce(const PhaseView& p);
std::string check_send_rows(const PhaseView& p);
std::string check_recv_rows(const PhaseView& p);

}  // namespace ark
