// What UCX gives, owned.
#pragma once

#include <ucp/api/ucp.h>

#include <memory>

namespace ark::dma {

struct UcxContext {
  ucp_context_h handle = nullptr;

  UcxContext() = default;
  UcxContext(const UcxContext&) = delete;
  UcxContext& operator=(const UcxContext&) = delete;
  ~UcxContext() {
    if (handle != nullptr) ucp_cleanup(handle);
  }
};

// For one thread at a time. Endpoints end with it.
struct UcxWorker {
  std::shared_ptr<const UcxContext> context;
  ucp_worker_h handle = nullptr;

  UcxWorker() = default;
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;
  ~UcxWorker() {
    if (handle != nullptr) ucp_worker_destroy(handle);
  }
};

}  // namespace ark::dma
