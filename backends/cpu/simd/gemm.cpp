// The inner part of the matrix product, after Goto and van de Geijn (2008), "Anatomy of
// high-performance matrix multiplication": operands are packed into panels (short floats are
// widened), and a tile of c stays in registers for the whole depth. a panel: [depth][tile_rows], b
// panel: [depth][tile_columns].
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

static constexpr int tile_rows = HALFTONE_TILE_ROWS, tile_vectors = HALFTONE_TILE_VECTORS;
static constexpr int tile_columns = tile_vectors * register_lanes;

template <Element E>
[[gnu::always_inline]] static inline float element(const void* data, int64_t i) {
  if constexpr (E == Element::f32) {
    return static_cast<const float*>(data)[i];
  } else {
    return __builtin_bit_cast(float, uint32_t(static_cast<const uint16_t*>(data)[i]) << 16);
  }
}

/// Loads `count` elements from i on as floats; the other lanes are 0.
template <Element E, int count = register_lanes>
[[gnu::always_inline]] static inline Register elements(const void* data, int64_t i) {
  if constexpr (E == Element::f32) {
    Register x{};
    __builtin_memcpy(&x, static_cast<const float*>(data) + i, count * sizeof(float));
    return x;
  } else {
    using Halves [[gnu::vector_size(register_bytes / 2)]] = uint16_t;
    using Bits [[gnu::vector_size(register_bytes)]] = uint32_t;
    Halves x{};
    __builtin_memcpy(&x, static_cast<const uint16_t*>(data) + i, count * sizeof(uint16_t));
    return (Register)(__builtin_convertvector(x, Bits) << 16);
  }
}

/// Copies Width elements from i on.
template <int Width, Element E>
[[gnu::always_inline]] static inline void copy_row(const void* data, int64_t i, float* to) {
  constexpr int rest = Width % register_lanes;
#pragma GCC unroll 8
  for (int k = 0; k + register_lanes <= Width; k += register_lanes)
    store(to + k, elements<E>(data, i + k));
  // Directly: a register that is assembled in memory waits for its parts.
  if constexpr (rest > 0 && E == Element::f32) {
    __builtin_memcpy(to + Width - rest, static_cast<const float*>(data) + i + Width - rest,
                     rest * sizeof(float));
  } else if constexpr (rest > 0) {
    const Register last = elements<E, rest>(data, i + Width - rest);
    __builtin_memcpy(to + Width - rest, &last, rest * sizeof(float));
  }
}

using LaneIndices [[gnu::vector_size(register_bytes)]] = int32_t;

/// Transposes each square of 4 x 4 elements in four rows.
[[gnu::always_inline]] static inline void transpose_squares(Register* rows) {
  LaneIndices low, high, low_pairs, high_pairs;  // two rows in turn, by elements and by pairs
  for (int k = 0; k < register_lanes; ++k) {
    const int square = k / 4 * 4;
    low[k] = square + k % 4 / 2 + k % 2 * register_lanes, high[k] = low[k] + 2;
    low_pairs[k] = square + k % 2 + k % 4 / 2 * register_lanes, high_pairs[k] = low_pairs[k] + 2;
  }
  const Register a = shuffled(rows[0], rows[1], low), b = shuffled(rows[0], rows[1], high);
  const Register c = shuffled(rows[2], rows[3], low), d = shuffled(rows[2], rows[3], high);
  rows[0] = shuffled(a, c, low_pairs), rows[1] = shuffled(a, c, high_pairs);
  rows[2] = shuffled(b, d, low_pairs), rows[3] = shuffled(b, d, high_pairs);
}

/// Exchanges the off-diagonal quarters of pairs of rows `distance` apart, down to squares of 4 x 4.
template <int distance>
[[gnu::always_inline]] static inline void exchange(Register (&rows)[register_lanes]) {
  if constexpr (distance >= 4) {
    LaneIndices low, high;
    for (int k = 0; k < register_lanes; ++k) {
      low[k] = (k & distance) == 0 ? k : register_lanes + k - distance;
      high[k] = (k & distance) == 0 ? k + distance : register_lanes + k;
    }
#pragma GCC unroll 16
    for (int i = 0; i < register_lanes; ++i) {
      if ((i & distance) != 0) continue;
      const Register a = rows[i], b = rows[i + distance];
      rows[i] = shuffled(a, b, low);
      rows[i + distance] = shuffled(a, b, high);
    }
    exchange<distance / 2>(rows);
  }
}

