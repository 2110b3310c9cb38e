// SIGINT and SIGTERM as a question that a training loop asks between two steps.
#pragma once

#include <signal.h>

namespace halftone::train {

/// While one lives, the first SIGINT and the first SIGTERM are only noted; the next of its kind
/// ends the process. A signal that the process ignores stays ignored. Destruction puts the handlers
/// of before back. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that came, 0 if none has.
  static int received();

 private:
  using Action = struct sigaction;
  Action interrupt_{}, terminate_{};  // as they were
};

}  // namespace halftone::train
