// SIGINT, SIGTERM and SIGHUP (a closed terminal) as a flag that a training loop checks between two
// steps.
#pragma once

namespace halftone::train {

/// While an object exists, the first of each of these signals is only noted, and the next of its
/// kind ends the process. A signal that the process ignores stays ignored. SIGPIPE is also ignored,
/// unless it has a handler: an output without a reader must not stop a training. The last object
/// restores the earlier handlers. All trainings of a process share the noted signal.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns the noted signal; 0 if none came.
  static int received();
  /// Returns whether an object exists: another training has not ended yet.
  static bool any();
  /// Returns a text such as "interrupted (SIGINT)".
  static const char* meaning(int signal);
};

}  // namespace halftone::train