/// Packs whole blocks of `register_lanes` depths of a panel whose rows are contiguous along the
/// depth. Returns the number of packed depths. Equivalent to: panel[d * Width + k] =
/// x[start + k * stride + d], zero for k >= width.
template <int Width, Element E>
static int64_t pack_transposed(const void* x, int64_t start, int64_t stride, int64_t width,
                               int64_t depth, float* panel) {
  const int64_t blocks = depth / register_lanes;
  for (int64_t block = 0; block < blocks; ++block)
#pragma GCC unroll 8
    for (int first = 0; first < Width; first += register_lanes) {
      constexpr int last = Width % register_lanes == 0 ? register_lanes : Width % register_lanes;
      const int count = first + register_lanes <= Width ? register_lanes : last;
      const int64_t from = start + first * stride + block * register_lanes;
      Register rows[register_lanes];
#pragma GCC unroll 16
      for (int k = 0; k < register_lanes; ++k)
        rows[k] = k < count && first + k < width ? elements<E>(x, from + k * stride) : Register{};
#pragma GCC unroll 4
      for (int k = 0; k < register_lanes; k += 4) transpose_squares(rows + k);
      exchange<register_lanes / 2>(rows);
      // A whole register is stored faster. What it has beyond the panel's width, the next depth
      // overwrites; the last depth's would be another thread's.
#pragma GCC unroll 16
      for (int k = 0; k < register_lanes; ++k) {
        float* to = panel + (block * register_lanes + k) * Width + first;
        const bool next = k + 1 < register_lanes || block + 1 < blocks;
        if (count == register_lanes || (Width < register_lanes && next)) store(to, rows[k]);
        else __builtin_memcpy(to, &rows[k], std::size_t(count) * sizeof(float));
      }
    }
  return blocks * register_lanes;
}

/// Writes panels[o / Width][d][o % Width] = element at outer index o and depth d, zero beyond
/// `outer`.
template <int Width, Element E>
static void pack(const void* data, int64_t outer_stride, int64_t depth_stride, int64_t outer,
                 int64_t depth, float* panels) {
  const int64_t whole = outer / Width * Width;
  if (whole < outer)
    __builtin_memset(panels + whole * depth, 0, std::size_t(depth * Width) * sizeof(float));
  // Packs `width` elements from o on, at depths from `done` on.
  const auto pack_panel = [=](int64_t o, int64_t width, int64_t done) {
    float* panel = panels + o * depth;
    for (int64_t d = done; d < depth; ++d)
      for (int64_t k = 0; k < width; ++k)
        panel[d * Width + k] = element<E>(data, (o + k) * outer_stride + d * depth_stride);
  };
  if (outer_stride == 1) {
    // Goes through rows of the memory and reads each once for all panels.
    for (int64_t d = 0; d < depth; ++d)
      for (int64_t o = 0; o < whole; o += Width)
        copy_row<Width, E>(data, d * depth_stride + o, panels + o * depth + d * Width);
    for (int64_t d = 0; d < depth && whole < outer; ++d)
      for (int64_t o = whole; o < outer; ++o)
        panels[whole * depth + d * Width + o - whole] = element<E>(data, d * depth_stride + o);
    return;
  }
  for (int64_t o = 0; o < outer; o += Width) {
    const int64_t width = outer - o < Width ? outer - o : Width;
    int64_t done = 0;
    if (depth_stride == 1)
      done = pack_transposed<Width, E>(data, o * outer_stride, outer_stride, width, depth,
                                       panels + o * depth);
    pack_panel(o, width, done);
  }
}

template <int Width>
static void pack_any(const Matrix& x, int64_t outer_stride, int64_t depth_stride, int64_t outer,
                     int64_t depth, float* panels) {
  switch (x.element) {
    case Element::f32:
      return pack<Width, Element::f32>(x.data, outer_stride, depth_stride, outer, depth, panels);
    case Element::bf16:
      return pack<Width, Element::bf16>(x.data, outer_stride, depth_stride, outer, depth, panels);
  }
}

static void pack_rows(const Matrix& a, int64_t rows, int64_t depth, float* panels) {
  pack_any<tile_rows>(a, a.row, a.column, rows, depth, panels);
}
static void pack_columns(const Matrix& b, int64_t depth, int64_t columns, float* panels) {
  pack_any<tile_columns>(b, b.column, b.row, columns, depth, panels);
}

