// Text for people: progress, notes, tables. A display that is full, closed or gone is no reason to
// stop a training, so nothing here fails, and no SIGPIPE gets out.
#pragma once

#include <cstdio>
#include <string_view>

namespace halftone::train {

/// Writes and flushes; what the system does not take is left out.
void print_for_people(std::FILE* to, std::string_view text);

}  // namespace halftone::train
