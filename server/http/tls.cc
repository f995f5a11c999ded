#include "server/http/tls.h"

#include <openssl/err.h>

#include <string>

#include "base/error.h"
#include "base/files.h"

namespace ark::http {
namespace {

constexpr std::size_t kMostBytes = 1 << 20;  // of a file

std::string reason() {
  char text[160] = "no reason given";
  if (const unsigned long code = ::ERR_get_error()) ::ERR_error_string_n(code, text, sizeof text);
  ::ERR_clear_error();
  return text;
}

void check(bool holds, const char* option, const std::filesystem::path& file) {
  if (!holds) throw Error(Code::kUsage, std::string(option) + " " + escaped(file.string()) + ": " + reason());
}

// OpenSSL lets application protocols be agreed on: we speak one.
int choose_protocol(SSL*, const unsigned char** out, unsigned char* size, const unsigned char* in,
                    unsigned in_size, void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  const int found = ::SSL_select_next_proto(&chosen, size, kOurs, sizeof kOurs - 1, in, in_size);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

TlsContext load_tls(const std::filesystem::path& certificate, const std::filesystem::path& key) {
  read_file_of("--tls-cert", certificate, kMostBytes);  // OpenSSL reads a device without end
  read_file_of("--tls-key", key, kMostBytes);
  TlsContext context(::SSL_CTX_new(::TLS_server_method()), TlsFree());
  if (!context) throw Error(Code::kOs, "TLS: " + reason());
  ::SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  ::SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  ::SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                        SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_alpn_select_cb(context.get(), choose_protocol, nullptr);
  check(::SSL_CTX_use_certificate_chain_file(context.get(), certificate.c_str()) == 1, "--tls-cert",
        certificate);
  check(::SSL_CTX_use_PrivateKey_file(context.get(), key.c_str(), SSL_FILETYPE_PEM) == 1, "--tls-key", key);
  check(::SSL_CTX_check_private_key(context.get()) == 1, "--tls-key", key);
  return context;
}

TlsSession begin_tls(SSL_CTX& context, int socket) {
  TlsSession session(::SSL_new(&context));
  if (!session || ::SSL_set_fd(session.get(), socket) != 1) throw Error(Code::kOs, "TLS: " + reason());
  ::SSL_set_accept_state(session.get());
  return session;
}

}  // namespace ark::http
