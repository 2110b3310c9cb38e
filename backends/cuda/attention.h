// Shared parts of the attention kernels: heads in memory, tiles of 64 queries x 64 keys whose
// scores are in registers, the rules that turn products into scores and weights, and products of
// weights in shared memory with rows of a head. There is never a tensor of queries x keys: Dao et
// al. 2022, "FlashAttention: fast and memory-efficient exact attention with IO-awareness".
#pragma once

#include <cmath>
#include <limits>

#include <mma.h>

#include <halftone/backends/cuda/rows.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/backend.h>
#include <halftone/core/math.h>
#include <halftone/core/random.h>

namespace halftone::cuda::attention {

inline constexpr int tile_edge = 64, four = 4;

/// How many groups of 4 rows a thread has in a tile of 64 x 64 places, by 4 columns. Two for f32,
/// so that a product reads 12 numbers of shared memory for 32 multiply-adds; a block has then 128
/// threads, otherwise 256.
template <class T> inline constexpr int groups_of = std::is_same_v<T, float> ? 2 : 1;
template <class T> inline constexpr int threads_of = 256 / groups_of<T>;
/// How many blocks of f32 a multiprocessor should hold, so that one computes while others wait; 0
/// leaves it to the compiler.
template <class T, int across>
inline constexpr int blocks_of = groups_of<T> == 1 ? 0
                                 : across == 1     ? 3
                                                   : 2;

struct Sizes {
  int64_t batch_heads, heads, l, s, e, ev;
  int64_t group;  // heads of q that share one head of keys and values
  bool any_empty() const { return batch_heads * l * s * e * ev == 0; }
  HT_HD int64_t query_blocks() const { return (l + tile_edge - 1) / tile_edge; }
  HT_HD int64_t key_blocks() const { return (s + tile_edge - 1) / tile_edge; }
};
inline Sizes sizes_of(const Tensor& q, const Tensor& k, const Tensor& v) {
  return {q.shape()[0] * q.shape()[1],
          q.shape()[1],
          q.shape()[2],
          k.shape()[2],
          q.shape()[3],
          v.shape()[3],
          k.shape()[1] == 0 ? 1 : q.shape()[1] / k.shape()[1]};
}

/// A tensor [n, heads, rows, columns] with unit stride in the last dimension. Each head of keys and
/// values counts `group` times.
template <class T> struct Heads {
  T* data;
  int64_t heads, group, batch_step, head_step, row_step;

  explicit Heads(const Tensor& x, int64_t sharing = 1)
      : data(x.data<T>()),
        heads(x.shape()[1]),
        group(sharing),
        batch_step(x.strides()[0]),
        head_step(x.strides()[1]),
        row_step(x.strides()[2]) {}
  __device__ T* row(int64_t counted, int64_t i) const {
    const int64_t head = group == 1 ? counted : counted / group;
    return data + head / heads * batch_step + head % heads * head_step + i * row_step;
  }
};

/// At most 64 rows of a head, first .. end - 1.
template <class T> struct HeadRows {
  using C = compute_t<T>;
  const T* data;
  int64_t step;
  int count;
  bool aligned;  // four neighbors can be read at once

  __device__ HeadRows(const Heads<const T>& x, int64_t head, int64_t first, int64_t end)
      : data(x.row(head, first)),
        step(x.row_step),
        count(int(end - first < tile_edge ? end - first : tile_edge)),
        aligned(reinterpret_cast<uintptr_t>(data) % sizeof(Pack<T, four>) == 0 &&
                step % four == 0) {}
  /// Reads four columns, which exist.
  static __device__ Pack<C, four> whole(const T* from) {
    const auto x = *reinterpret_cast<const Pack<T, four>*>(from);
    Pack<C, four> y;
#pragma unroll
    for (int k = 0; k < four; ++k) y.values[k] = widen(x.values[k]);
    return y;
  }
  /// Reads four columns of a row; missing elements are 0.
  __device__ Pack<C, four> part(int row, int64_t column, int64_t columns) const {
    Pack<C, four> y{};
    for (int k = 0; k < four && row < count; ++k)
      if (column + k < columns) y.values[k] = widen(data[row * step + column + k]);
    return y;
  }
};

/// Levels of a product, each of 64 lines, in shared memory. `levels` is a multiple of 16. The lines
/// of a level are exchanged in groups of 8, so that threads that write neighboring levels use
/// different banks.
template <class C, int levels> struct alignas(4 * sizeof(C)) Tile {
  C values[levels][tile_edge];

  static __device__ int place(int level, int line) { return line ^ (level / 4 % 4 * 8); }
  __device__ C& at(int level, int line) { return values[level][place(level, line)]; }
  /// Returns lines line .. line + 3; line is a multiple of 4. The level is first + k, with `first`
  /// a multiple of 16, so that the place depends on k alone.
  __device__ Pack<C, four>& four_at(int first, int k, int line) {
    return *reinterpret_cast<Pack<C, four>*>(&values[first + k][place(k, line)]);
  }

  /// Loads columns first .. first + levels - 1 of rows: columns are levels, rows are lines. Missing
  /// elements are 0. A thread computes one address; the others are at fixed distances from it.
  template <class T>
  __device__ void load_columns(const HeadRows<T>& rows, int64_t first, int64_t columns) {
    constexpr int lines = threads_of<T> / 4;  // at once; a multiple of 32
    const int level = int(threadIdx.x) % 4 * four, line = int(threadIdx.x) / 4;
    const auto store = [&](int n, int c, const Pack<C, four>& x) {
#pragma unroll
      for (int k = 0; k < four; ++k) (&at(level, line))[(c + k) * tile_edge + n] = x.values[k];
    };
    if (rows.aligned && rows.count == tile_edge && first + levels <= columns) {
      const T* const from = rows.data + line * rows.step + first + level;
#pragma unroll
      for (int c = 0; c < levels; c += 16)
#pragma unroll
        for (int n = 0; n < tile_edge; n += lines)
          store(n, c, rows.whole(from + n * rows.step + c));
      return;
    }
#pragma unroll 1
    for (int c = 0; c < levels; c += 16)
#pragma unroll 1
      for (int n = 0; n < tile_edge; n += lines)
        store(n, c, rows.part(line + n, first + level + c, columns));
  }
  /// Loads rows from `row` on: rows are levels, columns from first_column on are lines.
  template <class T>
  __device__ void load_rows(const HeadRows<T>& rows, int row, int64_t first_column,
                            int64_t columns) {
    constexpr int at_once = threads_of<T> / 16;
    const int level = int(threadIdx.x) / 16, line = int(threadIdx.x) % 16 * four;
    if (rows.aligned && row + levels <= rows.count && first_column + tile_edge <= columns) {
      const T* const from = rows.data + (row + level) * rows.step + first_column + line;
#pragma unroll
      for (int n = 0; n < levels; n += at_once)
        four_at(0, level + n, line) = rows.whole(from + n * rows.step);
      return;
    }
#pragma unroll 1
    for (int n = 0; n < levels; n += at_once)
      four_at(0, level + n, line) = rows.part(row + level + n, first_column + line, columns);
  }
};
template <class C> using WeightTile = Tile<C, tile_edge>;

/// The sums of one thread in a tile of 64 rows and `across` x 64 columns: `groups` x 4 rows, with
/// the groups as far apart as they can be, by 4 columns of each 64.
template <class C, int across, int groups> struct Sums {
  static constexpr int height = groups * four, width = across * four, apart = tile_edge / groups;
  C of[height][width];

  __device__ Sums() {
#pragma unroll
    for (int i = 0; i < height; ++i)
#pragma unroll
      for (int j = 0; j < width; ++j) of[i][j] = 0;
  }
  /// Returns the first row (or column) of a thread.
  static __device__ int top() { return int(threadIdx.x) / 16 * four; }
  static __device__ int left() { return int(threadIdx.x) % 16 * four; }
  /// Returns the tile's row (or column) for a thread's i-th one.
  static __device__ int row(int i) { return i / four * apart + top() + i % four; }
  static __device__ int column(int j) { return j / four * tile_edge + left() + j % four; }
  /// Adds a^T b over `count` levels, of a from `first` on, to the columns of one slice. It goes
  /// through 16 levels at a time: `first` is a multiple of 16, and levels after the last are 0.
  template <class A, class B> __device__ void add(A& a, int first, B& b, int count, int slice = 0) {
    constexpr int at_once = 16;
#pragma unroll 1
    for (int from = 0; from < count; from += at_once)
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        Pack<C, four> rows[groups];
#pragma unroll
        for (int g = 0; g < groups; ++g) rows[g] = a.four_at(first + from, k, top() + g * apart);
        const Pack<C, four> columns = b.four_at(from, k, left());
#pragma unroll
        for (int i = 0; i < height; ++i)
#pragma unroll
          for (int j = 0; j < four; ++j)
            of[i][slice * four + j] += rows[i / four].values[i % four] * columns.values[j];
      }
  }
};

