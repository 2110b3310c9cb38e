// Shuffles and votes between the lanes of a warp. Before them, the block has checked that every
// lane of a mask has arrived (block.cpp).
#include <array>
#include <string>

#include "arithmetic.h"

namespace halftone::ptx {

namespace {

constexpr int warp_size = 32;

/// Calls f(first, count) for the lanes of each warp.
template <class F> void each_warp(const Lanes& lanes, F f) {
  for (int first = 0; first < lanes.count;) {
    int last = first;
    while (last < lanes.count && lanes.list[last] / warp_size == lanes.list[first] / warp_size)
      ++last;
    f(first, last - first);
    first = last;
  }
}

enum Direction : uint8_t { up, down, butterfly, index };
struct Source {
  int lane;
  bool inside;  // in the segment; otherwise a lane keeps its own value
};
/// "PTX ISA", shfl: c has a mask of segments (bits 8 to 12) and a clamp (bits 0 to 4).
Source source_of(int lane, uint32_t b, uint32_t c, uint8_t direction) {
  const uint32_t segment = c >> 8 & 31, clamp = c & 31, own = uint32_t(lane);
  const int last = int((own & segment) | (clamp & ~segment)), first = int(own & segment),
            by = int(b & 31);
  int from = 0;
  if (direction == up) from = lane - by;
  if (direction == down) from = lane + by;
  if (direction == butterfly) from = lane ^ by;
  if (direction == index) from = first | (by & ~int(segment));
  const bool inside = direction == up ? from >= last : from <= last;
  return {inside ? from : lane, inside};
}

/// Operands: d, p, a, b, c, mask.
void shuffle(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint32_t* const d = m.result<uint32_t>(i);
  uint8_t* const p = m.result<uint8_t>(i, 1);
  const uint32_t *const a = m.value<uint32_t>(i, 2), *const b = m.value<uint32_t>(i, 3),
                        *const c = m.value<uint32_t>(i, 4);
  each_warp(lanes, [&](int first, int count) {
    std::array<uint32_t, warp_size> offered{};
    uint32_t here = 0;
    for (int k = first; k < first + count; ++k) {
      const int l = lanes.list[k];
      offered[std::size_t(l % warp_size)] = a[l], here |= 1u << l % warp_size;
    }
    for (int k = first; k < first + count; ++k) {
      const int l = lanes.list[k];
      const Source source = source_of(l % warp_size, b[l], c[l], i.variant);
      if (!(here >> source.lane & 1))
        m.fail("thread " + std::to_string(l) + " reads from lane " + std::to_string(source.lane) +
               ", which takes no part");
      d[l] = offered[std::size_t(source.lane)], p[l] = source.inside;
    }
  });
}

/// Operands: d, a, mask.
void ballot(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint32_t* const d = m.result<uint32_t>(i);
  const uint8_t* const a = m.value<uint8_t>(i, 1);
  const bool inverted = i.operands[1].inverted;
  each_warp(lanes, [&](int first, int count) {
    uint32_t votes = 0;
    for (int k = first; k < first + count; ++k)
      votes |= uint32_t((a[lanes.list[k]] != 0) != inverted) << lanes.list[k] % warp_size;
    for (int k = first; k < first + count; ++k) d[lanes.list[k]] = votes;
  });
}

}  // namespace

void add_exchanges(Operations& all) {
  uint8_t direction = up;
  for (const char* name : {"up", "down", "bfly", "idx"}) {
    Operation& operation = all.add(std::string("shfl.sync.") + name + ".b32", shuffle, {4, 1, 4});
    operation.form = Form::shuffle, operation.flow = Flow::exchange, operation.results = 2;
    operation.variant = direction++;
  }
  all.add("vote.sync.ballot.b32", ballot, {4, 1, 4}).flow = Flow::exchange;
}

}  // namespace halftone::ptx
