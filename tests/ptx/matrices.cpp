// Tensor cores: wmma of 16 x 16 x 16. PTX does not define which lane has which element of a tile;
// here element e of lane t is number 8 t + e in the order of rows. A tile of f16 has eight
// registers; four of them repeat the others.
#include <array>
#include <cstring>
#include <string>

#include <immintrin.h>

#include "arithmetic.h"

namespace halftone::ptx {

namespace {

constexpr int side = 16, lane_elements = 8, warp_size = 32;
enum Variant : uint8_t { rows = 0, columns = 1, is_bf16 = 2 };

/// A tile in memory: all lanes must have the same address and stride.
struct Tile {
  std::byte* data;
  uint64_t stride;
  bool by_columns;
  std::byte* element(int number, std::size_t bytes) const {
    const uint64_t row = uint64_t(number / side), column = uint64_t(number % side);
    return data + (by_columns ? column * stride + row : row * stride + column) * bytes;
  }
};
uint64_t address_at(Machine& m, const Operand& operand, int lane) {
  if (operand.width == 8) return m.row<uint64_t>(operand)[lane] + uint64_t(operand.displacement);
  return uint32_t(m.row<uint32_t>(operand)[lane] + uint64_t(operand.displacement));
}
Tile tile_of(Machine& m, const Instruction& i, const Operand& where, const Operand& stride,
             int first, uint32_t bytes) {
  const uint64_t address = address_at(m, where, first);
  const uint32_t* const strides = m.row<uint32_t>(stride);
  for (int l = first; l < first + warp_size; ++l)
    if (address_at(m, where, l) != address || strides[l] != strides[first])
      m.fail("the lanes of a warp have different tiles");
  if (strides[first] * bytes % 16 != 0)
    m.fail("a stride of " + std::to_string(strides[first]) +
           " elements is not a multiple of 16 bytes");
  std::byte* const data = m.memory(i.space, address, 32, first);
  const uint64_t last = address + ((side - 1) * uint64_t(strides[first]) + side) * bytes;
  m.memory(i.space, last - bytes, bytes, first);
  return {data, strides[first], bool(i.variant & columns)};
}

/// Operands: registers, address, stride.
template <class T> void load_tile(Machine& m, const Instruction& i, const Lanes& lanes) {
  const int registers = i.results, per_register = int(4 / sizeof(T));
  for (int k = 0; k < lanes.count; k += warp_size) {
    const int first = lanes.list[k];
    const Tile tile =
        tile_of(m, i, i.operands[registers], i.operands[registers + 1], first, sizeof(T));
    for (int l = first; l < first + warp_size; ++l)
      for (int r = 0; r < registers; ++r) {
        std::array<T, 4 / sizeof(T)> values;
        for (int e = 0; e < per_register; ++e)
          std::memcpy(
              &values[std::size_t(e)],
              tile.element(lane_elements * (l - first) + (r * per_register + e) % lane_elements,
                           sizeof(T)),
              sizeof(T));
        std::memcpy(m.result<uint32_t>(i, r) + l, &values, 4);
      }
  }
}
/// Operands: address, registers, stride.
void store_tile(Machine& m, const Instruction& i, const Lanes& lanes) {
  for (int k = 0; k < lanes.count; k += warp_size) {
    const int first = lanes.list[k];
    const Tile tile = tile_of(m, i, i.operands[0], i.operands[1 + lane_elements], first, 4);
    for (int l = first; l < first + warp_size; ++l)
      for (int e = 0; e < lane_elements; ++e)
        std::memcpy(tile.element(lane_elements * (l - first) + e, 4), m.value<float>(i, 1 + e) + l,
                    4);
  }
}

using Matrix = std::array<std::array<float, side>, side>;
Matrix short_matrix(Machine& m, const Instruction& i, int operand, int first) {
  Matrix matrix;
  for (int t = 0; t < warp_size; ++t)
    for (int e = 0; e < lane_elements; ++e) {
      const uint32_t pair = m.value<uint32_t>(i, operand + e / 2)[first + t];
      const auto bits = uint16_t(pair >> (16 * (e % 2)));
      const auto number = std::size_t(lane_elements * t + e);
      matrix[number / side][number % side] =
          i.variant & is_bf16 ? bits_as<float>(uint32_t(bits) << 16) : _cvtsh_ss(bits);
    }
  return matrix;
}
/// Operands: d (8), a, b, c (8). Products are exact; each sum is rounded once.
void multiply(Machine& m, const Instruction& i, const Lanes& lanes) {
  const int factor = (i.operand_count - 2 * lane_elements) / 2;
  for (int k = 0; k < lanes.count; k += warp_size) {
    const int first = lanes.list[k];
    const Matrix a = short_matrix(m, i, lane_elements, first),
                 b = short_matrix(m, i, lane_elements + factor, first);
    for (std::size_t row = 0; row < side; ++row) {
      std::array<double, side> sums{};
      for (std::size_t inner = 0; inner < side; ++inner)
        for (std::size_t column = 0; column < side; ++column)
          sums[column] += double(a[row][inner]) * b[inner][column];
      for (std::size_t column = 0; column < side; ++column) {
        const int number = int(row * side + column), l = first + number / lane_elements,
                  e = number % lane_elements;
        const float before = m.value<float>(i, lane_elements + 2 * factor + e)[l];
        m.result<float>(i, e)[l] = float(before + sums[column]);
      }
    }
  }
}

}  // namespace

void add_matrices(Operations& all) {
  const auto add = [&](const std::string& name, Run run, uint8_t results, unsigned variant,
                       Space space) {
    Operation& operation = all.add("wmma." + name, run, {4});
    operation.form = Form::matrix, operation.flow = Flow::exchange, operation.results = results;
    operation.variant = uint8_t(variant), operation.space = space;
  };
  for (const auto& [order, by_columns] : {std::pair(".row", rows), {".col", columns}})
    for (const auto& [shared, space] :
         {std::pair("", Space::generic), {".shared", Space::shared}}) {
      const std::string shape = ".sync.aligned" + std::string(order) + ".m16n16k16" + shared;
      for (const char* factor : {"load.a", "load.b"}) {
        add(factor + shape + ".f16", load_tile<uint16_t>, 8, by_columns, space);
        add(factor + shape + ".bf16", load_tile<uint16_t>, 4, by_columns, space);
      }
      add("load.c" + shape + ".f32", load_tile<float>, 8, by_columns, space);
      add("store.d" + shape + ".f32", store_tile, 0, by_columns, space);
    }
  for (const char* a : {"row", "col"})
    for (const char* b : {"row", "col"}) {
      const std::string shape = std::string("mma.sync.aligned.") + a + "." + b + ".m16n16k16.f32.";
      add(shape + "f32", multiply, 8, rows, Space::generic);
      add(shape + "bf16.bf16.f32", multiply, 8, is_bf16, Space::generic);
    }
}

}  // namespace halftone::ptx