/// A thread's places in a tile of queries and keys, with either as rows.
template <class C, bool keys_down, int groups> struct Patch : Sums<C, 1, groups> {
  using Base = Sums<C, 1, groups>;
  static constexpr int queries = keys_down ? Base::width : Base::height,
                       keys = keys_down ? Base::height : Base::width;
  __device__ C& at(int query, int key) {
    return keys_down ? this->of[key][query] : this->of[query][key];
  }
  static __device__ int query(int a) { return keys_down ? Base::column(a) : Base::row(a); }
  static __device__ int key(int b) { return keys_down ? Base::row(b) : Base::column(b); }
  /// Calls each(i, j) for the first of four rows, i .. i + 3, of a column j; all of a query, or of
  /// four queries, in a row.
  template <class Each> static __device__ void by_fours(const Each& each) {
    constexpr int rows = Base::height / four, outer = keys_down ? Base::width : rows;
#pragma unroll
    for (int n = 0; n < outer; ++n)
#pragma unroll
      for (int m = 0; m < rows * Base::width / outer; ++m)
        each(four * (keys_down ? m : n), keys_down ? n : m);
  }
  __device__ Pack<C, four> rows_of(int i, int j) const {
    Pack<C, four> rows;
#pragma unroll
    for (int k = 0; k < four; ++k) rows.values[k] = this->of[i + k][j];
    return rows;
  }
};

