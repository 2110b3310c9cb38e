// A write to a pipe without a reader sends SIGPIPE to the writing thread. The thread blocks it
// during the write and removes it if it came; the process's own handler stays as it is.
#include <halftone/train/logging/for_people.h>

#include <ctime>

#include <signal.h>

#include <halftone/core/files.h>

namespace halftone::train {

void print_for_people(std::FILE* to, std::string_view text) {
  const files::SizeLimitIsAnError limit;  // the output may be a file
  sigset_t pipe, before, pending;
  sigemptyset(&pipe), sigemptyset(&pending);
  sigaddset(&pipe, SIGPIPE);
  sigpending(&pending);
  const bool waited = sigismember(&pending, SIGPIPE) == 1;
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), to));
  static_cast<void>(std::fflush(to));
  constexpr timespec at_once{};
  if (!waited) sigtimedwait(&pipe, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace halftone::train
