// The stack of modules that are being called, as a list on the stack of the thread, innermost
// first. autograd/ only stores the list. nn/ opens a scope in Layer::operator(). A policy reads the
// list and turns (module, operation, ordinal) into the name of a site.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/op_info.h>

namespace halftone {

class CallScope {
 public:
  /// A checkpointed segment's scope when recorded, so that a second run finds the same sites.
  struct Place {
    const void* owner = nullptr;
    std::string_view label{};
    std::vector<const OpInfo*> begun{};
  };

  /// `owner`: a module; `label`: a part of it that is not a module ("lm_head"). The text of `label`
  /// must outlive the scope.
  [[nodiscard]] explicit CallScope(const void* owner, std::string_view label = {})
      : owner_(owner), label_(label), outer_(std::exchange(innermost_, this)) {}
  [[nodiscard]] explicit CallScope(Place place)
      : owner_(place.owner),
        label_(place.label),
        outer_(std::exchange(innermost_, this)),
        begun_(std::move(place.begun)) {}
  ~CallScope() { innermost_ = outer_; }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

  /// Returns the scope of this thread, or null outside of every module.
  static const CallScope* innermost() { return innermost_; }

  const void* owner() const { return owner_; }
  std::string_view label() const { return label_; }
  const CallScope* outer() const { return outer_; }
  /// Returns how many operations of this kind asked before, directly in this call: 0, 1, ... Only
  /// casters that name sites ask.
  int next_ordinal(const OpInfo& op) const;
  Place place() const { return {owner_, label_, begun_}; }

 private:
  static inline constinit thread_local const CallScope* innermost_ = nullptr;

  const void* owner_;
  std::string_view label_;
  const CallScope* outer_;
  mutable std::vector<const OpInfo*> begun_{};  // empty until the first call of next_ordinal()
};

inline int CallScope::next_ordinal(const OpInfo& op) const {
  int before = 0;
  for (const OpInfo* other : begun_) before += other == &op ? 1 : 0;
  begun_.push_back(&op);
  return before;
}

}  // namespace halftone
