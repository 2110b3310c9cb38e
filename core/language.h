// Parts that C++ lacks: the mark of functions that run on the host and in CUDA kernels, lists of
// types, and slots.
#pragma once

#include <concepts>
#include <cstddef>
#include <map>
#include <utility>

// HT_HD marks a function that runs on the host and in CUDA kernels; it is the only macro of the
// project. On the host it also forces inlining: the CPU kernels are compiled once per instruction
// set from the same formulas, and an out-of-line copy of a formula compiled for AVX-512 must never
// be linked into baseline code.

#if defined(__CUDACC__)
#define HT_HD __host__ __device__ __forceinline__
#else
#define HT_HD [[gnu::always_inline]] inline
#endif

// All the metaprogramming of this library: lists of types, searched and visited at compile time.
// The catalog of operations and the tables of elementwise formulas are such lists.

namespace halftone {

template <class... T> struct TypeList { static constexpr std::size_t size = sizeof...(T); };

namespace detail {
template <class... L> struct ConcatOf;
template <class... A> struct ConcatOf<TypeList<A...>> { using type = TypeList<A...>; };
template <class... A, class... B, class... R>
struct ConcatOf<TypeList<A...>, TypeList<B...>, R...> : ConcatOf<TypeList<A..., B...>, R...> {};
template <template <class> class W, class L> struct WrapOf;
template <template <class> class W, class... T> struct WrapOf<W, TypeList<T...>> {
  using type = TypeList<W<T>...>;
};
}  // namespace detail

/// TypeList<A..., B...> of several lists.
template <class... L> using Concat = typename detail::ConcatOf<L...>::type;
/// TypeList<W<T>...> of a list of T.
template <template <class> class W, class L> using Wrap = typename detail::WrapOf<W, L>::type;

template <class T, class L> inline constexpr bool is_in_list = false;
template <class T, class... Ts>
inline constexpr bool is_in_list<T, TypeList<Ts...>> = (std::same_as<T, Ts> || ...);

/// The position of T in the list, or -1 if it is not there.
template <class T, class L> inline constexpr int index_of = -1;
template <class T, class... Ts>
inline constexpr int index_of<T, TypeList<Ts...>> = [] {
  int position = 0, found = -1;
  ((std::same_as<T, Ts> ? found = position++ : position++), ...);
  return found;
}();

/// Calls visitor.operator()<T>() for the T at `index`; returns whether that index exists.
template <class Visitor, class... T>
constexpr bool visit_index(TypeList<T...>, int index, Visitor&& visitor) {
  int position = 0;
  return ((position++ == index ? (visitor.template operator()<T>(), true) : false) || ...);
}

/// Calls visitor.operator()<T>() for every T, in order.
template <class Visitor, class... T>
constexpr void for_each_type(TypeList<T...>, Visitor&& visitor) {
  (visitor.template operator()<T>(), ...);
}

// A slot: a place in a lower layer that a higher layer fills, in one thread and for one scope. The
// lower layer declares the interface that it calls, and does not know the layer that fills the
// slot. docs/architecture.md lists all slots.

/// For scopes that replace a value of a thread: lets them end in any order. The value is always
/// that of the innermost scope that has not ended. There is one object for each such value.
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

/// A slot in each thread. `Value` is a pointer or a shared pointer: null while the slot is empty.
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
    /// Makes the value stay when the scope ends.
    void stay() { ends_ = false; }

   private:
    Value before_;
    bool ends_ = true;
  };

 private:
  static inline thread_local Value value_{};
};

}  // namespace halftone