/// A tile of c in registers, Rows rows of Vectors vectors.
template <int Rows, int Vectors> struct Tile {
  Register sums[Rows][Vectors];

  [[gnu::always_inline]] inline void begin() {
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) sums[i][j] = Register{};
  }
  /// Adds one depth: row(i) is the element of a, b its columns.
  template <class Row> [[gnu::always_inline]] inline void add(const Row& row, const float* b) {
    Register columns[Vectors];
#pragma GCC unroll 8
    for (int j = 0; j < Vectors; ++j) columns[j] = load<Register>(b + j * register_lanes);
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i) {
      const float element = row(i);
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) sums[i][j] = multiply_add(element, columns[j], sums[i][j]);
    }
  }
  [[gnu::always_inline]] inline void finish(const float* bias, bool accumulate, float* c,
                                            int64_t c_stride) const {
#pragma GCC unroll 32
    for (int i = 0; i < Rows; ++i)
#pragma GCC unroll 8
      for (int j = 0; j < Vectors; ++j) {
        float* to = c + i * c_stride + j * register_lanes;
        Register sum = sums[i][j];
        if (accumulate) sum += load<Register>(to);
        if (bias) sum += load<Register>(bias + j * register_lanes);
        store(to, sum);
      }
  }
};

template <int Vectors> [[gnu::always_inline]] static inline void prefetch(const float* row) {
#pragma GCC unroll 8
  for (int j = 0; j < Vectors; ++j) __builtin_prefetch(row + j * register_lanes, 1);
}

/// Computes c (+)= a b for Rows rows and Vectors vectors of columns, with accumulators in
/// registers.
template <int Rows, int Vectors>
[[gnu::always_inline]] static inline void product(int64_t depth, const float* a, const float* b,
                                                  int64_t b_step, const float* bias,
                                                  bool accumulate, float* c, int64_t c_stride) {
  Tile<Rows, Vectors> tile;
  tile.begin();
  // The tile of c is needed at the end of the depth. It is prefetched a row at a time, because few
  // requests can wait for memory at once.
  const auto add = [&](int64_t d) __attribute__((always_inline)) {
    tile.add([a, d](int i) { return a[d * tile_rows + i]; }, b + d * b_step);
  };
  int64_t d = 0;
  const float* row = c;
  for (const int64_t each = depth / (Rows + 2); each > 1 && d < Rows * each; row += c_stride) {
    prefetch<Vectors>(row);
    for (const int64_t end = d + each; d < end; ++d) add(d);
  }
  for (; d < depth; ++d) add(d);
  tile.finish(bias, accumulate, c, c_stride);
}

/// Does the same in pieces of the depth: `chain` products are added up in a row before they join
/// the total. A separate kernel, because this loop would cost the kernel for a whole depth
/// registers.
template <int Rows, int Vectors>
[[gnu::noinline]] static void product_of_chains(int64_t depth, int64_t chain, const float* a,
                                                const float* b, int64_t b_step, const float* bias,
                                                bool accumulate, float* c, int64_t c_stride) {
  for (int64_t d = 0; d < depth; d += chain)
    product<Rows, Vectors>(depth - d < chain ? depth - d : chain, a + d * tile_rows, b + d * b_step,
                           b_step, d == 0 ? bias : nullptr, accumulate || d > 0, c, c_stride);
}

template <int Rows, int Vectors>
[[gnu::always_inline]] static inline void product_in_chains(int64_t depth, int64_t chain,
                                                            const float* a, const float* b,
                                                            int64_t b_step, const float* bias,
                                                            bool accumulate, float* c,
                                                            int64_t c_stride) {
  if (depth <= chain) product<Rows, Vectors>(depth, a, b, b_step, bias, accumulate, c, c_stride);
  else product_of_chains<Rows, Vectors>(depth, chain, a, b, b_step, bias, accumulate, c, c_stride);
}

/// An incomplete tile: compute(whole) computes it in a buffer, and the valid part is copied.
template <class Compute>
static void incomplete_tile(const Compute& compute, int64_t rows, int64_t columns,
                            const float* bias, bool accumulate, float* c, int64_t c_stride) {
  float whole[tile_rows * tile_columns];
  compute(whole);
  for (int64_t i = 0; i < rows; ++i) {
    const float* from = whole + i * tile_columns;
    float* to = c + i * c_stride;
    int64_t j = 0;
    for (; j + register_lanes <= columns; j += register_lanes) {
      Register sum = load<Register>(from + j);
      if (accumulate) sum += load<Register>(to + j);
      if (bias) sum += load<Register>(bias + j);
      store(to + j, sum);
    }
    for (; j < columns; ++j) {
      float sum = from[j];
      if (accumulate) sum += to[j];
      if (bias) sum += bias[j];
      to[j] = sum;
    }
  }
}

