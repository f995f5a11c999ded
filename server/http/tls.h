// TLS for connections: a certificate with its key, and what OpenSSL makes of a socket by them.
#pragma once

#include <openssl/ssl.h>

#include <filesystem>
#include <memory>

namespace ark::http {

struct TlsFree {
  void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
  void operator()(SSL* session) const { ::SSL_free(session); }
};
using TlsContext = std::shared_ptr<SSL_CTX>;
using TlsSession = std::unique_ptr<SSL, TlsFree>;

// PEM files; the certificate's may hold a chain. TLS 1.2 and up. Throws Error(kNotFound or kUsage).
TlsContext load_tls(const std::filesystem::path& certificate, const std::filesystem::path& key);
// The server's side of a connection over `socket`; the handshake happens with the first bytes. Throws Error(kOs).
TlsSession begin_tls(SSL_CTX& context, int socket);

}  // namespace ark::http