/// Combines the values of the 16 threads that share the rows of a patch.
template <class C, class Combine> __device__ C over_row(C value, Combine combine) {
#pragma unroll
  for (int bits = 8; bits > 0; bits /= 2)
    value = combine(value, __shfl_xor_sync(whole_warp, value, bits));
  return value;
}

/// Turns products of queries and keys into scores, and decides which weights dropout keeps.
template <class C> struct Rule {
  static constexpr C minus_infinity = -std::numeric_limits<C>::infinity();
  C scale;
  bool causal;
  Operand mask;
  int64_t mask_steps[4];
  int64_t heads, l, s;
  uint32_t dropped_below;  // compared with the upper 24 bits of a word: 0 without dropout
  C kept_factor;
  RandomKey key;
  const uint64_t* key_shift;

  Rule(const Context& context, const Sizes& sizes, const Tensor& mask_tensor,
       const AttentionSettings& settings)
      : scale(C(settings.scale)),
        causal(settings.causal),
        mask(mask_tensor),
        mask_steps{},
        heads(sizes.heads),
        l(sizes.l),
        s(sizes.s),
        dropped_below(uint32_t(std::ceil(settings.dropout * 0x1p24))),
        kept_factor(C(1 / (1 - settings.dropout))),
        key(settings.key),
        key_shift(context.key_shift()) {
    for (int d = 0; d < 4 && mask_tensor.defined(); ++d) mask_steps[d] = mask_tensor.strides()[d];
  }

  /// Returns the number of keys that queries before `end` see.
  __device__ int64_t keys_before(int64_t end) const { return causal && end < s ? end : s; }
  /// Returns a distance as far as it matters in a tile.
  static __device__ int limited(int64_t distance) {
    return int(distance < -tile_edge ? -tile_edge : distance < tile_edge ? distance : tile_edge);
  }

  /// Returns where the mask of a head begins.
  __device__ int64_t mask_of(int64_t head) const {
    return mask.data ? head / heads * mask_steps[0] + head % heads * mask_steps[1] : 0;
  }
  __device__ C mask_at(int64_t first, int64_t i, int64_t j) const {
    const int64_t place = first + i * mask_steps[2] + j * mask_steps[3];
    if (mask.dtype == boolean)
      return static_cast<const bool*>(mask.data)[place] ? C(0) : minus_infinity;
    return load_floating<C>(mask, place);
  }

  /// Turns products into scores, -infinity for unseen keys. first_mask: mask_of(head). The tile
  /// holds the mask, and is free before and after. All threads of the block must call it.
  template <bool keys_down, int groups>
  __device__ void apply(Patch<C, keys_down, groups>& patch, int64_t first_mask, int64_t i0,
                        int64_t j0, WeightTile<C>& tile) const {
#pragma unroll
    for (int a = 0; a < patch.queries; ++a)
#pragma unroll
      for (int b = 0; b < patch.keys; ++b) patch.at(a, b) *= scale;
    if (mask.data) {
#pragma unroll 1
      for (int place = int(threadIdx.x); place < tile_edge * tile_edge; place += int(blockDim.x)) {
        const int a = place / tile_edge, b = place % tile_edge;
        const bool inside = i0 + a < l && j0 + b < s;
        tile.at(keys_down ? a : b, keys_down ? b : a) =
            inside ? mask_at(first_mask, i0 + a, j0 + b) : C(0);
      }
      __syncthreads();
      const bool condition = mask.dtype == boolean;
      patch.by_fours([&](int i, int j) {
        const Pack<C, four> added = tile.four_at(0, patch.column(j), patch.row(i));
#pragma unroll
        for (int k = 0; k < four; ++k)
          patch.of[i + k][j] = condition && added.values[k] != 0
                                   ? minus_infinity
                                   : patch.of[i + k][j] + added.values[k];
      });
      __syncthreads();
    }
    // Distances within the tile: key x is seen by query y if x < seen and x - y <= ahead.
    const int rows = limited(l - i0), seen = limited(s - j0);
    const int ahead = causal ? limited(i0 - j0) : tile_edge;
    if (rows == tile_edge && seen == tile_edge && ahead >= tile_edge - 1) return;
#pragma unroll
    for (int a = 0; a < patch.queries; ++a)
#pragma unroll
      for (int b = 0; b < patch.keys; ++b) {
        const int y = patch.query(a), x = patch.key(b);
        if (y >= rows || x >= seen || x - y > ahead) patch.at(a, b) = minus_infinity;
      }
  }

  __device__ bool drops() const { return dropped_below != 0; }
  /// Returns a mask. Bit keys * a + b: dropout keeps the weight of query i0 + query(a) for key j0 +
  /// key(b); its random number is that of the row-major position.
  template <bool keys_down, int groups>
  __device__ uint32_t kept(const Patch<C, keys_down, groups>& patch, int64_t head, int64_t i0,
                           int64_t j0) const {
    if (!drops()) return ~0u;
    const uint64_t offset = key.offset + (key_shift ? *key_shift : 0);
    uint32_t bits = 0;
#pragma unroll 1
    for (int fours = 0; fours < patch.queries * patch.keys / four; ++fours) {
      const int a = fours * four / patch.keys, b0 = fours * four % patch.keys;
      const auto place = uint64_t((head * l + i0 + patch.query(a)) * s + j0 + patch.key(b0));
      const int first = int(place % 4);
      const auto now = Philox::words(key.seed, offset + place / 4);
      const auto next = Philox::words(key.seed, offset + place / 4 + 1);
#pragma unroll
      for (int word = 0; word < 7; ++word) {
        const int b = word - first;
        const uint32_t number = word < 4 ? now[std::size_t(word % 4)] : next[std::size_t(word % 4)];
        if (b >= 0 && b < four && (number >> 8) >= dropped_below) bits |= 1u << (four * fours + b);
      }
    }
    return bits;
  }
  template <bool keys_down, int groups>
  __device__ C factor_of(const Patch<C, keys_down, groups>& patch, uint32_t bits, int a,
                         int b) const {
    return bits >> (patch.keys * a + b) & 1 ? kept_factor : C(0);
  }
};

