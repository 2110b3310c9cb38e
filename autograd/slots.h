// The stack of modules that are being called, as a list on the stack of the thread, innermost
// first. autograd/ only stores the list. nn/ opens a scope in Layer::operator(). A policy reads the
// list and turns (module, operation, ordinal) into the name of a site.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/op_info.h>

namespace halftone {

/// Copies of the buffers of a module and of all modules below it. nn/ implements it.
class HeldBuffers {
 public:
  virtual ~HeldBuffers() = default;
  /// Writes the copies into the buffers.
  virtual void restore() const = 0;
  /// Drops the copies of buffers that have not been written since. Returns whether any is left.
  virtual bool keep_changed() = 0;
  /// Returns copies of the same buffers as they are now.
  virtual std::shared_ptr<HeldBuffers> now() const = 0;
};
using ListOfHeldBuffers = std::vector<std::shared_ptr<HeldBuffers>>;

class CallScope {
 public:
  using Hold = std::shared_ptr<HeldBuffers> (*)(const void* owner);
  /// A checkpointed segment's scope when recorded, so that a second run finds the same sites.
  struct Place {
    const void* owner = nullptr;
    std::string_view label{};
    std::vector<const OpInfo*> begun{};
    Hold hold = nullptr;
  };

  /// `owner`: a module; `label`: a part of it that is not a module ("lm_head"). The text of `label`
  /// must outlive the scope. `hold` copies the buffers of the owner.
  [[nodiscard]] explicit CallScope(const void* owner, std::string_view label = {},
                                   Hold hold = nullptr)
      : owner_(owner), label_(label), hold_(hold), outer_(std::exchange(innermost_, this)) {
    if (held_ && !holder(outer_)) hold_here();
  }
  [[nodiscard]] explicit CallScope(Place place)
      : owner_(place.owner),
        label_(place.label),
        hold_(place.hold),
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
  Place place() const { return {owner_, label_, begun_, hold_}; }

  /// Copies the buffers of the modules that are called while it exists, before their calls: those
  /// of the innermost module around it, or else those of the modules that are called first.
  class Holding {
   public:
    explicit Holding(ListOfHeldBuffers& held) : outer_(std::exchange(held_, &held)) {
      if (const CallScope* scope = holder(innermost_)) scope->hold_here();
    }
    ~Holding() { held_ = outer_; }
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;

   private:
    ListOfHeldBuffers* outer_;
  };

 private:
  /// Returns the innermost scope, from this one outwards, that can copy buffers; null: none.
  static const CallScope* holder(const CallScope* scope) {
    while (scope && !scope->hold_) scope = scope->outer_;
    return scope;
  }
  void hold_here() const {
    if (hold_) held_->push_back(hold_(owner_));
  }

  static inline constinit thread_local const CallScope* innermost_ = nullptr;
  static inline constinit thread_local ListOfHeldBuffers* held_ = nullptr;

  const void* owner_;
  std::string_view label_;
  Hold hold_;
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
