// cpp-httplib as Debian builds it. The library's structs (Request, Client) have other sizes without these
// definitions than inside the shared object, so every file includes httplib.h through this one.
#pragma once

#define CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_ZLIB_SUPPORT
#define CPPHTTPLIB_BROTLI_SUPPORT
#include <httplib.h>
