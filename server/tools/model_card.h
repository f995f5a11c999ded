// What a model is and what it takes, in ten lines.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "server/tools/inspect_stages.h"

namespace ark {

// Facts by name; what a model does not have, or what is not known, is absent. Sizes in bytes.
nlohmann::json model_card(Inspection& inspection);
// The same for people, one fact a line.
std::string card_text(const nlohmann::json& card);
// The lines as {what, text}, for other forms.
std::vector<std::pair<std::string, std::string>> card_lines(const nlohmann::json& card);

}  // namespace ark
