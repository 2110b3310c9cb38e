// Whether operations are recorded. Per thread; a new thread starts with recording on.
#pragma once

namespace halftone {

namespace detail {
inline thread_local bool recording = true;
}

inline bool grad_enabled() { return detail::recording; }

/// Turns recording off until the scope ends: for evaluation, initialization and updates. As
/// torch.no_grad().
class NoGrad {
 public:
  [[nodiscard]] NoGrad() : before_(detail::recording) { detail::recording = false; }
  ~NoGrad() { detail::recording = before_; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

/// Turns recording on inside a NoGrad scope: recomputation under checkpoint() needs it.
class EnableGrad {
 public:
  [[nodiscard]] EnableGrad() : before_(detail::recording) { detail::recording = true; }
  ~EnableGrad() { detail::recording = before_; }
  EnableGrad(const EnableGrad&) = delete;
  EnableGrad& operator=(const EnableGrad&) = delete;

 private:
  bool before_;
};

}  // namespace halftone
