// Text for people: progress, notes, tables. A full, closed or vanished display must not stop a
// training, so these functions never fail and never cause a SIGPIPE.
#pragma once

#include <cstdio>
#include <string_view>

namespace halftone::train {

/// Writes and flushes. Drops bytes that the system does not accept.
void print_for_people(std::FILE* to, std::string_view text);

}  // namespace halftone::train