static void tile_product(int64_t depth, int64_t chain, const float* a, const float* b,
                         int64_t b_step, int64_t rows, int64_t columns, const float* bias,
                         bool accumulate, float* c, int64_t c_stride) {
  if (rows == tile_rows && columns == tile_columns)
    return product_in_chains<tile_rows, tile_vectors>(depth, chain, a, b, b_step, bias, accumulate,
                                                      c, c_stride);
  if (rows == tile_rows && columns == register_lanes)
    return product_in_chains<tile_rows, 1>(depth, chain, a, b, b_step, bias, accumulate, c,
                                           c_stride);
  // Uses the smallest kernel that covers it.
  constexpr int medium = tile_rows < 8 ? tile_rows : 8;
  const auto product = [&]<int Rows, int Vectors>(float* whole) {
    product_in_chains<Rows, Vectors>(depth, chain, a, b, b_step, nullptr, false, whole,
                                     tile_columns);
  };
  const auto compute = [&](float* whole) {
    if (rows <= 4) product.template operator()<4, tile_vectors>(whole);
    else if (rows <= medium) product.template operator()<medium, tile_vectors>(whole);
    else if (columns <= register_lanes) product.template operator()<tile_rows, 1>(whole);
    else product.template operator()<tile_rows, tile_vectors>(whole);
  };
  incomplete_tile(compute, rows, columns, bias, accumulate, c, c_stride);
}

/// product() with rows of a in pieces: row i of piece p begins at pieces[p * tile_rows + i] + skip.
template <int Vectors>
static void product_of_pieces(int64_t count, int64_t length, const float* const* pieces,
                              int64_t skip, const float* b, const float* bias, bool accumulate,
                              float* c, int64_t c_stride) {
  Tile<tile_rows, Vectors> tile;
  tile.begin();
#pragma GCC unroll 32
  for (int i = 0; i < tile_rows; ++i) prefetch<Vectors>(c + i * c_stride);
  for (int64_t p = 0; p < count; ++p) {
    const float* rows[tile_rows];
#pragma GCC unroll 32
    for (int i = 0; i < tile_rows; ++i) rows[i] = pieces[p * tile_rows + i] + skip;
    for (int64_t d = 0; d < length; ++d, b += tile_columns)
      tile.add([&rows, d](int i) { return rows[i][d]; }, b);
  }
  tile.finish(bias, accumulate, c, c_stride);
}

static void tile_product_of_pieces(int64_t count, int64_t length, const float* const* pieces,
                                   int64_t skip, const float* b, int64_t rows, int64_t columns,
                                   const float* bias, bool accumulate, float* c, int64_t c_stride) {
  if (rows == tile_rows && columns == tile_columns)
    return product_of_pieces<tile_vectors>(count, length, pieces, skip, b, bias, accumulate, c,
                                           c_stride);
  const auto compute = [&](float* whole) {
    if (columns <= register_lanes)
      product_of_pieces<1>(count, length, pieces, skip, b, nullptr, false, whole, tile_columns);
    else
      product_of_pieces<tile_vectors>(count, length, pieces, skip, b, nullptr, false, whole,
                                      tile_columns);
  };
  incomplete_tile(compute, rows, columns, bias, accumulate, c, c_stride);
}

static void add_products(const float* a, const float* b, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + register_lanes <= n; i += register_lanes)
    store(y + i, multiply_add(load<Register>(a + i), load<Register>(b + i), load<Register>(y + i)));
  if (i == n) return;
  Register last_a{}, last_b{}, last_y{};
  const std::size_t bytes = std::size_t(n - i) * sizeof(float);
  __builtin_memcpy(&last_a, a + i, bytes), __builtin_memcpy(&last_b, b + i, bytes);
  __builtin_memcpy(&last_y, y + i, bytes);
  last_y = multiply_add(last_a, last_b, last_y);
  __builtin_memcpy(y + i, &last_y, bytes);
}

void fill_gemm(Kernels& table) {
  table.tile_rows = tile_rows, table.tile_columns = tile_columns;
  table.pack_rows = pack_rows, table.pack_columns = pack_columns, table.tile_product = tile_product;
  table.tile_product_of_pieces = tile_product_of_pieces, table.add_products = add_products;
}

}  // namespace halftone::simd::HALFTONE_ISA
