// A slot: a place in a lower layer that a higher layer fills, in one thread and for one scope. The
// lower layer declares the interface that it calls, and does not know the layer that fills the
// slot. docs/architecture.md lists all slots.
#pragma once

#include <utility>

namespace halftone {

/// `Value` is a pointer or a shared pointer, which is null while the slot is empty.
template <class Value> class Slot {
 public:
  static const Value& current() { return value_; }

  /// Fills the slot until the scope ends, also by an exception; a null value empties it.
  class [[nodiscard]] Scope {
   public:
    explicit Scope(Value value) : before_(std::exchange(value_, std::move(value))) {}
    ~Scope() {
      if (ends_) value_ = std::move(before_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    /// The value stays when the scope ends.
    void stay() { ends_ = false; }

   private:
    Value before_;
    bool ends_ = true;
  };

 private:
  static inline thread_local Value value_{};
};

}  // namespace halftone
