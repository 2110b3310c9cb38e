// SIGINT, SIGTERM and SIGHUP (a terminal that is closed) as a question that a training loop asks
// between two steps.
#pragma once

namespace halftone::train {

/// While any lives, the first of each of these signals is only noted; the next of its kind ends the
/// process. A signal that the process ignores stays ignored. SIGPIPE is ignored, too, unless
/// somebody handles it: an output that nobody reads any more is no reason to stop. When the last
/// one goes, the handlers of before are back. Several trainings of one process share what came.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The signal that came, 0 if none has.
  static int received();
  /// Whether one lives: another training has not ended yet.
  static bool any();
  /// "interrupted (SIGINT)"
  static const char* meaning(int signal);
};

}  // namespace halftone::train