/// Returns the distance of the two parts of log_sum_exp; 0 if it has one part.
inline int64_t statistics_apart(const Tensor& log_sum_exp) {
  return log_sum_exp.shape()[0] == 1 ? 0 : log_sum_exp.numel() / 2;
}

inline int64_t slices_of(int64_t columns, int across) {
  return std::max<int64_t>((columns + tile_edge * across - 1) / (tile_edge * across), 1);
}

/// Calls run.operator()<T, across>() for the dtype, with 128 columns at a time if heads have more
/// than 64.
template <class Run> void visit_kernels(DType dtype, int64_t columns, const Run& run) {
  visit_floating(dtype, "attention", [&]<class T>() {
    if constexpr (sizeof(T) < 8)
      if (columns > tile_edge) return run.template operator()<T, 2>();
    run.template operator()<T, 1>();
  });
}

// The two products of attention, for a block of 64 queries and 64 keys at a time: rows of a head
// with rows of another (scores), and weights with rows of a head (results). f64 and f32 are
// multiplied directly; f16 and bf16 with tensor cores, 16 x 16 x 16 at a time (nvcuda::wmma),
// summed in f32. The layout of a tensor core's sums is unspecified, so they go through shared
// memory to the threads' places (Sums).

/// 64 x 64 short floats for tensor cores. Rows are padded, so that 8 of them use all banks.
template <class T> struct ShortTile {
  using Element = std::conditional_t<std::is_same_v<T, Float16>, __half, __nv_bfloat16>;
  static constexpr int width = tile_edge + 8;
  Element of[tile_edge][width];

  /// Loads columns first_column .. columns - 1, at most 64; missing elements are 0.
  __device__ void load(const HeadRows<T>& rows, int64_t first_column, int64_t columns) {
    using Line = Pack<uint16_t, 8>;
    const bool aligned =
        reinterpret_cast<uintptr_t>(rows.data + first_column) % sizeof(Line) == 0 &&
        rows.step % Line::size == 0;
#pragma unroll 1
    for (int place = int(threadIdx.x); place < tile_edge * tile_edge / Line::size;
         place += threads_of<T>) {
      const int i = place / (tile_edge / Line::size), c = place % (tile_edge / Line::size) * 8;
      const int64_t column = first_column + c;
      Line line{};
      if (i < rows.count) {
        const T* const from = rows.data + i * rows.step + column;
        if (aligned && column + Line::size <= columns) line = *reinterpret_cast<const Line*>(from);
        else
          for (int k = 0; k < Line::size; ++k)
            if (column + k < columns) line.values[k] = from[k].bits;
      }
      *reinterpret_cast<Line*>(&of[i][c]) = line;
    }
  }
};

