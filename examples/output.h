// The end of every program: the exit status says whether the output was written completely.
#pragma once

#include <cstdio>
#include <iostream>

#include <poll.h>
#include <unistd.h>

/// Returns main()'s result after `status`: 1 if standard output did not accept everything, as on a
/// full disk. A reader that closed it or stopped reading (`| head`) is not an error.
inline int after_output(int status = 0) {
  const bool flushed = bool(std::cout.flush()) & (std::fflush(stdout) == 0);
  if (status != 0 || (flushed && std::ferror(stdout) == 0)) return status;
  pollfd output{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  if (poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLNVAL)) != 0) return status;
  std::cerr << "[output] cannot write everything to standard output. Is the disk full?\n";
  return 1;
}
