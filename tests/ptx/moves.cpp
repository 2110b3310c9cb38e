// Copies between registers; several registers packed into one, or one unpacked.
#include <cstring>
#include <string>

#include "arithmetic.h"

namespace halftone::ptx {

namespace {

struct Same {
  template <class T> T operator()(T a) const { return a; }
};

/// mov.b32 d, {a, b}: the first is the lowest.
void pack(Machine& m, const Instruction& i, const Lanes& lanes) {
  std::byte* const d = m.result<std::byte>(i);
  const std::size_t whole = i.operands[0].width;
  std::size_t place = 0;
  for (int n = 1; n < i.operand_count; ++n) {
    const std::byte* const from = m.value<std::byte>(i, n);
    const std::size_t part = i.operands[n].width;
    lanes.each([=](int l) { std::memcpy(d + l * whole + place, from + l * part, part); });
    place += part;
  }
}
/// mov.b32 {a, b}, d
void unpack(Machine& m, const Instruction& i, const Lanes& lanes) {
  const int parts = i.operand_count - 1;
  const std::byte* const from = m.value<std::byte>(i, parts);
  const std::size_t whole = i.operands[parts].width;
  std::size_t place = 0;
  for (int n = 0; n < parts; ++n) {
    std::byte* const d = m.result<std::byte>(i, n);
    const std::size_t part = i.operands[n].width;
    lanes.each([=](int l) { std::memcpy(d + l * part, from + l * whole + place, part); });
    place += part;
  }
}

}  // namespace

void add_moves(Operations& all) {
  add_unary<Same, Pred, B16, U16, S16, U32, S32, F32, U64, S64, F64>(all, "mov.");
  for (Operation* move : {&all.add("mov.b32", unary<uint32_t, Same>, {4}),
                          &all.add("mov.b64", unary<uint64_t, Same>, {8})})
    move->form = Form::move, move->packing = pack, move->unpacking = unpack;
}

}  // namespace halftone::ptx
