#include "base/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstring>

namespace ark {
namespace {

std::size_t padded(std::size_t bytes) { return (bytes + 3) / 4 * 4; }

// Of a segment of notes: header, name and description, each padded.
std::string id_in(const char* notes, std::size_t bytes) {
  ElfW(Nhdr) note;
  while (bytes >= sizeof note) {
    std::memcpy(&note, notes, sizeof note);
    const std::size_t name = padded(note.n_namesz), description = padded(note.n_descsz);
    if (name > bytes || description > bytes || sizeof note + name + description > bytes) return "";
    const char* const text = notes + sizeof note + name;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + sizeof note, "GNU", 4) == 0) {
      constexpr char kDigits[] = "0123456789abcdef";
      std::string id;
      for (std::size_t i = 0; i < note.n_descsz; ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        id += {kDigits[byte >> 4], kDigits[byte & 15]};
      }
      return id;
    }
    notes += sizeof note + name + description;
    bytes -= sizeof note + name + description;
  }
  return "";
}

// The first object is the program itself.
int look(dl_phdr_info* program, std::size_t, void* into) {
  for (int i = 0; i < program->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = program->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* notes = reinterpret_cast<const char*>(program->dlpi_addr + segment.p_vaddr);
    std::string id = id_in(notes, segment.p_memsz);
    if (!id.empty()) *static_cast<std::string*>(into) = std::move(id);
  }
  return 1;
}

}  // namespace

std::string build_id() {
  std::string id;
  ::dl_iterate_phdr(look, &id);
  return id;
}

}  // namespace ark
