// Tables of coded states, and the loops that need no other code.
#include <halftone/core/formats/coded_form.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <list>
#include <stdexcept>
#include <vector>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

namespace halftone {

namespace {

/// As torch.linspace in f32: from both ends, in steps that are rounded once.
std::vector<float> equidistant(float start, float end, int count) {
  std::vector<float> values(std::size_t(count), start);
  const float step = (end - start) / float(count - 1);
  for (int i = 0; i < count; ++i)
    values[std::size_t(i)] = i < count / 2 ? float(double(start) + double(step) * i)
                                           : float(double(end) - double(step) * (count - 1 - i));
  return values;
}

/// The dynamic map: decades below 1, each with twice as many numbers as the one below; the numbers
/// are the middles of equal parts of a decade. And 0 and 1. As create_dynamic_map() of bitsandbytes
/// and torchao.
std::vector<float> dynamic_numbers(int decades, bool has_sign) {
  std::vector<float> numbers{0, 1};
  for (int decade = 0; decade < decades; ++decade) {
    const int parts = (has_sign ? 1 : 2) << decade;
    const std::vector<float> bounds = equidistant(0.1f, 1.0f, parts + 1);
    double power = 1;
    for (int i = decade; i < decades - 1; ++i) power /= 10;
    for (int i = 0; i < parts; ++i) {
      const float middle = (bounds[std::size_t(i)] + bounds[std::size_t(i) + 1]) / 2;
      const float number = float(power) * middle;
      numbers.push_back(number);
      if (has_sign) numbers.push_back(-number);
    }
  }
  std::ranges::sort(numbers);
  return numbers;
}

std::vector<float> numbers_of(Coding storage) {
  switch (storage.form) {
    case CodedForm::dynamic8: return dynamic_numbers(7, storage.has_sign);
    case CodedForm::dynamic4:
      if (storage.has_sign) return dynamic_numbers(3, true);
      else {
        std::vector<float> numbers = equidistant(0, 1, 17);
        numbers.erase(numbers.begin());
        return numbers;
      }
    case CodedForm::linear8: {
      if (!storage.has_sign) return equidistant(0, 1, 256);
      std::vector<float> numbers = equidistant(-1, 1, 255);
      numbers.insert(numbers.begin() + 127, 0.0f);
      return numbers;
    }
    default: break;
  }
  std::vector<float> numbers;
  for (int code = 0; code < 256; ++code)
    numbers.push_back(float(Float8E4M3::from_bits(uint8_t(code))));
  return numbers;
}

/// Fills the cells of one sign. sign: 0 or 0x8000.
void add_cells(const Codec& codec, uint32_t sign, std::vector<uint32_t>& cells) {
  const auto code_at = [&](uint32_t bits) {
    return coded::code_of(codec.form, codec.numbers, std::bit_cast<float>(bits));
  };
  for (uint32_t cell = codec.first; cell <= codec.last; ++cell) {
    const uint32_t begin = (sign | cell) << 16;
    const uint8_t first = code_at(begin), last = code_at(begin | 0xffff);
    uint32_t low = 0, high = 0xffff;  // the largest lower half with the first code: in [low, high]
    while (low < high) {
      const uint32_t middle = (low + high + 1) / 2;
      if (code_at(begin | middle) == first) low = middle;
      else high = middle - 1;
    }
    if (low < 0xffff && code_at(begin | (low + 1)) != last)
      throw std::logic_error("a cell has three codes");
    cells.push_back(first | uint32_t(last) << 8 | low << 16);
  }
}

Codec made_codec(Coding storage) {
  Codec codec{.form = storage.form};
  const std::vector<float> numbers = numbers_of(storage);
  std::ranges::copy(numbers, codec.numbers);
  const float most = coded::is_e4m3(storage.form) ? coded::e4m3_max : 1.0f;
  codec.last = std::bit_cast<uint32_t>(most) >> 16;
  // The first cell: from here down to 0 there is one code of each sign.
  const auto same_below = [&](uint32_t cell) {
    for (const uint32_t sign : {0u, 0x80000000u}) {
      const auto code_at = [&](uint32_t bits) {
        return coded::code_of(codec.form, codec.numbers, std::bit_cast<float>(bits | sign));
      };
      if (code_at(0) != code_at(cell << 16 | 0xffff)) return false;
    }
    return true;
  };
  uint32_t low = 0, high = codec.last;  // same_below(low), and not same_below(high)
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (same_below(middle) ? low : high) = middle;
  }
  codec.first = low;
  static std::list<std::vector<uint32_t>> kept;
  std::vector<uint32_t>& cells = kept.emplace_back();
  add_cells(codec, 0, cells), add_cells(codec, 0x8000, cells);
  codec.cells = cells.data();
  return codec;
}

}  // namespace

