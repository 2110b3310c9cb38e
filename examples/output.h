// The end of every program: its exit status says whether what it printed has arrived.
#pragma once

#include <cstdio>
#include <iostream>

#include <poll.h>
#include <unistd.h>

/// What main() returns after `status`: 1 where standard output took not everything, as on a full
/// disk. Who closed it, or stopped to read (`| head`), did so on purpose.
inline int after_output(int status = 0) {
  const bool flushed = bool(std::cout.flush()) & (std::fflush(stdout) == 0);
  if (status != 0 || (flushed && std::ferror(stdout) == 0)) return status;
  pollfd output{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  if (poll(&output, 1, 0) == 1 && (output.revents & (POLLERR | POLLNVAL)) != 0) return status;
  std::cerr << "[output] cannot write everything to standard output. Is the disk full?\n";
  return 1;
}
