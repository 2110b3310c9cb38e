// Whether operations are recorded. Per thread; a new thread starts with recording on.
#pragma once

#include <utility>

#include <halftone/core/language.h>

namespace halftone {

namespace detail {
inline thread_local bool recording = true;
inline constinit thread_local ScopeOrder<bool> recording_scopes;
}  // namespace detail

inline bool grad_enabled() { return detail::recording; }

/// Turns recording off until the scope ends: for evaluation, initialization and updates. As
/// torch.no_grad().
class NoGrad {
 public:
  [[nodiscard]] NoGrad()
      : number_(detail::recording_scopes.begin()),
        before_(std::exchange(detail::recording, false)) {}
  ~NoGrad() { detail::recording_scopes.end(number_, before_, detail::recording); }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  int number_;
  bool before_;
};

/// Turns recording on inside a NoGrad scope: recomputation under checkpoint() needs it.
class EnableGrad {
 public:
  [[nodiscard]] EnableGrad()
      : number_(detail::recording_scopes.begin()),
        before_(std::exchange(detail::recording, true)) {}
  ~EnableGrad() { detail::recording_scopes.end(number_, before_, detail::recording); }
  EnableGrad(const EnableGrad&) = delete;
  EnableGrad& operator=(const EnableGrad&) = delete;

 private:
  int number_;
  bool before_;
};

}  // namespace halftone