/// f32 sums that warps hand out to threads. Rows are padded, as those of ShortTile.
struct SumRows {
  static constexpr int width = tile_edge + 4;
  float of[tile_edge][width];
};

/// The 16 x 32 places of one warp in 64 x 64 sums.
template <class T> class WarpSums {
  using Element = typename ShortTile<T>::Element;
  template <class Use, class Layout>
  using Factor = nvcuda::wmma::fragment<Use, 16, 16, 16, Element, Layout>;
  using RowMajor = nvcuda::wmma::row_major;
  using ColumnMajor = nvcuda::wmma::col_major;
  using Left = nvcuda::wmma::matrix_a;
  using Right = nvcuda::wmma::matrix_b;

 public:
  __device__ WarpSums() {
    for (auto& tile : tiles_) nvcuda::wmma::fill_fragment(tile, 0.0f);
  }
  /// Adds a b^T over columns 0 .. depth - 1 of both.
  __device__ void add_rows(const ShortTile<T>& a, const ShortTile<T>& b, int depth) {
    for (int k = 0; k < depth; k += 16) {
      Factor<Left, RowMajor> left;
      nvcuda::wmma::load_matrix_sync(left, &a.of[row()][k], a.width);
      for (int t = 0; t < 2; ++t) {
        Factor<Right, ColumnMajor> right;
        nvcuda::wmma::load_matrix_sync(right, &b.of[column(t)][k], b.width);
        nvcuda::wmma::mma_sync(tiles_[t], left, right, tiles_[t]);
      }
    }
  }
  /// Adds a^T b over all 64 rows.
  __device__ void add_columns(const ShortTile<T>& a, const ShortTile<T>& b) {
    for (int k = 0; k < tile_edge; k += 16) {
      Factor<Left, ColumnMajor> left;
      nvcuda::wmma::load_matrix_sync(left, &a.of[k][row()], a.width);
      for (int t = 0; t < 2; ++t) {
        Factor<Right, RowMajor> right;
        nvcuda::wmma::load_matrix_sync(right, &b.of[k][column(t)], b.width);
        nvcuda::wmma::mma_sync(tiles_[t], left, right, tiles_[t]);
      }
    }
  }
  __device__ void store(SumRows& to) const {
    for (int t = 0; t < 2; ++t)
      nvcuda::wmma::store_matrix_sync(&to.of[row()][column(t)], tiles_[t], to.width,
                                      nvcuda::wmma::mem_row_major);
  }

 private:
  static __device__ int warp() { return int(threadIdx.x) / warp_lanes; }
  static __device__ int row() { return warp() / 2 * 16; }
  static __device__ int column(int t) { return warp() % 2 * 32 + t * 16; }

  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> tiles_[2];
};

