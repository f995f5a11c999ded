// The composition root between a model file and the server: everything that serving one model needs.
#pragma once

#include <functional>
#include <string>

#include "server/config.h"
#include "server/load/load_runner.h"
#include "server/load/stage_log.h"
#include "server/model.h"
#include "server/schedule/state.h"
#include "server/text/model_text.h"

namespace ark {

// What `options` ask of the load path, with the file that they name and what the files beside it say.
LoadOptions load_options(const ServeOptions& options);
// What of these concerns the scheduler.
schedule::SchedulerOptions scheduling(const ServeOptions& options);

// A tokenizer may know more tokens than the model, and fewer; but not only others. Throws Error(kBadModel).
void check_ids(const text::ModelText& text, int64_t vocabulary);

// Import -> recognise -> compile -> runner, and the tokenizer, template and ids beside the file. Throws
// Error.
ServedModel load_model(const ServeOptions& options, StageLog& log);

// Ranks but the first, which rank 0 has started again with the same arguments (--processes), or a launcher on any
// machine. Of the arguments they take only which file to load; all else is in the terms of rank 0.
bool is_rank_process(const ServeOptions& options);
int run_rank(const ServeOptions& options);  // until rank 0 ends; the exit code

// With --supervise, the model is loaded and run by this program started again with the same arguments.
bool is_model_process();
// Until the server ends; the exit code. Only the first such process says what it loads.
int run_model_process(const ServeOptions& options, const std::function<void(const std::string&)>& say);

}  // namespace ark
