// What a model is and what it takes, in ten lines.
#pragma once

#include <string>

#include "server/json_fwd.h"
#include "server/tools/inspect_stages.h"

namespace ark {

// Facts by name; what a model does not have, or what is not known, is absent. Sizes in bytes.
Json model_card(Inspection& inspection);
// The same for people, one fact a line.
std::string card_text(const Json& card);
// The lines as {what, text}, for other forms.
std::vector<std::pair<std::string, std::string>> card_lines(const Json& card);

}  // namespace ark
