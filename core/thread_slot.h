// A slot: a place in a lower layer that a higher layer fills, in one thread and for one scope. The
// lower layer declares the interface that it calls, and does not know the layer that fills the
// slot. docs/architecture.md lists all slots.
#pragma once

#include <map>
#include <utility>

namespace halftone {

/// Lets the scopes that replace one value of a thread end in any order: the value is that of the
/// innermost scope that has not ended. One object for each such value.
template <class Value> class ScopeOrder {
 public:
  /// Returns the number of a scope that begins.
  int begin() { return ++depth_; }
  /// Ends scope `number`, which replaced the value `before`.
  void end(int number, Value before, Value& value) {
    if (number > depth_) return;  // it began in another thread
    if (number < depth_) {        // a scope inside it goes on
      if (!ended_) ended_ = new Ended;
      ended_->emplace(number, before);
      return;
    }
    value = before, --depth_;
    while (ended_) {
      const auto outer = ended_->extract(depth_);
      if (outer.empty()) return;
      value = outer.mapped(), --depth_;
      if (ended_->empty()) delete std::exchange(ended_, nullptr);
    }
  }

 private:
  using Ended = std::map<int, Value>;
  int depth_ = 0;
  Ended* ended_ = nullptr;  // scopes that ended before one inside them; hardly ever any
};

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