/// Shared memory of a kernel, and the products in it. All threads of the block must call them.
/// Values written with put() just before are visible, and may be overwritten just after.
/// short_weights: weights and gradients of scores are rounded to T for tensor cores; otherwise they
/// stay C, and tensor cores compute only scores.
template <class T, int across, bool short_weights> struct Products {
  using C = compute_t<T>;
  static constexpr int groups = groups_of<T>;
  using Scores = Sums<C, 1, groups>;
  using Result = Sums<C, across, groups>;
  static constexpr bool short_scores = is_short_float<T>;
  static constexpr int levels = sizeof(C) == 8 ? 16 : tile_edge;  // 48 KB of shared memory in all
  static_assert(short_scores || !short_weights);

  struct OfT {
    ShortTile<T> a, b;
  };
  struct alignas(32) Nothing {};
  union alignas(32) {
    WeightTile<C> weights;  // also holds masks
    std::conditional_t<short_weights, ShortTile<T>, Nothing> rounded;
  };
  union alignas(32) {
    struct {
      std::conditional_t<short_weights, Nothing, Tile<C, levels>> b;
      std::conditional_t<short_scores, Nothing, Tile<C, levels>> a;
    };
    std::conditional_t<short_scores, OfT, Nothing> tiles;
    std::conditional_t<short_scores, SumRows, Nothing> sums;
  };

  /// Adds x y^T over `depth` columns.
  __device__ void add_scores(const HeadRows<T>& x, const HeadRows<T>& y, int64_t depth,
                             Scores& to) {
    if constexpr (short_scores) {
      WarpSums<T> own;
      for (int64_t d = 0; d < depth; d += tile_edge) {
        tiles.a.load(x, d, depth), tiles.b.load(y, d, depth);
        __syncthreads();
        own.add_rows(tiles.a, tiles.b, int(depth - d < tile_edge ? depth - d : tile_edge));
        __syncthreads();
      }
      hand_out(own, to, 0);
    } else {
      for (int64_t d = 0; d < depth; d += levels) {
        a.load_columns(x, d, depth), b.load_columns(y, d, depth);
        __syncthreads();
        to.add(a, 0, b, int(depth - d < levels ? depth - d : levels));
        __syncthreads();
      }
    }
  }

  template <bool keys_down> __device__ void put(const Patch<C, keys_down, groups>& patch) {
    patch.by_fours([&](int i, int j) {
      const Pack<C, four> rows = patch.rows_of(i, j);
      const int level = patch.column(j), line = patch.row(i);
      if constexpr (short_weights) {
        Pack<uint16_t, four> bits;
#pragma unroll
        for (int k = 0; k < four; ++k) bits.values[k] = narrow<T>(rows.values[k]).bits;
        *reinterpret_cast<Pack<uint16_t, four>*>(&rounded.of[level][line]) = bits;
      } else {
        weights.four_at(0, level, line) = rows;
      }
    });
  }

  /// Adds the transpose of the values of put(), times rows of a head (its levels, at most 64) from
  /// column `first_column` on.
  __device__ void add_weighted(const HeadRows<T>& rows, int64_t first_column, int64_t columns,
                               Result& to) {
#pragma unroll
    for (int slice = 0; slice < across; ++slice) {
      const int64_t column = first_column + slice * tile_edge;
      if constexpr (short_weights) {
        tiles.b.load(rows, column, columns);
        __syncthreads();
        WarpSums<T> own;
        own.add_columns(rounded, tiles.b);
        __syncthreads();
        hand_out(own, to, slice);
      } else {
        for (int k = 0; k < rows.count; k += levels) {
          b.load_rows(rows, k, column, columns);
          __syncthreads();
          to.add(weights, levels == tile_edge ? 0 : k, b,
                 rows.count - k < levels ? rows.count - k : levels, slice);
          __syncthreads();
        }
      }
    }
  }

  /// Stores rows of a head, up to the end of the tensor: row first + i, column first_column + c.
  __device__ void store_rows(const Result& from, const Heads<T>& y, int64_t head, int64_t first,
                             int64_t end, int64_t first_column, int64_t columns) {
    T* const data = y.row(head, 0);
    const bool aligned =
        reinterpret_cast<uintptr_t>(data) % sizeof(Pack<T, four>) == 0 && y.row_step % four == 0;
#pragma unroll
    for (int i = 0; i < from.height; ++i)
#pragma unroll
      for (int j = 0; j < from.width; j += four) {
        const int64_t row = first + from.row(i), column = first_column + from.column(j);
        if (row >= end) continue;
        Pack<T, four> line;
#pragma unroll
        for (int k = 0; k < four; ++k) line.values[k] = narrow<T>(from.of[i][j + k]);
        T* const to = data + row * y.row_step + column;
        if (aligned && column + four <= columns) *reinterpret_cast<Pack<T, four>*>(to) = line;
        else
#pragma unroll
          for (int k = 0; k < four; ++k)
            if (column + k < columns) to[k] = line.values[k];
      }
  }

 private:
  /// Distributes the sums of the warps to the threads, in the columns of a slice.
  template <int n>
  __device__ void hand_out(const WarpSums<T>& own, Sums<C, n, groups>& to, int slice) {
    own.store(sums);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < to.height; ++i) {
      const auto line = *reinterpret_cast<const Pack<C, four>*>(&sums.of[to.row(i)][to.column(0)]);
#pragma unroll
      for (int j = 0; j < four; ++j) to.of[i][slice * four + j] += line.values[j];
    }
    __syncthreads();
  }
};

/// Gradients of scores are rounded to bf16, which has the range of f32; in f16 they could overflow.
template <class T> inline constexpr bool short_gradients = std::is_same_v<T, BFloat16>;

}  // namespace halftone::cuda::attention
