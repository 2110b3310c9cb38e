// What an operation says of itself: its name and what it asks of mixed precision. The cast class is
// a mandatory constructor argument, so an operation without one does not compile.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

namespace halftone {

/// What an operation asks for under autocast; the active policy decides what it gets.
enum class CastClass : uint8_t {
  low_precision,   // fast and safe in bf16 / f16: matmul, convolution
  full_precision,  // needs range or long accumulation: exp, softmax, norms, losses, sums
  widest_input,    // inputs must agree: cast to the widest of them
  as_is,           // runs in whatever arrives: relu, reshape
  banned,          // refused under autocast, with a reason
};
std::string_view name(CastClass cast_class);

struct OpInfo {
  std::string_view name;
  CastClass cast_class;
  std::string_view instead;  // of a banned operation: why, and what to use
  bool is_loss = false;      // f32 also where weights are short and nothing else is cast
  bool convolves = false;    // the CPU wants what it casts of the weight, input 1, channels-last
  constexpr OpInfo(std::string_view op_name, CastClass asked, std::string_view use_instead = {})
      : name(op_name), cast_class(asked), instead(use_instead) {}
  static constexpr OpInfo loss(std::string_view op_name, CastClass asked,
                               std::string_view use_instead = {}) {
    OpInfo info(op_name, asked, use_instead);
    info.is_loss = true;
    return info;
  }
  static constexpr OpInfo convolution(std::string_view op_name, CastClass asked) {
    OpInfo info(op_name, asked);
    info.convolves = true;
    return info;
  }
};

namespace detail {
inline thread_local const OpInfo* running_operation = nullptr;
}

/// The operation whose forward or backward runs in this thread, for messages of what it calls:
/// kernels serve several. `otherwise` outside of any.
inline std::string_view running_operation(std::string_view otherwise) {
  return detail::running_operation ? detail::running_operation->name : otherwise;
}

class OperationScope {
 public:
  [[nodiscard]] explicit OperationScope(const OpInfo& op)
      : before_(std::exchange(detail::running_operation, &op)) {}
  ~OperationScope() { detail::running_operation = before_; }
  OperationScope(const OperationScope&) = delete;
  OperationScope& operator=(const OperationScope&) = delete;

 private:
  const OpInfo* before_;
};

}  // namespace halftone
