// Servers that share pages of cached keys and values (--kv-listen, --kv-peers, --role): what the options mean, and who
// is made of them.
#pragma once

#include <memory>
#include <string>

#include "dma/bootstrap/socket.h"
#include "server/config.h"
#include "server/model.h"
#include "server/peers/page_server.h"

namespace ark {

// Throws Error(kUsage) where the options do not fit together, or reach beyond this machine without --cluster-key-file;
// as read_cluster_key.
void check_neighbours(const ServeOptions& options);

// Of a model that is loaded in this process and has its fingerprint; `identity` as of LoadedRunner. Throws
// Error(kUnsupported) where its pages cannot be shared.
void find_neighbours(const ServeOptions& options, const std::string& identity, ServedModel& model);

// Where others ask for pages; not open where nobody may. Throws Error(kOs).
dma::Socket listen_for_neighbours(const ServeOptions& options);
// Null where nobody may ask. Before the scheduler and the model it ends.
std::unique_ptr<peers::PageServer> serve_neighbours(const ServeOptions& options, dma::Socket listener,
                                                    const ServedModel& model, schedule::Scheduler& scheduler);

}  // namespace ark