const Codec& codec_of(Coding storage) {
  static const auto codecs = [] {
    std::array<std::array<Codec, 2>, words_of<CodedForm>.size()> made;
    for (std::size_t form = 1; form < made.size(); ++form)
      for (const bool has_sign : {false, true})
        made[form][has_sign] = made_codec({CodedForm(form), has_sign});
    return made;
  }();
  return codecs.at(std::size_t(storage.form))[storage.has_sign];
}

void encode_block(const Codec& codec, const float* x, int64_t n, uint8_t* block) {
  uint32_t largest = 0, smallest = 0x7fffffff;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t magnitude = std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu;
    largest = std::max(largest, magnitude);
    if (magnitude != 0) smallest = std::min(smallest, magnitude);
  }
  const coded::Scales scales =
      coded::scales_of(codec.form, std::bit_cast<float>(largest), std::bit_cast<float>(smallest));
  const CodedFormFacts form = facts(codec.form);
  std::memcpy(block, &scales, std::size_t(form.scale_bytes()));
  uint8_t* const codes = block + form.scale_bytes();
  const auto code = [&](int64_t i) {
    if (i >= n) return uint8_t(0);
    return codec.code_of(coded::scaled(codec.form, scales, x[i]));
  };
  for (int64_t i = 0; i < n; i += form.codes_in_byte)
    codes[i / form.codes_in_byte] =
        form.codes_in_byte == 1 ? code(i) : uint8_t(code(i) << 4 | code(i + 1));
}

void decode_block(const Codec& codec, const uint8_t* block, int64_t n, float* x) {
  const CodedFormFacts form = facts(codec.form);
  coded::Scales scales{0, 1};
  std::memcpy(&scales, block, std::size_t(form.scale_bytes()));
  const uint8_t* const codes = block + form.scale_bytes();
  for (int64_t i = 0; i < n; ++i) {
    const int code = form.codes_in_byte == 1 ? codes[i]
                     : i % 2                 ? codes[i / 2] & 15
                                             : codes[i / 2] >> 4;
    x[i] = coded::unscaled(codec.form, scales, codec.numbers[code]);
  }
}

Tensor coded_zeros(CodedForm form, int64_t numel, Device device) {
  return zeros({facts(form).blocks(numel), facts(form).block_bytes()}, u8, device);
}

void update_decoded(Backend& backend, const UpdateSlot& slot, const UpdateCall& call) {
  const MemoryScope scope(MemoryUse::workspace);
  UpdateSlot wide = slot;
  for (std::size_t s = 0; s < slot.state.size(); ++s) {
    if (!slot.stored[s].coded()) continue;
    wide.state[s] = empty_like(slot.parameter, f32);
    wide.stored[s] = {};
    backend.decode_blocks(slot.state[s], slot.stored[s], wide.state[s]);
  }
  backend.update({&wide, 1}, call);
  for (std::size_t s = 0; s < slot.state.size(); ++s) {
    Tensor state = slot.state[s];
    if (slot.stored[s].coded())
      backend.encode_blocks(wide.state[s], call.skip, slot.stored[s], state);
  }
}

}  // namespace halftone
